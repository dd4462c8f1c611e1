// SPDX-License-Identifier: MIT OR Apache-2.0
//! No program outlives the command.

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spawnfd_tests::{isolated, scratch};

use crate::common::{LIMIT, command};

/// A program that ignores signals, with a child in its session and a child in another session.
const STUBBORN: &str = "trap '' HUP INT TERM; setsid sleep 1000 & sleep 1000 & echo started >&2; wait";

/// The same with a further child, which has left the session and lost its parent, as a daemon does.
const DAEMONISES: &str = "(setsid sleep 1000 >/dev/null &); \
    trap '' HUP INT TERM; setsid sleep 1000 & sleep 1000 & echo started >&2; wait";

/// Starts the command, and waits until its program prints "started". All processes have the same standard error, so a
/// reader of the pipe reads end of file once they have ended.
fn start(flags: &[&str], script: &str) -> (Child, PipeReader) {
    let (mut output, stderr) = std::io::pipe().unwrap();
    let mut command = command();
    command.arg("run").args(flags).args(["sh", "-c", script]).process_group(0).stdout(Stdio::null()).stderr(stderr);
    let child = command.spawn().unwrap();
    drop(command);
    output.read_exact(&mut [0; 8]).unwrap();
    (child, output)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Asserts that all writers of the pipe exit.
fn assert_all_end(output: &mut impl Read, case: &str) {
    let begun = Instant::now();
    output.read_to_end(&mut Vec::new()).unwrap();
    assert!(begun.elapsed() < LIMIT, "{case}: {:?}", begun.elapsed());
}

/// Starts the command, and sends it a signal when its program has started. Asserts that no process is left.
fn assert_nothing_is_left(flags: &[&str], script: &str, signal: Signal) {
    let (mut child, mut output) = start(flags, script);
    send(&child, signal);
    assert_all_end(&mut output, &format!("{flags:?}, {signal:?}"));
    child.wait().unwrap();
}

/// The number of rounds: 200 in `make test-all`, 10 in `make test`.
fn rounds() -> usize {
    if std::env::var_os("SPAWNFD_FULL").is_some() { 200 } else { 10 }
}

#[test]
fn nothing_outlives_a_killed_command() {
    isolated!(limit: Duration::from_secs(600), || {
        for flags in [&[][..], &["--timeout", "300"], &["--capture", "--stderr", "inherit"], &["--process-group", "0"]] {
            for _ in 0..rounds() {
                assert_nothing_is_left(flags, STUBBORN, Signal::KILL);
            }
        }
        for _ in 0..rounds() {
            assert_nothing_is_left(&["--tree", "subreaper"], DAEMONISES, Signal::KILL);
        }
    });
}

#[test]
fn nothing_outlives_a_command_that_a_signal_ends() {
    isolated!(limit: Duration::from_secs(600), || {
        for (flags, script) in [
            (&["--timeout", "300", "--grace", "0.01"][..], STUBBORN),
            (&["--capture", "--stderr", "inherit", "--grace", "0.01"], STUBBORN),
            (&["--tree", "subreaper", "--grace", "0.01"], DAEMONISES),
        ] {
            for signal in [Signal::INT, Signal::TERM] {
                for _ in 0..rounds() {
                    assert_nothing_is_left(flags, script, signal);
                }
            }
        }
    });
}

/// By default, the command forwards the signal and ends with the program.
#[test]
fn the_command_does_not_end_before_a_program_that_handles_a_signal() {
    const SURVIVES: &str = "trap 'echo caught >&2' INT TERM; setsid sleep 1000 & sleep 1000 & echo started >&2; \
        while :; do sleep 0.05; done";
    isolated!(limit: Duration::from_secs(600), || {
        for signal in [Signal::INT, Signal::TERM] {
            for _ in 0..rounds() {
                let (mut child, mut output) = start(&[], "echo started >&2; exec sleep 1000");
                send(&child, signal);
                assert_all_end(&mut output, &format!("{signal:?}"));
                assert_eq!(child.wait().unwrap().code(), Some(128 + signal.as_raw()));

                let (mut child, mut output) = start(&[], SURVIVES);
                send(&child, signal);
                output.read_exact(&mut [0; 7]).unwrap();
                assert_eq!(child.try_wait().unwrap(), None, "the command ended before its program, after {signal:?}");
                send(&child, Signal::KILL);
                assert_all_end(&mut output, &format!("{signal:?}, SIGKILL"));
                assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
            }
        }
    });
}

/// The shell and the programs of its running command have the write end of a FIFO.
#[test]
fn nothing_outlives_a_session_whose_command_a_signal_ends() {
    isolated!(limit: Duration::from_secs(600), || {
        let directory = scratch();
        let fifo = directory.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let text = format!("exec 2>{}; {DAEMONISES}", fifo.display());
        let request = format!("{{\"run\": \"{text}\"}}\n");
        for flags in [&[][..], &["--tree", "subreaper"], &["dash"]] {
            for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
                for _ in 0..rounds() {
                    let mut child =
                        command().arg("shell").args(flags).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
                    let mut requests = child.stdin.take().unwrap();
                    requests.write_all(request.as_bytes()).unwrap();
                    let mut output = File::open(&fifo).unwrap();
                    output.read_exact(&mut [0; 8]).unwrap();
                    send(&child, signal);
                    assert_all_end(&mut output, &format!("{flags:?}, {signal:?}"));
                    assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
                }
            }
        }
    });
}

#[test]
fn processes_that_outlive_the_program_run_on() {
    isolated!(|| {
        let mut child = command()
            .args(["run", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pid = String::new();
        child.stdout.take().unwrap().read_to_string(&mut pid).unwrap();
        assert!(child.wait().unwrap().success());
        // The guard would kill the process within a second.
        std::thread::sleep(Duration::from_millis(1500));
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).expect("it still runs");
    });
}
