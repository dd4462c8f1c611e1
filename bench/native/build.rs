// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the C baselines (-O2) and the small programs that the benchmarks start.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // The baselines always use -O2, because a debug build must not slow them.
    cc::Build::new()
        .files(["baseline/baseline.c", "baseline/same_calls.c"])
        .opt_level(2)
        .warnings_into_errors(true)
        .flag("-std=gnu11")
        .compile("spawnfd_baseline");

    // The programs are in their own directory, because PATH ends with it.
    let programs = out.join("programs");
    std::fs::create_dir_all(&programs).expect("a directory under OUT_DIR");
    let first = programs.join("spawnfd-first-instruction");
    link(
        Path::new("programs/first_instruction.S"),
        &first,
        &["-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-Wl,-z,noexecstack"],
    );
    let list = programs.join("spawnfd-list-fds");
    link(Path::new("programs/list_fds.c"), &list, &["-O2", "-Wall", "-Werror"]);

    println!("cargo::rustc-env=SPAWNFD_BENCH_FIRST_INSTRUCTION={}", first.display());
    println!("cargo::rustc-env=SPAWNFD_BENCH_LIST_FDS={}", list.display());
    println!("cargo::rerun-if-changed=baseline");
    println!("cargo::rerun-if-changed=programs");
}

fn link(source: &Path, output: &Path, flags: &[&str]) {
    let compiler = cc::Build::new().opt_level(2).get_compiler();
    let status = Command::new(compiler.path())
        .args(flags)
        .arg("-o")
        .arg(output)
        .arg(source)
        .status()
        .expect("the C compiler runs");
    assert!(status.success(), "{} does not build: {status}", source.display());
}
