// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs whose output is captured.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use spawnfd::{Command, Error, Output, Stop};

use super::report;
use super::signals::{Signals, Woken};
use super::values;
use crate::failure::{Failure, TIMEOUT, reason};

const HEADING: &str = "Captured runs";

#[derive(Debug, Args)]
pub struct Capture {
    /// Run the program in a session of its own, collect what it writes, and print that when it has ended
    #[arg(long, help_heading = HEADING)]
    capture: bool,
    /// Kill the program and its process group after so long: seconds, or with ms, s, m, h
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "capture", help_heading = HEADING)]
    timeout: Option<Duration>,
    /// Bytes kept of each stream's beginning and end [default: 64000:64000]
    #[arg(long, value_name = "HEAD[:TAIL]", value_parser = values::keep, requires = "capture", help_heading = HEADING)]
    keep: Option<(usize, usize)>,
    /// How long to go on reading after its end, while somebody else holds its pipes [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "capture", help_heading = HEADING)]
    drain: Option<Duration>,
    /// What the program reads; nothing by default
    #[arg(long, value_name = "FILE", requires = "capture", conflicts_with = "stdin", help_heading = HEADING)]
    input: Option<PathBuf>,
}

/// A captured run that is over.
#[derive(Debug)]
pub struct Ended {
    pub output: Output,
    pub code: u8,
}

impl Capture {
    pub fn is_wanted(&self) -> bool {
        self.capture
    }

    fn settings(&self) -> Result<spawnfd::Run, Failure> {
        let mut run = spawnfd::Run::new();
        if let Some(timeout) = self.timeout {
            run = run.timeout(timeout);
        }
        if let Some((head, tail)) = self.keep {
            run = run.keep(head, tail);
        }
        if let Some(drain) = self.drain {
            run = run.drain(drain);
        }
        if let Some(path) = &self.input {
            let flag = format!("--input {}", path.display());
            run = run.input(std::fs::read(path).map_err(|e| Failure::flag(flag, reason(&e)))?);
        }
        Ok(run)
    }

    /// Runs to the end, or until a signal tells this command to end.
    pub fn run(&self, command: &mut Command<'_>, failed: impl Fn(Error) -> Failure) -> Result<Ended, Failure> {
        let settings = self.settings()?;
        let signals = Signals::watch()?;
        let (send, receive) = mpsc::channel();
        let (over, ending) = UnixStream::pair().map_err(|e| Failure::new(reason(&e)))?;
        let done = move |outcome| {
            let _ = send.send(outcome);
            // Readable at the other end from now on.
            drop(ending);
        };
        let handle = command.run_then(&settings, done).map_err(&failed)?;
        let mut ended_by = None;
        loop {
            match signals.sleep(over.as_fd())? {
                Woken::Ready => break,
                Woken::Signal(signal) => {
                    ended_by.get_or_insert(signal);
                    handle.cancel();
                }
            }
        }
        let outcome = receive.recv().map_err(|_| Failure::new("the run was lost"))?;
        let output = outcome.map_err(failed)?;
        let code = match (output.stop, ended_by) {
            (Stop::Timeout, _) => TIMEOUT,
            (Stop::Cancelled, Some(signal)) => 128 + signal as u8,
            _ => report::code(output.status),
        };
        Ok(Ended { output, code })
    }
}
