// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program and captures its output (`--capture`).

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::fs::{Access, access};
use spawnfd::job::{Event, EventOptions, Events, Leftovers, Spill, Stop, TerminalSize};
use spawnfd::limits::{Enforce, Limits};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Error, Output};

use super::report;
use super::signals::{Signals, Woken};
use super::values;
use crate::failure::{FAILED, Failure, TIMEOUT, print_to, reason};
use crate::os;

const SUPERVISION: &str = "Time limit and process tree";
const LIMITS: &str = "Limits of the process tree";
const HEADING: &str = "Captured runs";

/// The library's names of the limited resources, and the flags that limit them.
const RESOURCES: [(&str, &str); 4] =
    [("memory", "--memory"), ("pids", "--pids"), ("cpu_time", "--cpu-time"), ("cpus", "--cpu-quota")];

#[derive(Debug, Args)]
pub struct Capture {
    /// Run the program in its own session, collect its output, and print the output when the program has ended
    #[arg(long, help_heading = HEADING)]
    capture: bool,
    /// Also print the output as it arrives, and not at the end. --json then prints on standard error
    #[arg(long, requires = "capture", conflicts_with = "combined", help_heading = HEADING)]
    stream: bool,
    /// Send SIGTERM to the process tree after this time, and SIGKILL after --grace: seconds, or a number with ms, s,
    /// m or h
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true, help_heading = SUPERVISION)]
    timeout: Option<Duration>,
    /// Do the same once the program has written no output for this time
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    idle_timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL; 0 sends SIGKILL at once [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true, help_heading = SUPERVISION)]
    grace: Option<Duration>,
    /// End the process tree when the program has written more than this to both streams together
    #[arg(long, value_name = "BYTES", value_parser = values::size, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    output_limit: Option<u64>,
    /// Limit the memory of the process tree
    #[arg(long, value_name = "BYTES", value_parser = values::positive_size, allow_negative_numbers = true, help_heading = LIMITS)]
    memory: Option<u64>,
    /// Limit the number of processes and threads of the process tree
    #[arg(long, value_name = "NUMBER", value_parser = values::count, allow_negative_numbers = true, help_heading = LIMITS)]
    pids: Option<u64>,
    /// Limit the CPU time of the process tree: seconds, or a number with ms, s, m or h
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, allow_negative_numbers = true, help_heading = LIMITS)]
    cpu_time: Option<Duration>,
    /// Limit the process tree to this many processors, such as 1.5
    #[arg(long, value_name = "NUMBER", value_parser = values::processors, allow_negative_numbers = true, help_heading = LIMITS)]
    cpu_quota: Option<f64>,
    /// How to enforce these limits [default: auto]
    #[arg(long, value_name = "HOW", help_heading = LIMITS)]
    enforce: Option<Enforcement>,
    /// How to control the process tree. All tiers but 'group' also end the tree if this command is killed [default:
    /// guard, or group if no guard can be started]
    #[arg(long, value_name = "TIER", help_heading = SUPERVISION)]
    tree: Option<Control>,
    /// Fate of processes that outlive the program [default: kill]
    #[arg(long, value_name = "FATE", help_heading = SUPERVISION)]
    leftovers: Option<Fate>,
    /// Time that other processes of the tree have to end after the program has ended. Meanwhile their output is
    /// captured, too [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_negative_numbers = true, help_heading = SUPERVISION)]
    drain: Option<Duration>,
    /// Write the complete output to a file in this directory if it exceeds --keep, and print the path. The file is
    /// not deleted
    #[arg(long, value_name = "DIR", requires = "capture", help_heading = HEADING)]
    spill: Option<PathBuf>,
    /// Maximum length of the --spill file [default: 100M]
    #[arg(long, value_name = "BYTES", value_parser = values::size, allow_negative_numbers = true, requires = "spill", help_heading = HEADING)]
    spill_limit: Option<u64>,
    /// Bytes to keep from the beginning and the end of each stream, or 'all' [default: 64000:64000]
    #[arg(long, value_name = "HEAD[:TAIL]", value_parser = values::keep, allow_negative_numbers = true, requires = "capture", help_heading = HEADING)]
    keep: Option<(usize, usize)>,
    /// Put a line with this text where output is omitted; '{omitted}' in it stands for the number of bytes. '' for no
    /// line [default: '[… {omitted} omitted …]']
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, requires = "capture", help_heading = HEADING)]
    marker: Option<String>,
    /// Print both streams in order of arrival, each on its own stream; with --json, also as one list
    #[arg(long, requires = "capture", help_heading = HEADING)]
    combined: bool,
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
    /// A cgroup, otherwise checks by this command at intervals, of memory in use and processes, or an rlimit (CPU time);
    /// fail if none is available
    Watch,
    /// A cgroup, otherwise an rlimit; run without the limit if neither is available
    BestEffort,
}

/// The tier of control over the process tree.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Control {
    /// Signal the session, the process group and known descendants
    Group,
    /// Like 'group', with a helper process that ends the tree if this command is killed
    Guard,
    /// Start the program in a new cgroup
    Cgroup,
    /// Start the program in a new pid namespace
    Pidns,
    /// Start the program as a child of a helper process to which all orphans of the tree return
    Subreaper,
    /// 'cgroup' if available, otherwise 'subreaper', 'guard', or 'group'
    Auto,
}

impl From<Control> for TreeControl {
    fn from(control: Control) -> TreeControl {
        match control {
            Control::Group => TreeControl::Group,
            Control::Guard => TreeControl::Guard,
            Control::Cgroup => TreeControl::Cgroup,
            Control::Pidns => TreeControl::Pidns,
            Control::Subreaper => TreeControl::Subreaper,
            Control::Auto => TreeControl::Auto,
        }
    }
}

/// The fate of processes that outlive the program.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Fate {
    /// Send SIGKILL
    Kill,
    /// Leave them running
    Detach,
}

/// The result of a captured run that has ended.
#[derive(Debug)]
pub struct Ended {
    pub output: Output,
    pub code: u8,
    /// The signal that this command received and that ended the run.
    pub ended_by: Option<i32>,
}

impl Capture {
    /// Whether to capture the program's output.
    pub fn is_wanted(&self) -> bool {
        self.capture
    }

    /// Whether to print the captured output as it arrives.
    pub fn streams(&self) -> bool {
        self.stream
    }

    /// Whether a flag asks for control of the program's process tree, with or without capturing its output.
    pub fn supervises(&self) -> bool {
        self.capture
            || self.timeout.is_some()
            || self.grace.is_some()
            || self.tree.is_some()
            || self.leftovers.is_some()
            || self.drain.is_some()
            || self.enforce.is_some()
            || self.memory.is_some()
            || self.pids.is_some()
            || self.cpu_time.is_some()
            || self.cpu_quota.is_some()
    }

    fn limits(&self) -> Limits {
        let limits = Limits::new().memory(self.memory).pids(self.pids).cpu_time(self.cpu_time).cpus(self.cpu_quota);
        match self.enforce {
            None | Some(Enforcement::Auto) => limits,
            Some(Enforcement::Cgroup) => limits.enforce(Enforce::Cgroup),
            Some(Enforcement::Watch) => limits.enforce(Enforce::Watch),
            Some(Enforcement::BestEffort) => limits.enforce(Enforce::BestEffort),
        }
    }

    /// Whether the program's name looks like the value that the user meant for --terminal.
    pub fn is_misplaced_size(&self, name: &OsStr) -> bool {
        self.terminal.is_some() && name.to_str().is_some_and(|name| values::terminal(name).is_ok())
    }

    /// Returns the flag of the option of the run that an error concerns.
    pub fn flag_of_error(error: &Error) -> Option<String> {
        if error.call().starts_with("marker(") {
            return Some("--marker".to_owned());
        }
        let limit = error.call().strip_prefix("limits(")?;
        RESOURCES.iter().find(|(name, _)| limit.starts_with(name)).map(|(_, flag)| (*flag).to_owned())
    }

    /// Returns the flag that limits a resource.
    pub fn flag_of(resource: &str) -> &'static str {
        RESOURCES.iter().find(|(name, _)| *name == resource).map_or("its limit", |(_, flag)| flag)
    }

    /// Whether the output says where bytes are omitted.
    pub fn has_marker(&self) -> bool {
        self.marker.as_deref() != Some("")
    }

    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_default()
    }

    pub fn idle_timeout(&self) -> Duration {
        self.idle_timeout.unwrap_or_default()
    }

    pub fn output_limit(&self) -> u64 {
        self.output_limit.unwrap_or_default()
    }

    fn settings(&self) -> Result<spawnfd::Run, Failure> {
        let mut run = spawnfd::Run::new().limits(self.limits()).combined(self.combined);
        if let Some(timeout) = self.timeout {
            run = run.timeout(timeout);
        }
        if let Some(timeout) = self.idle_timeout {
            run = run.idle_timeout(timeout);
        }
        if let Some((head, tail)) = self.keep {
            run = run.keep(head, tail);
        }
        if let Some(marker) = &self.marker {
            run = run.marker(Some(marker));
        }
        if let Some(grace) = self.grace {
            run = run.grace(grace);
        }
        if let Some(bytes) = self.output_limit {
            run = run.output_limit(bytes);
        }
        if let Some(tier) = self.tree {
            run = run.tree(TreeControl::from(tier));
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
    /// `shares_group`: the program is in this command's process group, so that the terminal's signals reach it.
    pub fn run(
        &self,
        command: &mut Command<'_>,
        shares_group: bool,
        failed: impl Fn(Error) -> Failure,
    ) -> Result<Ended, Failure> {
        let mut settings = self.settings()?;
        if shares_group && self.tree.is_none() {
            // In the lower tiers, the group of the program is necessary to find processes whose parents have ended.
            settings = settings.tree(TreeControl::Auto);
        }
        let signals = Signals::watch(None)?;
        let (woken, wake) = UnixStream::pair().map_err(|e| Failure::new(reason(&e)))?;
        let nonblocking = [&woken, &wake].into_iter().try_for_each(|socket| socket.set_nonblocking(true));
        nonblocking.map_err(|e| Failure::new(reason(&e)))?;
        let wake = Arc::new(wake);
        let write = move || _ = (&*wake).write(&[0]);
        os::close_streams_closed_at_start();
        let (job, mut events) = if self.stream {
            let (job, mut events) = command.start_events(&settings, EventOptions::default()).map_err(&failed)?;
            events.on_event(write.clone());
            (job, Some(events))
        } else {
            (command.start(&settings).map_err(&failed)?, None)
        };
        job.when_done(write);
        let mut ended_by = None;
        let mut printed = Ok(true);
        let outcome = loop {
            // Check for the outcome before taking the events. If the run has ended, the loop below then takes all its
            // events.
            let outcome = job.try_wait().map_err(&failed)?;
            while let Some(event) = events.as_mut().and_then(Events::try_next)
                && event != Event::End
            {
                if let (Ok(true), Event::Chunk { stream, bytes, .. }) = (&printed, &event) {
                    printed = print_to(*stream, bytes);
                    if !matches!(printed, Ok(true)) {
                        // The program would get SIGPIPE if it wrote to the closed pipe itself.
                        ended_by.get_or_insert(libc::SIGPIPE);
                        job.stop(settings.values().grace);
                    }
                }
            }
            if let Some(outcome) = outcome {
                break outcome;
            }
            match signals.sleep(woken.as_fd())? {
                Woken::Ready => _ = (&woken).read(&mut [0; 64]),
                Woken::Signal { number: libc::SIGINT | libc::SIGQUIT, by_kernel: true } if shares_group => {}
                Woken::Signal { number, .. } => {
                    ended_by.get_or_insert(number);
                    job.stop(settings.values().grace);
                }
            }
        };
        printed?;
        let output = Arc::unwrap_or_clone(outcome);
        let code = match (output.stop, ended_by) {
            (Stop::Timeout | Stop::IdleTimeout, _) => TIMEOUT,
            (Stop::Cancelled, Some(signal)) => 128 + signal as u8,
            _ => output.status.map_or(FAILED, report::code),
        };
        Ok(Ended { output, code, ended_by })
    }
}
