// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles `warm/`, the object that is preloaded into programs to be parked, for the library to carry: C, as it stands between libc and
//! `main` and must bring nothing but itself into a foreign program.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    let warm = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../warm");
    println!("cargo::rerun-if-changed={}", warm.display());
    compile(&warm, "spawnfd-warm.so", &["main", "python", "node"]);
    // For mode fork of what has threads: it takes the place of some functions of libc's, which no other program has to bear.
    compile(&warm, "spawnfd-warm-threads.so", &["main", "python", "node", "threads"]);
}

fn compile(warm: &Path, name: &str, rooms: &[&str]) {
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join(name);
    let compiler = cc::Build::new().opt_level(2).pic(true).get_compiler();
    let mut command = compiler.to_command();
    command.args(["-shared", "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra", "-g0"]);
    command.args(["-Wl,-z,relro,-z,now,-z,noexecstack", "-Wl,--build-id=none", "-s"]);
    // Before any library: what its constructors open and look at is seen.
    command.arg("-Wl,-z,initfirst");
    for room in rooms {
        let Ok(files) = warm.join(room).read_dir() else { continue };
        let mut sources: Vec<_> = files.flatten().map(|file| file.path()).collect();
        sources.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
        sources.sort();
        command.arg("-I").arg(warm.join(room)).args(sources);
    }
    let status = command.arg("-o").arg(&object).status().expect("the C compiler runs");
    assert!(status.success(), "the object to preload does not compile: {command:?}");
}
