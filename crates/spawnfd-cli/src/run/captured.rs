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
use crate::failure::{FAILED, Failure, TIMEOUT, reason};
use crate::os;

const HEADING: &str = "Captured runs";
const LIMITS: &str = "Limits of captured runs";

/// The library's names of the limited resources, and the flags that limit them.
const RESOURCES: [(&str, &str); 4] =
    [("memory", "--memory"), ("pids", "--pids"), ("cpu_time", "--cpu-time"), ("cpus", "--cpu-quota")];

#[derive(Debug, Args)]
pub struct Capture {
    /// Run the program in its own session, collect its output, and print the output when the program has ended
    #[arg(long, help_heading = HEADING)]
    capture: bool,
    /// Send SIGTERM to the process tree after this time, and SIGKILL after --grace: seconds, or a number with ms, s,
    /// m or h
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL; 0 sends SIGKILL at once [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    grace: Option<Duration>,
    /// End the process tree when the program has written more than this to both streams together
    #[arg(long, value_name = "BYTES", value_parser = values::size, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    output_limit: Option<u64>,
    /// Limit the memory of the process tree
    #[arg(long, value_name = "BYTES", value_parser = values::positive_size, allow_negative_numbers = true, requires = "capture", help_heading = LIMITS)]
    memory: Option<u64>,
    /// Limit the number of processes and threads of the process tree
    #[arg(long, value_name = "NUMBER", value_parser = values::count, allow_negative_numbers = true, requires = "capture", help_heading = LIMITS)]
    pids: Option<u64>,
    /// Limit the CPU time of the process tree: seconds, or a number with ms, s, m or h
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, allow_negative_numbers = true, requires = "capture", help_heading = LIMITS)]
    cpu_time: Option<Duration>,
    /// Limit the process tree to this many processors, such as 1.5
    #[arg(long, value_name = "NUMBER", value_parser = values::processors, allow_negative_numbers = true, requires = "capture", help_heading = LIMITS)]
    cpu_quota: Option<f64>,
    /// How to enforce these limits [default: auto]
    #[arg(long, value_name = "HOW", requires = "capture", help_heading = LIMITS)]
    enforce: Option<Enforcement>,
    /// How to control the process tree. All tiers but 'group' also end the tree if this command is killed [default:
    /// group]
    #[arg(long, value_name = "TIER", requires = "capture", help_heading = HEADING)]
    tree: Option<Control>,
    /// Fate of processes that outlive the program [default: kill]
    #[arg(long, value_name = "FATE", requires = "capture", help_heading = HEADING)]
    leftovers: Option<Fate>,
    /// Write the complete output to a file in this directory if it exceeds --keep, and print the path. The file is
    /// not deleted
    #[arg(long, value_name = "DIR", requires = "capture", help_heading = HEADING)]
    spill: Option<PathBuf>,
    /// Maximum length of the --spill file [default: 100M]
    #[arg(long, value_name = "BYTES", value_parser = values::size, allow_negative_numbers = true, requires = "spill", help_heading = HEADING)]
    spill_limit: Option<u64>,
    /// Bytes to keep from the beginning and the end of each stream [default: 64000:64000]
    #[arg(long, value_name = "HEAD[:TAIL]", value_parser = values::keep, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    keep: Option<(usize, usize)>,
    /// How long to read after the program has ended while other processes hold its pipes open [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    drain: Option<Duration>,
    /// Read the program's standard input from this file [default: empty input]
    #[arg(long, value_name = "FILE", requires = "capture", conflicts_with = "stdin", help_heading = HEADING)]
    input: Option<PathBuf>,
    /// Give the program a terminal of this size (default 80x24) as its three streams. All output is standard output;
    /// --input is typed
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

/// The mechanisms that may enforce limits.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Enforcement {
    /// A cgroup, otherwise an rlimit; fail if neither is available
    Auto,
    /// A cgroup; fail if none is available
    Cgroup,
    /// A cgroup, otherwise an rlimit; run without the limit if neither is available
    BestEffort,
}

/// The tier of control over the process tree.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Control {
    /// Signal the session, the process group and known descendants
    Group,
    /// Like 'group', with a helper process that ends the tree if this command is killed
    Guard,
    /// Start the program in a new cgroup
    Cgroup,
    /// Start the program in a new pid namespace
    Pidns,
    /// 'cgroup' if available, otherwise 'guard', otherwise 'group'
    Auto,
}

/// The fate of processes that outlive the program.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Fate {
    /// Send SIGKILL
    Kill,
    /// Leave them running
    Detach,
}

/// An ended captured run.
#[derive(Debug)]
pub struct Ended {
    pub output: Output,
    pub code: u8,
    /// The signal to this command that ended the run.
    pub ended_by: Option<i32>,
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

    /// Whether the program's name looks like the value that the user meant for --terminal.
    pub fn is_misplaced_size(&self, name: &OsStr) -> bool {
        self.terminal.is_some() && name.to_str().is_some_and(|name| values::terminal(name).is_ok())
    }

    /// Returns the flag of the limit that an error concerns.
    pub fn limit_flag(error: &Error) -> Option<String> {
        let limit = error.call().strip_prefix("limits(")?;
        RESOURCES.iter().find(|(name, _)| limit.starts_with(name)).map(|(_, flag)| (*flag).to_owned())
    }

    /// Returns the flag that limits a resource.
    pub fn flag_of(resource: &str) -> &'static str {
        RESOURCES.iter().find(|(name, _)| *name == resource).map_or("its limit", |(_, flag)| flag)
    }

    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_default()
    }

    pub fn output_limit(&self) -> u64 {
        self.output_limit.unwrap_or_default()
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
            // Check the directory first. Otherwise the program would run, and part of its output would be lost.
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
            // Wakes the loop below: the other end becomes readable.
            drop(ending);
        };
        os::close_streams_closed_at_start();
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
        let outcome = receive.recv().map_err(|_| Failure::new("internal error: the library reported no result"))?;
        let output = outcome.map_err(failed)?;
        let code = match (output.stop, ended_by) {
            (Stop::Timeout, _) => TIMEOUT,
            (Stop::Cancelled, Some(signal)) => 128 + signal as u8,
            _ => output.status.map_or(FAILED, report::code),
        };
        Ok(Ended { output, code, ended_by })
    }
}
