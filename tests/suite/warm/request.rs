// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzzes the C code with which a parked process reads requests. The code must accept only valid requests, and read
//! only within the message.

use std::process::Command;

use spawnfd_tests::{isolated, scratch};

#[test]
fn the_request_reader_stays_within_the_message() {
    isolated!(limit: std::time::Duration::from_secs(300), fuzz);
}

fn fuzz() {
    let directory = scratch();
    let program = directory.path().join("request");
    let tests = env!("CARGO_MANIFEST_DIR");
    let common = format!("{tests}/../crates/spawnfd-parked/common");
    let status = Command::new("cc")
        .args(["-std=c11", "-O1", "-g", "-Wall", "-Werror", "-D_GNU_SOURCE"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
        .arg(format!("-I{common}"))
        .args([format!("{tests}/suite/warm/request.c"), format!("{common}/request.c")])
        .arg("-o")
        .arg(&program)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    let rounds = if std::env::var_os("SPAWNFD_FULL").is_some() { "1000000" } else { "100000" };
    for seed in ["1", "20261121"] {
        let output = Command::new(&program).args([rounds, seed]).output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The program prints how many requests were accepted, and how many of these were changed at random. If no
        // changed request were accepted, the reader would refuse every change for a trivial reason.
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(numbers.len() == 2 && numbers[0] > 1000 && numbers[1] > 100, "{text}");
    }
}
