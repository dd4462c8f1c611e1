// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a run.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::kept::text;
use super::{Limit, Spilled};
use crate::child::{Started, Usage};
use crate::error::shown;
use crate::tree::Tier;

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The program exited, or a signal from outside the library ended it.
    #[default]
    Exited,
    /// The library ended the program after its timeout.
    Timeout,
    /// The library ended the program because the caller asked for it or dropped its handle.
    Cancelled,
    /// The library ended the program because it had written more than its output limit.
    OutputLimit,
    /// The program or its tree reached one of its [limits](super::Limits): see [`Output::limit`].
    Limit,
}

names!(Stop {
    Exited = "exited",
    Timeout = "timeout",
    Cancelled = "cancelled",
    OutputLimit = "output_limit",
    Limit = "limit",
});

/// How reading the program's output ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Drain {
    /// The library has read all output.
    #[default]
    Eof,
    /// After the program's end these processes still held its pipes or its terminal open; their later output is lost.
    /// The list is empty if the library could not identify such a process: it belongs to another user, or has just
    /// closed its end.
    Cut(Vec<u32>),
}

/// A process that outlived the program that started it, or a program that could not be killed.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub struct Leftover {
    /// The process id.
    pub pid: u32,
    /// The process's name (comm).
    pub name: String,
    /// The fate of the process.
    pub fate: Fate,
}

/// The fate of a [`Leftover`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The library sent SIGKILL.
    Killed,
    /// The process keeps running until the job ends it ([`Leftovers::Adopt`](super::Leftovers::Adopt)).
    Adopted,
    /// The process keeps running, and the library does not end it ([`Leftovers::Detach`](super::Leftovers::Detach)).
    Detached,
    /// The kernel refused SIGKILL (EPERM): the process has changed its user id, as a set-uid program does. The
    /// process keeps running.
    NotPermitted,
    /// The kernel accepted SIGKILL, which had no effect within a second. The process waits in the kernel, usually for
    /// a disk or a network file system, and ends when that wait ends.
    Uninterruptible,
}

names!(Fate {
    Killed = "killed",
    Adopted = "adopted",
    Detached = "detached",
    NotPermitted = "not_permitted",
    Uninterruptible = "uninterruptible",
});

/// The result of a run. A non-zero exit code, a timeout and cut output are results, not errors;
/// [`check`](Output::check) turns them into errors.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Output {
    /// The exit status, whatever the reason of the stop. `None` if the status [is lost](Output::status_lost), or if
    /// the program could not be killed. A program that could not be killed is the first of the
    /// [`leftovers`](Output::leftovers), and the library reaps it when it ends.
    pub status: Option<ExitStatus>,
    /// The host took the program's status (by `wait(-1)`, or by ignoring SIGCHLD). Before Linux 6.15 the library
    /// cannot recover it.
    pub status_lost: bool,
    /// Why the run ended.
    pub stop: Stop,
    /// Captured standard output: its head, then its tail, with [`omitted_bytes`](Output::omitted_bytes) between.
    pub stdout: Vec<u8>,
    /// Captured standard error: its head, then its tail. Empty if the command merges it into standard output.
    pub stderr: Vec<u8>,
    /// The number of bytes, of both streams together, that the library did not keep.
    pub omitted_bytes: u64,
    /// The number of bytes that the program wrote to both streams together, as far as the library read them.
    pub seen_bytes: u64,
    /// The file with all output, if the run asked for one and the output exceeded what is kept in memory. Dropping
    /// the last handle deletes the file.
    pub spill: Option<Spilled>,
    /// How reading the program's output ended.
    pub drain: Drain,
    /// The time from the start of the spawn to the end of reading.
    pub wall: Duration,
    /// The resources that the program used.
    pub usage: Usage,
    /// How far control of the process tree reached. [`is_complete`](Tier::is_complete) says whether it covered every
    /// process.
    pub tree: Tier,
    /// Processes of the program's tree that outlived the program, as far as the tier finds them. A program that could
    /// not be killed comes first.
    pub leftovers: Vec<Leftover>,
    /// The library could not look for survivors: no descriptor was free, or /proc cannot be read. Processes may have
    /// survived. The library has killed only those that it can kill without /proc.
    pub leftovers_unknown: bool,
    /// The limit that the run reached, if [`stop`](Output::stop) is [`Stop::Limit`].
    pub limit: Option<Limit>,
    /// All limits of the run, and the mechanism that enforced each.
    pub limits: Vec<Limit>,
    /// How the program was started.
    pub started: Started,
    /// The program closed its standard input, or ended, before the library had written all input.
    pub input_refused: bool,
    pub(super) program: String,
    /// For each stream: the length of the head, and the number of bytes missing after it.
    pub(super) cuts: [(usize, u64); 2],
}

impl Leftover {
    #[doc(hidden)]
    pub fn new(pid: u32, name: String, fate: Fate) -> Leftover {
        Leftover { pid, name, fate }
    }
}

impl Output {
    /// An empty output, to be filled with the fields that another process has sent.
    #[doc(hidden)]
    pub fn empty() -> Output {
        Output::default()
    }

    /// For each stream: the length of the head, and the number of bytes missing after it.
    #[doc(hidden)]
    pub fn cuts(&self) -> [(usize, u64); 2] {
        self.cuts
    }

    #[doc(hidden)]
    pub fn set_cuts(&mut self, cuts: [(usize, u64); 2]) {
        self.cuts = cuts;
    }

    /// Whether the program exited by itself with code 0.
    pub fn ok(&self) -> bool {
        self.stop == Stop::Exited && self.status.is_some_and(|status| status.success())
    }

    /// The program, as a leftover, if SIGKILL did not end it.
    fn unkilled_program(&self) -> Option<&Leftover> {
        self.leftovers.first().filter(|_| self.status.is_none() && !self.status_lost)
    }

    /// The exit code; `None` if a signal ended the program, or there is no [status](Output::status).
    pub fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    /// The signal that ended the program.
    pub fn signal(&self) -> Option<i32> {
        self.status?.signal()
    }

    /// Standard output decoded as UTF-8; invalid bytes become U+FFFD. Characters split by an omission are dropped.
    pub fn text(&self) -> Cow<'_, str> {
        let [(head, omitted), _] = self.cuts;
        text(&self.stdout, head, omitted)
    }

    /// Standard error decoded as UTF-8; invalid bytes become U+FFFD. Characters split by an omission are dropped.
    pub fn error_text(&self) -> Cow<'_, str> {
        let [_, (head, omitted)] = self.cuts;
        text(&self.stderr, head, omitted)
    }

    /// Returns an error that carries the output unless the run was [`ok`](Output::ok).
    ///
    /// # Errors
    /// [`ExitError`]: the run was not ok.
    pub fn check(self) -> std::result::Result<Output, Box<ExitError>> {
        if self.ok() { Ok(self) } else { Err(Box::new(ExitError { output: self })) }
    }
}

/// A run that was not [`ok`](Output::ok).
#[derive(Clone, Debug)]
pub struct ExitError {
    /// The run.
    pub output: Output,
}

/// The most lines of standard error that an [`ExitError`] shows.
const SHOWN_LINES: usize = 5;

impl fmt::Display for ExitError {
    /// Prints the program's name and how the program ended, then the last lines of standard error. A single line
    /// follows a colon; several lines follow on lines of their own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Output { program, stop, wall, status, limit, .. } = &self.output;
        let program = shown(program);
        match (self.output.unkilled_program(), stop, self.output.code(), status) {
            (Some(Leftover { pid, fate, .. }), ..) => {
                let why = if *fate == Fate::NotPermitted { "not permitted" } else { "SIGKILL had no effect" };
                write!(f, "{program} could not be killed ({why}) and still runs as process {pid}")?;
            }
            (_, Stop::Timeout, ..) => write!(f, "{program} timed out after {:.3} s", wall.as_secs_f64())?,
            (_, Stop::Cancelled, ..) => write!(f, "{program} was cancelled")?,
            (_, Stop::OutputLimit, ..) => {
                write!(f, "{program} exceeded its output limit: it wrote {} bytes", self.output.seen_bytes)?;
            }
            (_, Stop::Limit, ..) => match limit {
                Some(Limit { resource, by }) => write!(f, "{program} reached its {resource} limit ({by})")?,
                None => write!(f, "{program} reached a limit")?,
            },
            (.., Some(code), _) => write!(f, "{program} exited with code {code}")?,
            (.., None, Some(status)) => {
                // std formats the status as "signal: 9 (SIGKILL)".
                let status = status.to_string();
                write!(f, "{program} was killed by signal {}", status.strip_prefix("signal: ").unwrap_or(&status))?;
            }
            (.., None, None) => {
                write!(f, "{program} ended, but its exit status is lost: other code of this process has taken it")?;
            }
        }
        let text = self.output.error_text();
        let lines: Vec<&str> = text.trim_end().lines().collect();
        match lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            [] => Ok(()),
            [line] => write!(f, ": {line}"),
            ref last => {
                write!(f, "; the last lines of its standard error:")?;
                last.iter().try_for_each(|line| write!(f, "\n  {line}"))
            }
        }
    }
}

impl std::error::Error for ExitError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Enforcer, Resource};

    fn shows(change: impl FnOnce(&mut Output)) -> String {
        let mut output = Output { program: "rg".into(), ..Output::default() };
        change(&mut output);
        output.check().expect_err("not ok").to_string()
    }

    #[test]
    fn exit_error_says_how_the_program_ended() {
        let status = |raw| Some(ExitStatus::from_raw(raw));
        assert_eq!(shows(|output| output.status = status(3 << 8)), "rg exited with code 3");
        assert_eq!(shows(|output| output.status = status(9)), "rg was killed by signal 9 (SIGKILL)");
        let timeout = shows(|output| (output.stop, output.wall) = (Stop::Timeout, Duration::from_millis(203)));
        assert_eq!(timeout, "rg timed out after 0.203 s");
        let limit = Limit { resource: Resource::Memory, by: Enforcer::Cgroup };
        let reached = shows(|output| (output.stop, output.limit) = (Stop::Limit, Some(limit)));
        assert_eq!(reached, "rg reached its memory limit (cgroup)");
        let exceeded = shows(|output| (output.stop, output.seen_bytes) = (Stop::OutputLimit, 1000));
        assert_eq!(exceeded, "rg exceeded its output limit: it wrote 1000 bytes");
        let lost = shows(|output| output.status_lost = true);
        assert_eq!(lost, "rg ended, but its exit status is lost: other code of this process has taken it");
    }

    #[test]
    fn exit_error_shows_the_last_lines_of_standard_error() {
        let shows = |stderr: &str| {
            shows(|output| (output.status, output.stderr) = (Some(ExitStatus::from_raw(1 << 8)), stderr.into()))
        };
        assert_eq!(shows("one\n\n"), "rg exited with code 1: one");
        let last = shows("1\n2\n3\n4\n5\n6\n");
        assert_eq!(last, "rg exited with code 1; the last lines of its standard error:\n  2\n  3\n  4\n  5\n  6");
    }
}
