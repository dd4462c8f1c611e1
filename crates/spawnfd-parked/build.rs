// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the three images that the crate embeds: two shared objects that LD_PRELOAD loads into programs, and the
//! zygote. They are C because an object that runs between libc and `main` must not bring a runtime of its own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const OBJECT: &str = "spawnfd-parked.so";
const OBJECT_WITH_THREADS: &str = "spawnfd-parked-threads.so";
const ZYGOTE: &str = "spawnfd-zygote";

fn main() {
    for folder in ["common", "python", "node", "node-threads", "entry", "zygote"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).expect("cargo sets it");
    // An image that this target cannot have stays empty.
    for name in [OBJECT, OBJECT_WITH_THREADS, ZYGOTE] {
        fs::write(image(name), "").expect("OUT_DIR is writable");
    }
    let architecture = target("ARCH");
    if target("ENV") != "gnu" || !["x86_64", "aarch64"].contains(&architecture.as_str()) {
        return;
    }
    object(OBJECT, &["common", "python", "node", "entry"]);
    // The object with node-threads replaces some functions of libc, so only Node.js gets it.
    if architecture == "x86_64" {
        object(OBJECT_WITH_THREADS, &["common", "python", "node", "node-threads", "entry"]);
    }
    zygote(&architecture);
}

fn object(name: &str, folders: &[&str]) {
    let mut command = compiler(cc::Build::new().pic(true));
    command.arg("-shared");
    // These flags give the object fewer mappings. A forked child spends some microseconds on each
    // mapping, at fork and at exit.
    command.args(["-Wl,-z,relro,-z,now,-z,noexecstack,-z,noseparate-code"]);
    // Run this object's constructors first. The object records which environment variables the constructors of
    // other libraries read.
    command.arg("-Wl,-z,initfirst");
    for folder in folders {
        let files = Path::new(folder).read_dir().expect("the crate has this folder").flatten();
        let mut sources: Vec<_> = files.map(|file| file.path()).collect();
        sources.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
        sources.sort();
        command.arg("-I").arg(folder).args(sources);
    }
    build(command, name);
}

/// Links the zygote without libc, whose start-up would cost more than the zygote's own work.
fn zygote(architecture: &str) {
    let mut command = compiler(cc::Build::new().pic(false));
    command.args(["-static", "-nostdlib", "-no-pie", "-ffreestanding", "-fno-builtin", "-fno-stack-protector"]);
    command.args(["-fno-asynchronous-unwind-tables", "-U_FORTIFY_SOURCE", "-Wl,-z,noexecstack,-z,noseparate-code"]);
    if architecture == "aarch64" {
        // The functions that choose among atomic instructions call getauxval(3).
        command.arg("-mno-outline-atomics");
    }
    command.args(["-Icommon", "-Izygote"]);
    command.args(["authority.c", "connection.c", "request.c", "steps.c"].map(|file| Path::new("common").join(file)));
    command.args(["zygote.c", "libc.c", &format!("{architecture}.c")].map(|file| Path::new("zygote").join(file)));
    build(command, ZYGOTE);
}

fn compiler(build: &mut cc::Build) -> Command {
    let mut command = build.opt_level(2).get_compiler().to_command();
    command.args(["-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-g0", "-Wl,--build-id=none", "-s"]);
    // Few functions that other code calls use all parameters of their type.
    command.args(["-Wall", "-Wextra", "-Wno-unused-parameter"]);
    command
}

fn build(mut command: Command, name: &str) {
    let status = command.arg("-o").arg(image(name)).status().expect("the C compiler runs");
    assert!(status.success(), "{name} does not compile: {command:?}");
}

/// The path of the image that the crate embeds under this name.
fn image(name: &str) -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join(name)
}
