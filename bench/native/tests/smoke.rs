// SPDX-License-Identifier: MIT OR Apache-2.0
//! A short run of each benchmark must succeed and write the expected JSON. The tests assert no times.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

fn run(program: &str, name: &str, arguments: &[&str]) -> Value {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let out = directory.join("result.json");
    let output = Command::new(program)
        .args(["--quick", "--out"])
        .arg(&out)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["result.json"], "files left behind");
    serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap()
}

fn count(report: &Value, suite: &str, method: &str) -> u64 {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.filter(|r| r["suite"] == suite && r["method"] == method).map(|r| r["n"].as_u64().unwrap()).sum()
}

#[test]
fn launch_runs_under_the_docker_filter() {
    let only = ["--only", "filter=docker", "--only", "parent=small"];
    let report = run(env!("CARGO_BIN_EXE_bench-launch"), "launch", &only);
    for method in ["vfork", "posix_spawn", "fork_exec", "std"] {
        // The suite first_insn runs with and without a PATH search. The suite lifecycle runs three
        // programs.
        assert_eq!(count(&report, "first_insn", method), 400, "{method}");
        assert_eq!(count(&report, "lifecycle", method), 300, "{method}");
    }
    assert_eq!(count(&report, "parallel", "vfork"), 10);
    assert!(!report["machine"]["kernel"].as_str().unwrap().is_empty());
}

#[test]
fn busy_threads_run_in_the_parent_and_in_another_process() {
    let only = ["suite=first_insn", "filter=none", "parent=threads64", "parent=outside64"];
    let arguments: Vec<_> = only.iter().flat_map(|o| ["--only", *o]).collect();
    let report = run(env!("CARGO_BIN_EXE_bench-launch"), "busy", &arguments);
    let ratios = report["ratios"].as_array().unwrap();
    assert!(ratios.iter().any(|r| r["id"] == "launch.check.vfork_threads64_vs_small"));
    let shares = report["rows"].as_array().unwrap().iter().filter(|r| r["suite"] == "busy_share");
    let shares: Vec<f64> = shares.map(|r| r["median"].as_f64().unwrap()).collect();
    // The share depends on the machine's load, so the test only requires that the threads ran.
    assert!(shares.len() == 2 && shares.iter().all(|&s| s > 0.1), "{shares:?}");
}

#[test]
fn snapshot_measures_each_method() {
    let report = run(env!("CARGO_BIN_EXE_bench-snapshot"), "snapshot", &[]);
    assert_eq!(count(&report, "snapshot", "open"), 100);
    assert_eq!(count(&report, "snapshot", "sendfile"), 100);
}
