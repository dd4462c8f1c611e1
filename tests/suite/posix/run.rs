// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of spawnfd_run(3), by the C program of run.c and remote.c: their effects and errors, in forked
//! processes, under valgrind and the sanitizers, and the end of the process tree when the program is killed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use spawnfd_tests::{isolated, scratch, skip};

use crate::preload::libraries;

const SOURCES: [&str; 2] = ["run.c", "remote.c"];
/// The tests that start no program.
const WITHOUT_PROGRAMS: [&str; 2] = ["null", "errors"];
const TESTS: [&str; 11] =
    ["null", "errors", "objects", "options", "jobs", "sessions", "warm", "remote", "free", "fork", "threads"];

#[test]
#[ignore = "the server of the test `remote`: this test binary, whose first lines are no frames"]
fn serves_on_purpose() {
    let ended = spawnfd_remote::serve(&Default::default());
    eprintln!("{ended:?}");
    std::process::exit(0);
}

/// Compiles the program against the built library. `None`: the compiler lacks an option.
fn compile(libraries: &Path, directory: &Path, options: &[&str]) -> Option<PathBuf> {
    let (root, program) = (Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), directory.join("run"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compiler.args(SOURCES.map(|name| root.join("tests/suite/posix").join(name)));
    compiler.arg(format!("-I{}", root.join("include").display()));
    compiler.arg(format!("-L{}", libraries.display())).args(["-lspawnfd", "-lpthread"]);
    compiler.arg(format!("-Wl,-rpath,{}", libraries.display())).args(options);
    let Output { status, stderr, .. } = compiler.output().expect("cc starts");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success() || !options.is_empty(), "{stderr}");
    if !status.success() {
        skip(&format!("cc has no {options:?}: {stderr}"));
    }
    status.success().then_some(program)
}

/// Runs tests of the program. `wrapper` comes before the program.
#[track_caller]
fn run_all(program: &Path, wrapper: &[&str], tests: &[&str]) {
    for &test in tests {
        let words: Vec<_> = wrapper.iter().map(Path::new).chain([program, Path::new(test)]).collect();
        let mut host = Command::new(words[0]);
        host.args(&words[1..]).env("SERVER", std::env::current_exe().expect("the path of this test"));
        let Output { status, stdout, stderr } = host.output().expect("starts");
        let shown = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{test}: {status}: {shown}");
    }
}

#[test]
fn functions_work_in_a_c_program() {
    isolated!(|| {
        let (Some(libraries), directory) = (libraries(), scratch()) else { return };
        run_all(&compile(&libraries, directory.path(), &[]).expect("compiled"), &[], &TESTS);
    });
}

#[test]
fn functions_work_in_a_program_with_the_static_library() {
    isolated!(|| {
        let (Some(libraries), directory) = (libraries(), scratch()) else { return };
        let archive = libraries.join("libspawnfd.a").into_os_string().into_string().expect("text");
        let sources = SOURCES.map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("suite/posix").join(name));
        let program = directory.path().join("run");
        let mut compiler = Command::new("cc");
        compiler.arg("-o").arg(&program).args(sources).arg(format!("-I{}/../include", env!("CARGO_MANIFEST_DIR")));
        let Output { status, stderr, .. } =
            compiler.arg(archive).args(["-ldl", "-lm", "-lpthread"]).output().expect("cc starts");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        run_all(&program, &[], &TESTS);
    });
}

#[test]
fn sanitizers_find_no_error() {
    isolated!(|| {
        let (Some(libraries), directory) = (libraries(), scratch()) else { return };
        let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        if let Some(program) = compile(&libraries, directory.path(), &options) {
            run_all(&program, &[], &TESTS);
        }
    });
}

#[test]
fn valgrind_finds_no_error_and_no_leak() {
    isolated!(|| {
        let (Some(libraries), directory) = (libraries(), scratch()) else { return };
        if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
            return skip("valgrind is not installed");
        }
        // Under a filter, the library asks child processes which calls it may make.
        if fs::read_to_string("/proc/self/status").is_ok_and(|status| !status.contains("Seccomp:\t0")) {
            return skip("valgrind does not support clone(), which the library needs under a seccomp filter");
        }
        let program = compile(&libraries, directory.path(), &[]).expect("compiled");
        // std keeps the handle of a thread by an interior pointer, so its memory is "possibly lost".
        let leaks = ["--leak-check=full", "--errors-for-leak-kinds=definite,indirect"];
        let wrapper = [&["valgrind", "--quiet", "--error-exitcode=9", "--track-fds=yes"], &leaks[..]].concat();
        run_all(&program, &wrapper, &WITHOUT_PROGRAMS);
    });
}

/// Kills the program in the middle of a call. The processes of its tree end.
#[track_caller]
fn tree_ends_with(test: &str) {
    let (Some(libraries), directory) = (libraries(), scratch()) else { return };
    let program = compile(&libraries, directory.path(), &[]).expect("compiled");
    let mut host = Command::new(program).arg(test).stdout(Stdio::piped()).spawn().expect("starts");
    let mut stdout = BufReader::new(host.stdout.take().expect("a pipe"));
    let mut pid = String::new();
    stdout.read_line(&mut pid).expect("a pipe");
    let state = Path::new("/proc").join(pid.trim()).join("stat");
    assert!(state.exists(), "{test}: no process {pid:?}");
    host.kill().expect("own child");
    assert_eq!(host.wait().expect("own child").signal(), Some(libc::SIGKILL));
    // All processes of the tree have the pipe open until they end.
    assert_eq!(stdout.read_to_end(&mut Vec::new()).expect("a pipe"), 0);
}

#[test]
fn tree_of_a_run_ends_with_a_killed_host() {
    isolated!(|| tree_ends_with("hold-run"));
}

#[test]
fn tree_of_a_job_ends_with_a_killed_host() {
    isolated!(|| tree_ends_with("hold-job"));
}

#[test]
fn tree_of_a_session_ends_with_a_killed_host() {
    isolated!(|| tree_ends_with("hold-session"));
}
