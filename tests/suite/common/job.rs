// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs of a shell's.

use spawnfd::{Command, Job, Output, Run};

use super::eventually;

/// A line for a shell.
pub fn sh(line: &str) -> Command<'static> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    command
}

/// The same, started.
pub fn start(line: &str, run: &Run) -> Job {
    sh(line).start(run).expect("starts")
}

/// What it has written.
pub fn text(output: &Output) -> String {
    output.text().into_owned()
}

/// Waits for what a job is to print next.
pub fn read_until(job: &Job, since: u64, ends: &str) -> (String, u64) {
    eventually(&format!("prints {ends:?}"), || job.read(since).text().contains(ends));
    let chunk = job.read(since);
    (chunk.text().into_owned(), chunk.next)
}
