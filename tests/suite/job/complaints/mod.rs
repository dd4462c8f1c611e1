// SPDX-License-Identifier: MIT OR Apache-2.0
//! Problems that users of coding agents report. Each test shows that the library does not have the problem. If it
//! costs little, the test also shows that `std::process::Command` has the problem.
//!
//! Public reports are named as repository#number. A problem without a number follows from a reported one.

mod hanging;
mod host;
mod leaking;
mod output;
mod trees;

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::job::{both, in_caller, in_engine, sh};
use crate::common::tree::is_alive;
use spawnfd::{Command, Output, Run};
use spawnfd_tests::enough_time;

/// Longer than any test needs on a busy machine, and far shorter than a hang.
const LONG: Duration = Duration::from_secs(60);

/// A command of std that runs a line of shell.
fn std_sh(line: &str) -> std::process::Command {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", line]);
    command
}

/// Runs a line of shell in the caller's thread and in the engine thread, with a timeout, and checks both outputs. The
/// timeout is long enough for the shell to create the file `$0` first.
fn both_timed_out(line: &str, run: &Run, check: impl Fn(Output)) {
    let in_time = |runner: fn(Command<'static>, &Run) -> Output| {
        enough_time(Duration::from_millis(300), |time, done_file| {
            let mut command = sh(line);
            command.arg(done_file);
            runner(command, &run.clone().timeout(time))
        })
    };
    check(in_time(in_caller));
    check(in_time(in_engine));
}

/// Kills a process that this test started, directly or indirectly.
fn kill(pid: u32) {
    // SAFETY: kill takes integers. The process belongs to this test, which has seen it alive.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
}

fn pid_in(text: &str) -> u32 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no pid: {text:?}"))
}

fn pid_from(path: &Path) -> u32 {
    crate::common::eventually("a pid is written", || {
        std::fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
    });
    pid_in(&std::fs::read_to_string(path).expect("written"))
}

/// A call of std that runs in its own thread, because it may hang.
struct StdCall<T> {
    answer: Receiver<T>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static> StdCall<T> {
    fn call(call: impl FnOnce() -> T + Send + 'static) -> StdCall<T> {
        let (sender, answer) = channel();
        let thread = std::thread::spawn(move || _ = sender.send(call()));
        StdCall { answer, thread }
    }

    /// Asserts that the call has not returned after 400 ms, far more time than the program takes.
    #[track_caller]
    fn hangs(&self) {
        let waited = self.answer.recv_timeout(Duration::from_millis(400));
        assert!(
            matches!(waited, Err(RecvTimeoutError::Timeout)),
            "std does not hang here any more: update the documents"
        );
    }

    /// Waits for the call, once the cause of the hang is gone, and returns its result.
    fn finish(self) -> T {
        let answer = self.answer.recv().expect("the call returns in the end");
        self.thread.join().expect("no panic");
        answer
    }
}
