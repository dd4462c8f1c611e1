// SPDX-License-Identifier: MIT OR Apache-2.0
//! What users of agents report, each as a test: it does not happen here. Where it is cheap to show, it is shown to happen with the
//! platform's own way, `std::process::Command`.
//!
//! Public reports are named as repository#number; what has none is what these came from, or come to.

mod hanging;
mod host;
mod leaking;
mod output;
mod trees;

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use spawnfd::{Command, Output, Run};
use spawnfd_tests::enough_time;

/// Longer than anything here takes on a busy machine, and far less than what hangs would.
const LONG: Duration = Duration::from_secs(60);

fn sh(line: &str) -> Command<'static> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    command
}

/// The same by the platform.
fn platform_sh(line: &str) -> std::process::Command {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", line]);
    command
}

fn here(mut command: Command<'static>, run: &Run) -> Output {
    command.run_with(run).expect("runs")
}

fn beside(mut command: Command<'static>, run: &Run) -> Output {
    let (sender, receiver) = channel();
    let done = move |output| sender.send(output).expect("waited for");
    command.run_then(run, done).expect("starts");
    receiver.recv().expect("comes").expect("runs")
}

/// Runs in the caller's thread, and in the library's.
fn both(command: impl Fn() -> Command<'static>, run: &Run, check: impl Fn(Output)) {
    check(here(command(), run));
    check(beside(command(), run));
}

/// The same for a line that ends by a timeout, which is over after it has left its mark (`$0`).
fn both_timed_out(line: &str, run: &Run, check: impl Fn(Output)) {
    let in_time = |way: fn(Command<'static>, &Run) -> Output| {
        enough_time(Duration::from_millis(300), |time, mark| {
            let mut command = sh(line);
            command.arg(mark);
            way(command, &run.clone().timeout(time))
        })
    };
    check(in_time(here));
    check(in_time(beside));
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// Kills a process that this test has had started.
fn kill(pid: u32) {
    // SAFETY: integers only; the process is this test's own and was seen alive.
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

/// A call of the platform in a thread of its own.
struct Platform<T> {
    answer: Receiver<T>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static> Platform<T> {
    fn call(call: impl FnOnce() -> T + Send + 'static) -> Platform<T> {
        let (sender, answer) = channel();
        let thread = std::thread::spawn(move || _ = sender.send(call()));
        Platform { answer, thread }
    }

    /// It has not come back after far more time than the program takes.
    #[track_caller]
    fn hangs(&self) {
        let waited = self.answer.recv_timeout(Duration::from_millis(400));
        assert!(matches!(waited, Err(RecvTimeoutError::Timeout)), "the platform does it now, too: tell the documents");
    }

    /// What it gives once the cause is gone.
    fn finish(self) -> T {
        let answer = self.answer.recv().expect("it comes in the end");
        self.thread.join().expect("no panic");
        answer
    }
}
