// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a supervised run.

use std::time::Duration;

use super::{Keep, Limits, SharedBytes, Spill, TerminalSize};
use crate::error::{Error, Result};
use crate::limiter::Limiter;
use crate::tree::TreeControl;

/// The options of a supervised run; see [`Command::run_with`](crate::Command::run_with).
///
/// # Examples
/// ```
/// use spawnfd::job::Stop;
/// use spawnfd::{Command, Run};
/// use std::time::Duration;
/// let run = Run::new()
///     .timeout(Duration::from_secs(10)) // then SIGTERM to the process tree
///     .grace(Duration::from_secs(1)) // and SIGKILL a second later
///     .keep(1000, 1000) // bytes of the beginning and the end of each stream
///     .output_limit(1 << 20); // more output ends the program
/// let output = Command::new("yes").run_with(&run)?;
/// assert_eq!(output.stop, Stop::OutputLimit);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "options have no effect until a run uses them"]
#[derive(Clone, Debug)]
pub struct Run {
    // The setters below describe the fields.
    pub(crate) timeout: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) keep: (usize, usize),
    pub(crate) marker: Option<String>,
    pub(crate) combined: bool,
    pub(crate) window: usize,
    pub(crate) spill: Option<Spill>,
    pub(crate) output_limit: Option<u64>,
    pub(crate) drain: Duration,
    pub(crate) tree: Option<TreeControl>,
    pub(crate) leftovers: Leftovers,
    pub(crate) input: Option<SharedBytes>,
    pub(crate) writable: Option<usize>,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) limits: Limits,
    pub(crate) limiter: Option<Limiter>,
}

/// Values of options of a [`Run`], for the bindings and the command of this project.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RunValues {
    pub timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub grace: Duration,
    pub window: usize,
    pub output_limit: Option<u64>,
    pub terminal: Option<TerminalSize>,
    pub has_input: bool,
}

/// The treatment of processes of the program's tree that outlive the program.
///
/// # Examples
/// ```
/// use spawnfd::job::{Fate, Leftovers};
/// use spawnfd::{Command, Run};
/// let run = Run::new().leftovers(Leftovers::Detach);
/// let output = Command::new("sh").args(["-c", "sleep 1 >/dev/null 2>&1 & exit"]).run_with(&run)?;
/// assert_eq!(output.leftovers[0].fate, Fate::Detached);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Leftovers {
    /// The library kills the processes.
    #[default]
    Kill,
    /// The processes run on, the library still reads their output, and ending the [job](crate::Job)
    /// ends them. A run without a job handle (blocking, with a callback, or as a future) kills
    /// them.
    Adopt,
    /// The library leaves the processes alone.
    Detach,
}

names!(Leftovers { Kill = "kill", Adopt = "adopt", Detach = "detach", });

impl Default for Run {
    /// Returns the default options: no timeout, 2 s of grace, 64 KB of head and of tail with the
    /// marker `[… {omitted} omitted …]` between, no window, 100 ms of draining, no input. The
    /// library kills leftover processes.
    fn default() -> Run {
        let Keep { streams, marker, combined, window, spill } = Keep::default();
        Run {
            timeout: None,
            idle_timeout: None,
            grace: Duration::from_secs(2),
            keep: streams,
            marker,
            combined,
            window,
            spill,
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
    /// Returns the default options.
    pub fn new() -> Run {
        Run::default()
    }

    /// Keeps `head` bytes of each stream's beginning and `tail` bytes of its end (64,000 each by default). The library
    /// reads and drops the other bytes.
    pub fn keep(mut self, head: usize, tail: usize) -> Run {
        self.keep = (head, tail);
        self
    }

    /// Keeps all output, so memory is bounded by the program alone, or by [`output_limit`](Run::output_limit).
    pub fn keep_all(self) -> Run {
        self.keep(usize::MAX, 0)
    }

    #[doc(hidden)]
    pub fn values(&self) -> RunValues {
        let Run { timeout, idle_timeout, grace, window, output_limit, terminal, .. } = *self;
        RunValues { timeout, idle_timeout, grace, window, output_limit, terminal, has_input: self.input.is_some() }
    }

    pub(super) fn record(&self) -> Keep {
        let Run { keep: streams, combined, window, .. } = *self;
        Keep { streams, marker: self.marker.clone(), combined, window, spill: self.spill.clone() }
    }

    /// Checks the marker.
    ///
    /// # Errors
    /// EINVAL: the marker is more than one line, or has a NUL character.
    pub(crate) fn validate(&self) -> Result<()> {
        match &self.marker {
            Some(marker) if marker.contains(['\n', '\r', '\0']) => Err(Error::invalid(format!("marker({marker:?})"))
                .saying("the marker must not contain a line break or a NUL character")),
            _ => Ok(()),
        }
    }
}

setters!(Run {
    /// Sets the time after which the library ends the program: SIGTERM to the process tree, and SIGKILL after the
    /// [`grace`](Run::grace). `None`, the default: never.
    timeout: impl Into<Option<Duration>> => timeout.into();
    /// Sets the time without output in either stream after which the library ends the program, in the same way as after
    /// a timeout. `None`, the default: never.
    idle_timeout: impl Into<Option<Duration>> => idle_timeout.into();
    /// Sets the time between SIGTERM and SIGKILL (2 s by default). Zero: SIGKILL at once. If the program still runs one
    /// second after SIGKILL, the run ends without it. [`Output::leftovers`](crate::Output::leftovers) then lists the
    /// program with [`Fate::NotPermitted`](crate::job::Fate::NotPermitted) or
    /// [`Fate::Uninterruptible`](crate::job::Fate::Uninterruptible).
    grace: Duration => grace;
    /// Sets the text of the line that replaces omitted bytes in [`Output::stdout`](crate::Output::stdout) and the like.
    /// `{omitted}` in it stands for their number: `12,345 bytes`. `None` or an empty text: no line.
    marker: Option<&str> => marker.map(str::to_owned);
    /// Sets whether [`Output::pieces`](crate::Output::pieces) has both streams in order of arrival.
    combined: bool => combined;
    /// Sets the number of bytes of the latest output that [`Job::read`](crate::Job::read) can still return: both
    /// streams, in order of arrival.
    window: usize => window;
    /// Also writes all output to a file, once there is more output than `keep` allows.
    spill: impl Into<Option<Spill>> => spill.into();
    /// Ends the program once it has written more than this many bytes to both streams together.
    output_limit: impl Into<Option<u64>> => output_limit.into();
    /// Sets the time that processes of the tree have after the program's end (100 ms by default), with and without
    /// captured output. Until then the library reads the pipes that such processes hold open, and does not
    /// [kill](Leftovers::Kill) the processes. The run ends earlier if no such process is left.
    drain: Duration => drain;
    /// Sets the tier of control over the process tree. The output's `tree` field has the tier that was used. With
    /// [`TreeControl::Group`] the tree outlives this process. In all other tiers the tree ends with this process, however
    /// this process ends. `None`, the default: [`TreeControl::Guard`], or `Group` if no guard can be started.
    tree: impl Into<Option<TreeControl>> => tree.into();
    /// Sets how to treat processes that outlive the program. By default the library kills them.
    leftovers: Leftovers => leftovers;
    /// Sets the program's input. By default the program reads the command's own standard input if the command sets one,
    /// and otherwise `/dev/null`, or the end of a terminal's input. An input cannot be combined with
    /// [`writable`](Run::writable) or with [`Command::stdin`](crate::Command::stdin).
    input: impl Into<SharedBytes> => Some(input.into());
    /// Lets [`Job::write`](crate::Job::write) queue up to this many bytes of input once the pipe to the program is full.
    /// It cannot be combined with [`Command::stdin`](crate::Command::stdin).
    writable: impl Into<Option<usize>> => writable.into();
    /// Gives the program a terminal, which becomes the controlling terminal of its session. A command with a terminal
    /// can neither set a standard stream nor ask for a [`process_group`](crate::Command::process_group).
    terminal: impl Into<Option<TerminalSize>> => terminal.into();
    /// Limits the resources of the program and its process tree. With limits, the tree gets a cgroup wherever one can
    /// be made, unless the run asks for a guard or a pid namespace.
    limits: Limits => limits;
    /// Limits how many runs execute at once. A run waits for a place before its program starts. The
    /// [timeout](Run::timeout) begins after that wait.
    ///
    /// - The future of [`Command::run_async`](crate::Command::run_async) waits without blocking the thread that polls
    ///   it.
    /// - Every other call that starts a run blocks the calling thread until it has a place. A task can await
    ///   [`Limiter::acquire_async`] first and pass the place to [`Command::permit`](crate::Command::permit).
    /// - In another run's [callback](crate::Command::run_then), such a call fails with EAGAIN instead of blocking. The
    ///   callback can use [`Acquiring::when_ready`](crate::limits::Acquiring::when_ready).
    limiter: &Limiter => Some(limiter.clone());
});
