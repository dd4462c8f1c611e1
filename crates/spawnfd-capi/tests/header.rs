// SPDX-License-Identifier: MIT OR Apache-2.0
//! include/spawnfd.h is the header that cbindgen generates from this crate, and C and C++ compilers accept it.

use std::path::{Path, PathBuf};
use std::process::Command;

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/spawnfd.h")
}

#[test]
fn header_is_current() {
    let directory = env!("CARGO_MANIFEST_DIR");
    let config = cbindgen::Config::from_file(Path::new(directory).join("cbindgen.toml")).expect("valid");
    let bindings = cbindgen::Builder::new().with_crate(directory).with_config(config).generate().expect("generated");
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    if std::env::var_os("SPAWNFD_WRITE_HEADER").is_some() {
        std::fs::write(header(), &generated).expect("written");
    }
    let found = std::fs::read(header()).expect("the header exists");
    let advice = "SPAWNFD_WRITE_HEADER=1 cargo test -p spawnfd-capi --test header writes include/spawnfd.h";
    assert!(found == generated, "include/spawnfd.h differs from the source: {advice}");
}

#[test]
fn compilers_accept_the_header() {
    for language in ["c", "c++"] {
        let mut compiler = Command::new("cc");
        compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", language]).arg(header());
        let output = compiler.output().expect("cc starts");
        assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
