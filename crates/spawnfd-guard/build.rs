// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the helper: one static program without libc, from this crate's own sources by the compiler that builds the crate.
//!
//! Cargo has no stable way to build a program for a library to carry. The helper needs `core` and `alloc` only, so the compiler
//! alone is enough: no other crate, no other target, no network.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src");
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let program = PathBuf::from(variable("OUT_DIR")).join("spawnfd-guard");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["src/helper.rs", "--crate-name=spawnfd_guard", "--crate-type=bin", "--edition=2024"]);
    rustc.arg("--target").arg(variable("TARGET")).arg("-o").arg(&program);
    // By the size of what is mapped into every host's guard, not by speed: it sleeps.
    for option in ["panic=abort", "opt-level=z", "lto=fat", "codegen-units=1", "strip=symbols", "debuginfo=0"] {
        rustc.arg("-C").arg(option);
    }
    for option in ["relocation-model=static", "target-feature=+crt-static"] {
        rustc.arg("-C").arg(option);
    }
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // That target brings start files of its own, which `-nostartfiles` does not leave out.
        rustc.arg("-Clink-self-contained=no");
    }
    for option in ["-nostartfiles", "-nostdlib", "-static", "-Wl,--build-id=none", "-Wl,-z,noseparate-code"] {
        rustc.arg(format!("-Clink-arg={option}"));
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let status = rustc.status().expect("the compiler runs");
    assert!(status.success(), "the helper does not compile: {rustc:?}");
}
