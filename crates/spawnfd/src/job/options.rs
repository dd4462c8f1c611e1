// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a supervised run is to go.

use std::time::Duration;

use super::{Keep, Limits, SharedBytes, Spill, TerminalSize};
use crate::limiter::Limiter;
use crate::tree::Want;

/// How a captured run is to go; see [`Command::run_with`](crate::Command::run_with).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The program's process tree is told to end (SIGTERM) after so long. `None`: never.
    pub timeout: Option<Duration>,
    /// How long it has for that before it is killed. Zero: it is killed at once. A program that still runs one second after SIGKILL is given
    /// up: the run ends, and [`Output::leftovers`](crate::Output::leftovers) has the program, with [`Fate::NotPermitted`](crate::Fate::NotPermitted)
    /// or [`Fate::Uninterruptible`](crate::Fate::Uninterruptible).
    pub grace: Duration,
    /// Bytes kept of each stream's beginning and end; the pipe is drained beyond.
    pub keep: (usize, usize),
    /// Bytes of the latest output, both streams in order of arrival, that [`Job::read`](crate::Job::read) can still give.
    pub window: usize,
    /// Where all output goes if it is more than is kept.
    pub spill: Option<Spill>,
    /// The program is ended when it has written so many bytes to both streams together.
    pub output_limit: Option<u64>,
    /// How long to go on reading after the program has ended, while somebody else still holds its pipes.
    pub drain: Duration,
    /// How its process tree is to be controlled; the result says what came of that. `None`: for a job that is
    /// [started](crate::Command::start) as [`Want::Guard`], or [`Want::Group`] where no guard can be had; else as [`Want::Group`].
    pub tree: Option<Want>,
    /// What becomes of processes that the program has left behind.
    pub leftovers: Leftovers,
    /// What the program reads; nothing (`/dev/null`, or the end of a terminal's input) if there is none and the command has no standard input
    /// of its own.
    pub input: Option<SharedBytes>,
    /// The program reads what [`Job::write`](crate::Job::write) is given over time, of which so many bytes wait at most.
    pub writable: Option<usize>,
    /// The program gets a terminal of this size as its three streams; all it writes is standard output.
    pub terminal: Option<TerminalSize>,
    /// What it may use at most.
    pub limits: Limits,
    /// It waits for its turn with this one before it is started.
    pub limiter: Option<Limiter>,
}

/// What becomes of processes of the program's tree that live on when it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Leftovers {
    /// They are killed.
    #[default]
    Kill,
    /// They go on; what they write is still read, and ending the [job](crate::Job) ends them. A run that is no job (one that blocks, is a
    /// future, or has a callback) kills them.
    Adopt,
    /// They are left alone.
    Detach,
}

impl Leftovers {
    /// All there are.
    pub const ALL: [Leftovers; 3] = [Leftovers::Kill, Leftovers::Adopt, Leftovers::Detach];

    /// A short lower-case name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Leftovers::Kill => "kill",
            Leftovers::Adopt => "adopt",
            Leftovers::Detach => "detach",
        }
    }
}

impl Default for Run {
    /// No timeout, 2 s of grace, 64 KB of head and of tail, no window, 100 ms of draining, no input; what is left behind is killed.
    fn default() -> Run {
        Run {
            timeout: None,
            grace: Duration::from_secs(2),
            keep: Keep::default().streams,
            window: 0,
            spill: None,
            output_limit: None,
            drain: Duration::from_millis(100),
            tree: None,
            leftovers: Leftovers::Kill,
            input: None,
            writable: None,
            terminal: None,
            limits: Limits::new(),
            limiter: None,
        }
    }
}

impl Run {
    /// The defaults.
    pub fn new() -> Run {
        Run::default()
    }

    /// Ends the program after so long.
    pub fn timeout(mut self, timeout: Duration) -> Run {
        self.timeout = Some(timeout);
        self
    }

    /// Leaves it so long between SIGTERM and SIGKILL.
    pub fn grace(mut self, grace: Duration) -> Run {
        self.grace = grace;
        self
    }

    /// Keeps so many bytes of each stream's beginning and end.
    pub fn keep(mut self, head: usize, tail: usize) -> Run {
        self.keep = (head, tail);
        self
    }

    /// Keeps so many bytes of the latest output for [`Job::read`](crate::Job::read).
    pub fn window(mut self, bytes: usize) -> Run {
        self.window = bytes;
        self
    }

    /// Writes all output to a file, too, once it is more than is kept.
    pub fn spill(mut self, spill: Spill) -> Run {
        self.spill = Some(spill);
        self
    }

    /// Ends the program when it has written so many bytes.
    pub fn output_limit(mut self, bytes: u64) -> Run {
        self.output_limit = Some(bytes);
        self
    }

    /// Reads on for so long after the program's end.
    pub fn drain(mut self, drain: Duration) -> Run {
        self.drain = drain;
        self
    }

    /// Asks for this control of the process tree. With [`Want::Guard`], [`Want::Cgroup`] and [`Want::Pidns`] it ends with this process, too, however that
    /// ends.
    pub fn tree(mut self, want: Want) -> Run {
        self.tree = Some(want);
        self
    }

    /// Says what becomes of processes left behind.
    pub fn leftovers(mut self, leftovers: Leftovers) -> Run {
        self.leftovers = leftovers;
        self
    }

    /// Gives the program something to read.
    pub fn input(mut self, input: impl Into<SharedBytes>) -> Run {
        self.input = Some(input.into());
        self
    }

    /// Lets [`Job::write`](crate::Job::write) give the program something to read.
    pub fn writable(mut self, max_bytes: usize) -> Run {
        self.writable = Some(max_bytes);
        self
    }

    /// Gives the program a terminal, which controls its session: no [`process_group`](crate::Command::process_group) can be asked for then.
    pub fn terminal(mut self, size: TerminalSize) -> Run {
        self.terminal = Some(size);
        self
    }

    /// Limits what the program and its process tree may use. With limits the tree gets a cgroup wherever one can be had, unless
    /// a guard is asked for.
    pub fn limits(mut self, limits: Limits) -> Run {
        self.limits = limits;
        self
    }

    /// Bounds how many runs are under way at once: the call that starts the program waits for a place first, in the calling thread.
    /// The [timeout](Run::timeout) begins after that. [`Command::run_async`](crate::Command::run_async) does not wait, it fails with EAGAIN;
    /// tasks wait by [`Limiter::run_async`] or [`Limiter::acquire_async`]. Neither does a call in another run's
    /// [callback](crate::Command::run_then): that waits by [`Acquiring::when_ready`](super::Acquiring::when_ready).
    pub fn limiter(mut self, limiter: &Limiter) -> Run {
        self.limiter = Some(limiter.clone());
        self
    }

    pub(super) fn record(&self) -> Keep {
        Keep { streams: self.keep, window: self.window, spill: self.spill.clone() }
    }
}
