// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of a run.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::kept::text;
use super::{Limit, Spilled};
use crate::child::{Started, Usage};
use crate::tree::Tier;

/// Why a run came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The program ended by itself (or by somebody else's signal).
    #[default]
    Exited,
    /// It was ended when its time was over.
    Timeout,
    /// It was ended as somebody asked for that, or nobody wanted the result any more.
    Cancelled,
    /// It was ended when it had written too much.
    OutputLimit,
    /// It had reached one of its [limits](super::Limits): see [`Output::limit`].
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
    /// All of it has been read.
    #[default]
    Eof,
    /// After the program's end these processes still held its pipes, or its terminal; what they write later is lost. Empty if nobody could
    /// be named: they belong to another user, or let go in this instant.
    Cut(Vec<u32>),
}

/// A process that outlived the program that started it, or a program that could not be killed.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub struct Leftover {
    /// Its process id.
    pub pid: u32,
    /// Its name (comm).
    pub name: String,
    /// Its fate.
    pub fate: Fate,
}

/// The fate of a [`Leftover`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// It got SIGKILL.
    Killed,
    /// It runs on, and ends with the job: [`Leftovers::Adopt`](super::Leftovers::Adopt).
    Adopted,
    /// It was left alone: [`Leftovers::Detach`](super::Leftovers::Detach).
    Detached,
    /// The kernel refused to kill it (EPERM): it has changed its user id, as a set-uid program does. It runs on.
    NotPermitted,
    /// The kernel accepted SIGKILL, which had no effect within a second: the process waits in the kernel, for a disk or a network file system
    /// mostly. It ends when that wait ends.
    Uninterruptible,
}

names!(Fate {
    Killed = "killed",
    Adopted = "adopted",
    Detached = "detached",
    NotPermitted = "not_permitted",
    Uninterruptible = "uninterruptible",
});

/// The result of a run. An exit code, a timeout and cut output are results, not errors; see [`check`](Output::check).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Output {
    /// The status, whatever the reason of the stop. `None` if the status [is lost](Output::status_lost), or the program could not be killed:
    /// then it is the first of the [`leftovers`](Output::leftovers), and the library reaps it when it ends.
    pub status: Option<ExitStatus>,
    /// The host took the program's status (by `wait(-1)`, or by ignoring SIGCHLD). Before Linux 6.15 it cannot be recovered.
    pub status_lost: bool,
    /// Why it ended.
    pub stop: Stop,
    /// Captured standard output: its head, then its tail, with [`omitted_bytes`](Output::omitted_bytes) between.
    pub stdout: Vec<u8>,
    /// Captured standard error, likewise; empty if merged into standard output.
    pub stderr: Vec<u8>,
    /// How many bytes both streams had that were not kept.
    pub omitted_bytes: u64,
    /// How many bytes both streams had.
    pub seen_bytes: u64,
    /// The file with all of the output, where one was asked for and needed. It goes with the last handle of it.
    pub spill: Option<Spilled>,
    /// How reading ended.
    pub drain: Drain,
    /// From the start of the spawn to the end of reading.
    pub wall: Duration,
    /// What the program used.
    pub usage: Usage,
    /// How far control of the process tree reached; whether to everybody: [`is_complete`](Tier::is_complete).
    pub tree: Tier,
    /// Processes of the program's tree that outlived it, as far as the tier finds them, and their fates. A program that could not be killed
    /// comes first.
    pub leftovers: Vec<Leftover>,
    /// The library could not look for survivors: no descriptor was free, or /proc cannot be read. Processes may have survived, and only
    /// those that can be killed without looking were killed.
    pub leftovers_unknown: bool,
    /// The limit that it had reached, where [`stop`](Output::stop) is [`Stop::Limit`].
    pub limit: Option<Limit>,
    /// All limits it had, and who enforced each.
    pub limits: Vec<Limit>,
    /// How it was started.
    pub started: Started,
    /// The program closed its standard input, or ended, before all of it was written.
    pub input_refused: bool,
    pub(super) program: String,
    /// Of each stream: how many of the kept bytes are its head, and how many are missing after that.
    pub(super) cuts: [(usize, u64); 2],
}

impl Leftover {
    #[doc(hidden)]
    pub fn new(pid: u32, name: String, fate: Fate) -> Leftover {
        Leftover { pid, name, fate }
    }
}

impl Output {
    /// One to be filled with what another process has sent of its own.
    #[doc(hidden)]
    pub fn empty() -> Output {
        Output::default()
    }

    /// Of each stream: how many of the kept bytes are its head, and how many are missing after that.
    #[doc(hidden)]
    pub fn cuts(&self) -> [(usize, u64); 2] {
        self.cuts
    }

    #[doc(hidden)]
    pub fn set_cuts(&mut self, cuts: [(usize, u64); 2]) {
        self.cuts = cuts;
    }

    /// Whether the program ended by itself with exit code 0.
    pub fn ok(&self) -> bool {
        self.stop == Stop::Exited && self.status.is_some_and(|status| status.success())
    }

    /// The program, if it could not be killed.
    fn program_left(&self) -> Option<&Leftover> {
        self.leftovers.first().filter(|_| self.status.is_none() && !self.status_lost)
    }

    /// The exit code; `None` if a signal ended it, or there is no [status](Output::status).
    pub fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        self.status?.signal()
    }

    /// Standard output as text, what is no UTF-8 replaced; a character cut by an omission is left out.
    pub fn text(&self) -> Cow<'_, str> {
        let [(head, omitted), _] = self.cuts;
        text(&self.stdout, head, omitted)
    }

    /// Standard error, likewise.
    pub fn error_text(&self) -> Cow<'_, str> {
        let [_, (head, omitted)] = self.cuts;
        text(&self.stderr, head, omitted)
    }

    /// Turns a run that was not [`ok`](Output::ok) into an error that carries it.
    ///
    /// # Errors
    /// [`ExitError`] unless it is ok.
    pub fn check(self) -> std::result::Result<Output, Box<ExitError>> {
        if self.ok() { Ok(self) } else { Err(Box::new(ExitError { output: self })) }
    }
}

/// A run that did not end with exit code 0.
#[derive(Clone, Debug)]
pub struct ExitError {
    /// The run.
    pub output: Output,
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Output { program, stop, wall, .. } = &self.output;
        let limit = self.output.limit.map(|limit| limit.to_string()).unwrap_or_default();
        match (self.output.program_left(), stop, self.output.code(), self.output.signal()) {
            (Some(Leftover { pid, fate, .. }), ..) => {
                let why = if *fate == Fate::NotPermitted { "not permitted" } else { "SIGKILL had no effect" };
                write!(f, "{program} could not be killed ({why}) and still runs as process {pid}")?;
            }
            (_, Stop::Timeout, ..) => write!(f, "{program} was ended after {:.3} s", wall.as_secs_f64())?,
            (_, Stop::Cancelled, ..) => write!(f, "{program} was cancelled")?,
            (_, Stop::OutputLimit, ..) => write!(f, "{program} was ended as it had written too much")?,
            (_, Stop::Limit, ..) => write!(f, "{program} reached its limit of {limit}")?,
            (.., Some(code), _) => write!(f, "{program} exited with code {code}")?,
            (.., None, Some(signal)) => write!(f, "{program} was killed by signal {signal}")?,
            (.., None, None) => write!(f, "how {program} ended is not known: somebody else has taken its status")?,
        }
        match self.output.error_text().trim_end().lines().last() {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ExitError {}
