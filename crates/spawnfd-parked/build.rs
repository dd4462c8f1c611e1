// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the images that the crate carries: two objects that are preloaded into programs to be parked, and the zygote. They are C
//! because an object that runs between libc and `main` must bring nothing else into a foreign program.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    for folder in ["common", "python", "node", "node-threads", "zygote"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    object("spawnfd-parked.so", &["common", "python", "node"]);
    // Replaces some of libc's functions, so programs without threads do not get it.
    object("spawnfd-parked-threads.so", &["common", "python", "node", "node-threads"]);
    zygote();
}

fn object(name: &str, folders: &[&str]) {
    let mut command = compiler(cc::Build::new().pic(true));
    command.arg("-shared");
    // Each mapping costs a process forked from a parked one some microseconds, at its start and at its end.
    command.args(["-Wl,-z,relro,-z,now,-z,noexecstack,-z,noseparate-code"]);
    // Before any library, so that the object sees what the libraries' constructors open and look at.
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

/// Without libc: its start-up would cost more than all that the program does.
fn zygote() {
    let mut command = compiler(cc::Build::new().pic(false));
    command.args(["-static", "-nostdlib", "-no-pie", "-ffreestanding", "-fno-builtin", "-fno-stack-protector"]);
    command.args(["-fno-asynchronous-unwind-tables", "-U_FORTIFY_SOURCE", "-Wl,-z,noexecstack,-z,noseparate-code"]);
    command.args(["-Icommon", "-Izygote"]);
    command.args(["authority.c", "become.c", "line.c", "request.c"].map(|file| Path::new("common").join(file)));
    command.args(["zygote.c", "libc.c", "x86_64.c"].map(|file| Path::new("zygote").join(file)));
    build(command, "spawnfd-zygote");
}

fn compiler(build: &mut cc::Build) -> Command {
    let mut command = build.opt_level(2).get_compiler().to_command();
    command.args(["-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra", "-g0", "-Wl,--build-id=none", "-s"]);
    command
}

fn build(mut command: Command, name: &str) {
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join(name);
    let status = command.arg("-o").arg(&output).status().expect("the C compiler runs");
    assert!(status.success(), "{name} does not compile: {command:?}");
}
