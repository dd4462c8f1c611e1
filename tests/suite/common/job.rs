// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs that run a shell script.

use spawnfd::{Command, Job, Output, Run};

use super::eventually;

/// A command that runs a line of shell.
pub fn sh(line: &str) -> Command<'static> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    command
}

/// Starts a line of shell as a job.
pub fn start(line: &str, run: &Run) -> Job {
    sh(line).start(run).expect("starts")
}

/// The output of a finished run as text.
pub fn text(output: &Output) -> String {
    output.text().into_owned()
}

/// Waits until the output after `since` contains `ends`; returns that output and the next cursor.
pub fn read_until(job: &Job, since: u64, ends: &str) -> (String, u64) {
    eventually(&format!("prints {ends:?}"), || job.read(since).text().contains(ends));
    let chunk = job.read(since);
    (chunk.text().into_owned(), chunk.next)
}
