// SPDX-License-Identifier: MIT OR Apache-2.0
//! No program outlives the command.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spawnfd_tests::isolated;

use crate::common::{LIMIT, command};

/// A program that ignores signals, with a child in its session and a child in another session.
const STUBBORN: &str = "trap '' HUP INT TERM; setsid sleep 1000 & sleep 1000 & echo started >&2; wait";

/// Starts the command, waits until its program has started, and sends the command a signal. All processes have the
/// same standard error, so the test reads end of file once they have ended.
fn assert_nothing_is_left(flags: &[&str], signal: Signal) {
    let (mut output, stderr) = std::io::pipe().unwrap();
    let mut command = command();
    command.arg("run").args(flags).args(["sh", "-c", STUBBORN]).process_group(0).stdout(Stdio::null()).stderr(stderr);
    let mut child = command.spawn().unwrap();
    drop(command);
    output.read_exact(&mut [0; 8]).unwrap();
    kill_process(Pid::from_child(&child), signal).unwrap();
    let begun = Instant::now();
    output.read_to_end(&mut Vec::new()).unwrap();
    assert!(begun.elapsed() < LIMIT, "{flags:?}, {signal:?}: {:?}", begun.elapsed());
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
                assert_nothing_is_left(flags, Signal::KILL);
            }
        }
    });
}

#[test]
fn nothing_outlives_a_command_that_a_signal_ends() {
    isolated!(limit: Duration::from_secs(600), || {
        for flags in [&["--timeout", "300", "--grace", "0.01"][..], &["--capture", "--stderr", "inherit", "--grace", "0.01"]] {
            for signal in [Signal::INT, Signal::TERM] {
                for _ in 0..rounds() {
                    assert_nothing_is_left(flags, signal);
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
