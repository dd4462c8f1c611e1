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

names!(Leftovers { Kill = "kill", Adopt = "adopt", Detach = "detach", });

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

    /// Keeps so many bytes of each stream's beginning and end.
    pub fn keep(mut self, head: usize, tail: usize) -> Run {
        self.keep = (head, tail);
        self
    }

    pub(super) fn record(&self) -> Keep {
        Keep { streams: self.keep, window: self.window, spill: self.spill.clone() }
    }
}

setters!(Run {
    /// Ends the program after so long.
    timeout: Duration => Some(timeout);
    /// Leaves it so long between SIGTERM and SIGKILL.
    grace: Duration => grace;
    /// Keeps so many bytes of the latest output for [`Job::read`](crate::Job::read).
    window: usize => window;
    /// Writes all output to a file, too, once it is more than is kept.
    spill: Spill => Some(spill);
    /// Ends the program when it has written so many bytes.
    output_limit: u64 => Some(output_limit);
    /// Reads on for so long after the program's end.
    drain: Duration => drain;
    /// Asks for this control of the process tree. With [`Want::Guard`], [`Want::Cgroup`] and [`Want::Pidns`] it ends with this process, too, however that
    /// ends.
    tree: Want => Some(tree);
    /// Says what becomes of processes left behind.
    leftovers: Leftovers => leftovers;
    /// Gives the program something to read.
    input: impl Into<SharedBytes> => Some(input.into());
    /// Lets [`Job::write`](crate::Job::write) give the program something to read.
    writable: usize => Some(writable);
    /// Gives the program a terminal, which controls its session: no [`process_group`](crate::Command::process_group) can be asked for then.
    terminal: TerminalSize => Some(terminal);
    /// Limits what the program and its process tree may use. With limits the tree gets a cgroup wherever one can be had, unless
    /// a guard is asked for.
    limits: Limits => limits;
    /// Bounds how many runs are under way at once: the call that starts the program waits for a place first, in the calling thread.
    /// The [timeout](Run::timeout) begins after that. [`Command::run_async`](crate::Command::run_async) does not wait, it fails with EAGAIN;
    /// tasks wait by [`Limiter::run_async`] or [`Limiter::acquire_async`]. Neither does a call in another run's
    /// [callback](crate::Command::run_then): that waits by [`Acquiring::when_ready`](crate::Acquiring::when_ready).
    limiter: &Limiter => Some(limiter.clone());
});
