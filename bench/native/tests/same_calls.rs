// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C program of `baseline/same_calls.c` makes the same system calls as the library.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};

use spawnfd_bench::methods::same_calls;
use spawnfd_bench::worker::protocol::{MethodSamples, ParentDef, WorkerRequest, WorkerSpec};
use spawnfd_tests::{deadline, skip};

/// The program to start. The library compares the contents of a file that has just changed, so the test does not install
/// the program itself.
const PROGRAM: &str = env!("SPAWNFD_BENCH_FIRST_INSTRUCTION");

/// The system calls of one spawn and wait, as [`name_and_constants`] shows them.
#[derive(Debug, PartialEq, Eq)]
struct Spawn {
    /// From this spawn's clone call to that of the next spawn.
    parent: Vec<String>,
    /// From the clone call to exec.
    child: Vec<String>,
}

#[test]
fn a_spawn_of_the_only_thread_makes_the_same_calls() {
    compare(|method| WorkerRequest::FirstInstruction {
        program: PROGRAM.to_owned(),
        search: false,
        methods: vec![MethodSamples { method, samples: 4, apart: false }],
    });
}

#[test]
fn a_spawn_beside_another_thread_makes_the_same_calls() {
    compare(|method| WorkerRequest::Parallel { program: PROGRAM.to_owned(), method, threads: 1, calls: 4 });
}

fn compare(request: impl Fn(String) -> WorkerRequest) {
    deadline(std::time::Duration::from_secs(60), || {
        if !same_calls::is_supported() {
            return skip("needs pidfds of threads (Linux 6.9), and a thread without seccomp filters");
        }
        let traced = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
        if !traced.is_ok_and(|status| status.success()) {
            return skip("needs strace and the permission to trace");
        }
        let spawn_by = |method: &str| spawn_in(&trace(&request(method.to_owned())));
        let (ours, floor) = (spawn_by("ours"), spawn_by("same_calls"));
        assert!(ours.parent.len() > 5 && ours.child.len() > 5, "{ours:#?}");
        assert_eq!(ours, floor, "left: spawnfd, right: same_calls.c\n{ours:#?}\n{floor:#?}");
    });
}

/// Returns strace's output for a worker that performs one request.
fn trace(request: &WorkerRequest) -> String {
    let parent = ParentDef::default();
    let spec = WorkerSpec { parent, filter: "none".to_owned(), methods: Vec::new(), programs: "/".into() };
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut strace = Command::new("strace")
        // The values of the raw calls differ from run to run, or are long.
        .args(["-f", "-e", "raw=capget,read", "-o"])
        .arg(out.path())
        .args([env!("CARGO_BIN_EXE_bench-launch"), "--worker", &serde_json::to_string(&spec).unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut requests = strace.stdin.take().unwrap();
    writeln!(requests, "{}", serde_json::to_string(request).unwrap()).unwrap();
    drop(requests);
    let output = strace.wait_with_output().unwrap();
    let replies = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !replies.contains("Failed"), "{}: {replies}", output.status);
    std::fs::read_to_string(out.path()).unwrap()
}

/// Finds the spawn before the last one, when the library and the C program have opened all their files.
fn spawn_in(trace: &str) -> Spawn {
    let calls = calls_by_thread(trace);
    let is_spawn = |call: &String| call.contains("CLONE_VFORK");
    let parent = calls.values().find(|calls| calls.iter().any(is_spawn)).expect("no thread calls clone3");
    let spawns: Vec<_> = (0..parent.len()).filter(|&at| is_spawn(&parent[at])).collect();
    let &[.., spawn, next] = &*spawns else { panic!("too few spawns: {parent:#?}") };
    let (_, pid) = parent[spawn].rsplit_once(" = ").expect("clone3 has a result");
    let until_exec = calls[pid].iter().position(|call| call.starts_with("execve(")).expect("the child calls execve");
    let shown = |calls: &[String]| {
        calls.iter().map(|call| name_and_constants(call)).filter(|call| is_no_assertion(call)).collect()
    };
    Spawn { parent: shown(&parent[spawn..next]), child: shown(&calls[pid][..=until_exec]) }
}

/// A debug build asserts that a descriptor is open before it closes the descriptor (std, debug_assert_fd_is_open).
fn is_no_assertion(call: &str) -> bool {
    !call.starts_with("fcntl F_GETFD")
}

/// The system calls of each thread, by the thread's id. strace prints a call in two lines if another thread makes a
/// call meanwhile.
fn calls_by_thread(trace: &str) -> HashMap<&str, Vec<String>> {
    let mut calls: HashMap<_, Vec<String>> = HashMap::new();
    let mut begun: HashMap<_, &str> = HashMap::new();
    for line in trace.lines() {
        let (thread, call) = line.split_once(' ').expect("a line begins with the thread's id");
        let call = call.trim_start();
        if let Some(call) = call.strip_suffix("<unfinished ...>") {
            begun.insert(thread, call);
        } else if let Some((_, rest)) = call.split_once(" resumed>") {
            let call = format!("{}{rest}", begun.remove(thread).expect("a call resumes after it has begun"));
            calls.entry(thread).or_default().push(call);
        } else if !call.starts_with(['+', '-']) {
            calls.entry(thread).or_default().push(call.to_owned());
        }
    }
    calls
}

/// The name of a system call and its constants, such as `close_range CLOSE_RANGE_UNSHARE`.
fn name_and_constants(call: &str) -> String {
    let (name, rest) = call.split_once('(').expect("a call has arguments");
    // Every second part is a string.
    let outside_strings = rest.split('"').step_by(2);
    let words = outside_strings.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let is_constant = |word: &&str| word.len() > 1 && !word.contains(|c: char| c.is_ascii_lowercase());
    let constants = words.filter(is_constant).filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()));
    std::iter::once(name).chain(constants).collect::<Vec<_>>().join(" ")
}
