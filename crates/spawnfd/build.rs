// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles `warm/` for the library to carry: the object that is preloaded into programs to be parked, and the program that is parked to
//! execute others. C, as the one stands between libc and `main` and must bring nothing but itself into a foreign program, and the other
//! shares its steps.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let warm = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../warm");
    println!("cargo::rerun-if-changed={}", warm.display());
    object(&warm, "spawnfd-warm.so", &["main", "python", "node"]);
    // For what has threads: it takes the place of some functions of libc's, which no other program has to bear.
    object(&warm, "spawnfd-warm-threads.so", &["main", "python", "node", "threads"]);
    zygote(&warm);
}

fn object(warm: &Path, name: &str, rooms: &[&str]) {
    let mut command = compiler(cc::Build::new().pic(true));
    command.arg("-shared");
    // Few mappings: each costs what is forked from a parked process some microseconds at its birth and at its end.
    command.args(["-Wl,-z,relro,-z,now,-z,noexecstack,-z,noseparate-code"]);
    // Before any library: what its constructors open and look at is seen.
    command.arg("-Wl,-z,initfirst");
    for room in rooms {
        let Ok(files) = warm.join(room).read_dir() else { continue };
        let mut sources: Vec<_> = files.flatten().map(|file| file.path()).collect();
        sources.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
        sources.sort();
        command.arg("-I").arg(warm.join(room)).args(sources);
    }
    build(command, name);
}

/// Without libc: its start-up would cost more than all that the program does.
fn zygote(warm: &Path) {
    let mut command = compiler(cc::Build::new().pic(false));
    command.args(["-static", "-nostdlib", "-no-pie", "-ffreestanding", "-fno-builtin", "-fno-stack-protector"]);
    command.args(["-fno-asynchronous-unwind-tables", "-U_FORTIFY_SOURCE", "-Wl,-z,noexecstack,-z,noseparate-code"]);
    for room in ["main", "zygote"] {
        command.arg("-I").arg(warm.join(room));
    }
    command.args(["authority.c", "become.c", "line.c", "request.c"].map(|file| warm.join("main").join(file)));
    command.args(["zygote.c", "libc.c", "x86_64.c"].map(|file| warm.join("zygote").join(file)));
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
