// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs whose output is captured.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use rustix::fs::{Access, access};
use spawnfd::tree::Want;
use spawnfd::{Command, Enforce, Error, Leftovers, Limits, Output, Spill, Stop, TerminalSize};

use super::report;
use super::signals::{Signals, Woken};
use super::values;
use crate::failure::{Failure, OURS, TIMEOUT, reason};
use crate::os;

const HEADING: &str = "Captured runs";
const LIMITS: &str = "Limits of captured runs";

#[derive(Debug, Args)]
pub struct Capture {
    /// Run the program in a session of its own, collect what it writes, and print that when it has ended
    #[arg(long, help_heading = HEADING)]
    capture: bool,
    /// Tell the program's process tree to end (TERM) after so long: seconds, or with ms, s, m, h
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "capture", help_heading = HEADING)]
    timeout: Option<Duration>,
    /// How long it has for that before it is killed; 0: it is killed at once [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "capture", help_heading = HEADING)]
    grace: Option<Duration>,
    /// End the program when it has written so many bytes
    #[arg(long, value_name = "BYTES", value_parser = values::size, requires = "capture", help_heading = HEADING)]
    output_limit: Option<u64>,
    /// Memory the process tree may use
    #[arg(long, value_name = "BYTES", value_parser = values::size, requires = "capture", help_heading = LIMITS)]
    memory: Option<u64>,
    /// Processes and threads it may have at once
    #[arg(long, value_name = "NUMBER", requires = "capture", help_heading = LIMITS)]
    pids: Option<u64>,
    /// CPU time it may use: seconds, or with ms, s, m, h
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "capture", help_heading = LIMITS)]
    cpu_time: Option<Duration>,
    /// How many processors' worth of CPU time it gets at once, as 1.5
    #[arg(long, value_name = "NUMBER", requires = "capture", help_heading = LIMITS)]
    cpu_quota: Option<f64>,
    /// What will do to enforce these limits [default: auto]
    #[arg(long, value_name = "HOW", requires = "capture", help_heading = LIMITS)]
    enforce: Option<Enforcement>,
    /// How its process tree is controlled; all but 'group' end it with this command, too [default: group]
    #[arg(long, value_name = "TIER", requires = "capture", help_heading = HEADING)]
    tree: Option<Control>,
    /// What becomes of processes it leaves behind [default: kill]
    #[arg(long, value_name = "FATE", requires = "capture", help_heading = HEADING)]
    leftovers: Option<Fate>,
    /// Directory for a file with all the output, when that is more than is kept; its path is printed, and it stays
    #[arg(long, value_name = "DIR", requires = "capture", help_heading = HEADING)]
    spill: Option<PathBuf>,
    /// Length of that file at most [default: 100M]
    #[arg(long, value_name = "BYTES", value_parser = values::size, requires = "spill", help_heading = HEADING)]
    spill_limit: Option<u64>,
    /// Bytes kept of each stream's beginning and end [default: 64000:64000]
    #[arg(long, value_name = "HEAD[:TAIL]", value_parser = values::keep, requires = "capture", help_heading = HEADING)]
    keep: Option<(usize, usize)>,
    /// How long to go on reading after its end, while somebody else holds its pipes [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = values::duration, requires = "capture", help_heading = HEADING)]
    drain: Option<Duration>,
    /// What the program reads; nothing by default
    #[arg(long, value_name = "FILE", requires = "capture", conflicts_with = "stdin", help_heading = HEADING)]
    input: Option<PathBuf>,
    /// Give the program a terminal of that size, 80x24 by default, as its three streams; all it writes is standard output, and --input is typed
    #[arg(
        long,
        value_name = "COLSxROWS",
        value_parser = values::terminal,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "80x24",
        requires = "capture",
        conflicts_with_all = ["stdin", "stdout", "stderr", "process-group", "controlling-terminal", "foreground"],
        help_heading = HEADING
    )]
    terminal: Option<TerminalSize>,
}

/// What will do to enforce limits.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Enforcement {
    /// A cgroup, else an rlimit, else it is an error
    Auto,
    /// A cgroup, else it is an error
    Cgroup,
    /// A cgroup, else an rlimit, else as far as that goes
    BestEffort,
}

/// How far control of the process tree is to reach.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Control {
    /// Session, process group and known descendants
    Group,
    /// The same, watched by a helper
    Guard,
    /// A cgroup of its own
    Cgroup,
    /// A pid namespace of its own
    Pidns,
    /// The most that can be had
    Auto,
}

/// What becomes of processes that outlive the program.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Fate {
    Kill,
    Detach,
}

/// An ended captured run.
#[derive(Debug)]
pub struct Ended {
    pub output: Output,
    pub code: u8,
}

impl Capture {
    pub fn is_wanted(&self) -> bool {
        self.capture
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::new();
        limits.memory = self.memory;
        limits.pids = self.pids;
        limits.cpu_time = self.cpu_time;
        limits.cpus = self.cpu_quota;
        match self.enforce {
            None | Some(Enforcement::Auto) => limits,
            Some(Enforcement::Cgroup) => limits.enforce(Enforce::Cgroup),
            Some(Enforcement::BestEffort) => limits.enforce(Enforce::BestEffort),
        }
    }

    /// Whether the program's name looks like the terminal size that the user meant for the flag.
    pub fn misses_size(&self, name: &OsStr) -> bool {
        self.terminal.is_some() && name.to_str().is_some_and(|name| values::terminal(name).is_ok())
    }

    /// Returns the flag of the limit that an error concerns.
    pub fn limit_flag(error: &Error) -> Option<String> {
        let limit = error.call().strip_prefix("limits(")?;
        let names = [("memory", "--memory"), ("pids", "--pids"), ("cpu_time", "--cpu-time"), ("cpus", "--cpu-quota")];
        names.iter().find(|(name, _)| limit.starts_with(name)).map(|(_, flag)| (*flag).to_owned())
    }

    fn settings(&self) -> Result<spawnfd::Run, Failure> {
        let mut run = spawnfd::Run::new().limits(self.limits());
        if let Some(timeout) = self.timeout {
            run = run.timeout(timeout);
        }
        if let Some((head, tail)) = self.keep {
            run = run.keep(head, tail);
        }
        if let Some(grace) = self.grace {
            run = run.grace(grace);
        }
        if let Some(bytes) = self.output_limit {
            run = run.output_limit(bytes);
        }
        if let Some(control) = self.tree {
            run = run.tree(match control {
                Control::Group => Want::Group,
                Control::Guard => Want::Guard,
                Control::Cgroup => Want::Cgroup,
                Control::Pidns => Want::Pidns,
                Control::Auto => Want::Auto,
            });
        }
        if let Some(fate) = self.leftovers {
            run = run.leftovers(match fate {
                Fate::Kill => Leftovers::Kill,
                Fate::Detach => Leftovers::Detach,
            });
        }
        if let Some(dir) = &self.spill {
            // Check before the start: otherwise the program would run, and its output would be lost.
            access(dir.join("."), Access::WRITE_OK | Access::EXEC_OK)
                .map_err(|e| Failure::flag(format!("--spill {}", dir.display()), reason(&e.into())))?;
            run = run.spill(Spill::new(self.spill_limit.unwrap_or(100 << 20)).dir(dir).persist());
        }
        if let Some(drain) = self.drain {
            run = run.drain(drain);
        }
        if let Some(size) = self.terminal {
            run = run.terminal(size);
        }
        if let Some(path) = &self.input {
            let flag = format!("--input {}", path.display());
            run = run.input(std::fs::read(path).map_err(|e| Failure::flag(flag, reason(&e)))?);
        }
        Ok(run)
    }

    /// Runs the program to its end, or until a signal ends this command.
    pub fn run(&self, command: &mut Command<'_>, failed: impl Fn(Error) -> Failure) -> Result<Ended, Failure> {
        let settings = self.settings()?;
        let signals = Signals::watch(None)?;
        let (send, receive) = mpsc::channel();
        let (over, ending) = UnixStream::pair().map_err(|e| Failure::new(reason(&e)))?;
        let done = move |outcome| {
            let _ = send.send(outcome);
            // This makes the other end readable.
            drop(ending);
        };
        os::close_as_it_began();
        let handle = command.run_then(&settings, done).map_err(&failed)?;
        let mut ended_by = None;
        loop {
            match signals.sleep(over.as_fd())? {
                Woken::Ready => break,
                Woken::Signal { number, .. } => {
                    ended_by.get_or_insert(number);
                    handle.cancel();
                }
            }
        }
        let outcome = receive.recv().map_err(|_| Failure::new("the run was lost"))?;
        let output = outcome.map_err(failed)?;
        let code = match (output.stop, ended_by) {
            (Stop::Timeout, _) => TIMEOUT,
            (Stop::Cancelled, Some(signal)) => 128 + signal as u8,
            _ => output.status.map_or(OURS, report::code),
        };
        Ok(Ended { output, code })
    }
}
