// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the helper, a static program without libc, from this crate's sources with the compiler that builds the
//! crate. Does nothing if the feature `helper` is off.
//!
//! Cargo has no stable way to embed a built program in a library. The helper needs only `core` and `alloc`, so this
//! script calls the compiler directly. The call needs no other crate, target or network access.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src");
    if env::var_os("CARGO_FEATURE_HELPER").is_none() {
        return;
    }
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let program = PathBuf::from(variable("OUT_DIR")).join("spawnfd-guard");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["src/helper.rs", "--crate-name=spawnfd_guard", "--crate-type=bin", "--edition=2024"]);
    rustc.arg("--target").arg(variable("TARGET")).arg("-o").arg(&program);
    // Optimize for size, because every host runs a guard, and a guard mostly sleeps.
    for option in ["panic=abort", "opt-level=z", "lto=fat", "codegen-units=1", "strip=symbols", "debuginfo=0"] {
        rustc.arg("-C").arg(option);
    }
    // Outlined atomics of aarch64 call getauxval(3) of libc.
    let features = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "aarch64" => "target-feature=+crt-static,-outline-atomics",
        _ => "target-feature=+crt-static",
    };
    for option in ["relocation-model=static", features] {
        rustc.arg("-C").arg(option);
    }
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // The musl target links its own start files, which `-nostartfiles` does not remove.
        rustc.arg("-Clink-self-contained=no");
    }
    for option in ["-nostartfiles", "-nostdlib", "-static", "-Wl,--build-id=none"] {
        rustc.arg(format!("-Clink-arg={option}"));
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let status = rustc.status().expect("the compiler runs");
    assert!(status.success(), "the helper does not compile: {rustc:?}");
}
