// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a supervised run.

use std::time::Duration;

use super::{Keep, Limits, SharedBytes, Spill, TerminalSize};
use crate::error::{Error, Result};
use crate::limiter::Limiter;
use crate::tree::Want;

/// The options of a supervised run; see [`Command::run_with`](crate::Command::run_with).
#[must_use = "options have no effect until a run uses them"]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The time after which the library sends SIGTERM to the program's process tree. `None`: never.
    pub timeout: Option<Duration>,
    /// The time without output in either stream after which the library ends the process tree, in
    /// the same way as after a timeout. `None`: never.
    pub idle_timeout: Option<Duration>,
    /// The time between SIGTERM and SIGKILL. Zero: SIGKILL at once. If the program still runs one second after
    /// SIGKILL, the run ends without it. [`Output::leftovers`](crate::Output::leftovers) then lists the program with
    /// [`Fate::NotPermitted`](crate::Fate::NotPermitted) or [`Fate::Uninterruptible`](crate::Fate::Uninterruptible).
    pub grace: Duration,
    /// The number of bytes to keep of each stream's beginning and end. The library reads and drops
    /// the other bytes.
    pub keep: (usize, usize),
    /// The text of the line that replaces omitted bytes in [`Output::stdout`](crate::Output::stdout) and the like;
    /// `{omitted}` in it stands for their number: `12,345 bytes`. `None` or an empty text: no line.
    pub marker: Option<String>,
    /// Whether [`Output::pieces`](crate::Output::pieces) has both streams in order of arrival.
    pub combined: bool,
    /// The number of bytes of the latest output that [`Job::read`](crate::Job::read) can still
    /// return: both streams, in order of arrival.
    pub window: usize,
    /// The file to which the library writes all output, once there is more output than `keep`
    /// allows.
    pub spill: Option<Spill>,
    /// The library ends the program once it has written more than this many bytes to both streams together.
    pub output_limit: Option<u64>,
    /// The time for which the library still reads after the program's end, if other processes hold
    /// its pipes open.
    pub drain: Duration,
    /// The tier of control over the process tree. The output's `tree` field has the tier that was used. `None`: a job
    /// that is [started](crate::Command::start) uses [`Want::Guard`], or [`Want::Group`] if no guard can be started;
    /// other runs use [`Want::Group`].
    pub tree: Option<Want>,
    /// The treatment of processes that outlive the program.
    pub leftovers: Leftovers,
    /// The program's input. `None`: the program reads the command's own standard input if the
    /// command sets one. Otherwise it reads `/dev/null`, or the end of a terminal's input.
    pub input: Option<SharedBytes>,
    /// The number of bytes that [`Job::write`](crate::Job::write) may queue once the pipe to the
    /// program is full. `None`: the job is not writable.
    pub writable: Option<usize>,
    /// The program gets a terminal of this size as all three streams; all its output is standard output.
    pub terminal: Option<TerminalSize>,
    /// The resources that the run may use.
    pub limits: Limits,
    /// The run waits for a place with this limiter before the program starts.
    pub limiter: Option<Limiter>,
}

/// The treatment of processes of the program's tree that outlive the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
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

    /// Keeps `head` bytes of each stream's beginning and `tail` bytes of its end.
    pub fn keep(mut self, head: usize, tail: usize) -> Run {
        self.keep = (head, tail);
        self
    }

    pub(super) fn record(&self) -> Keep {
        let Run { keep: streams, combined, window, .. } = *self;
        Keep { streams, marker: self.marker.clone(), combined, window, spill: self.spill.clone() }
    }

    /// Checks the marker.
    ///
    /// # Errors
    /// EINVAL: the marker is more than one line, or has a NUL character.
    pub(super) fn validate(&self) -> Result<()> {
        match &self.marker {
            Some(marker) if marker.contains(['\n', '\r', '\0']) => Err(Error::invalid(format!("marker({marker:?})"))
                .saying("the marker must not contain a line break or a NUL character")),
            _ => Ok(()),
        }
    }
}

setters!(Run {
    /// Ends the program after this time.
    timeout: Duration => Some(timeout);
    /// Ends the program once it has written no output for this time.
    idle_timeout: Duration => Some(idle_timeout);
    /// Sets the time between SIGTERM and SIGKILL.
    grace: Duration => grace;
    /// Replaces omitted bytes by a line with this text, or by nothing.
    marker: Option<&str> => marker.map(str::to_owned);
    /// Sets whether the output has both streams in order of arrival.
    combined: bool => combined;
    /// Keeps this many bytes of the latest output for [`Job::read`](crate::Job::read).
    window: usize => window;
    /// Also writes all output to a file, once there is more output than `keep` allows.
    spill: Spill => Some(spill);
    /// Ends the program once it has written more than this many bytes.
    output_limit: u64 => Some(output_limit);
    /// Reads for this long after the program's end.
    drain: Duration => drain;
    /// Asks for this tier of control over the process tree. With [`Want::Guard`], [`Want::Cgroup`] and
    /// [`Want::Pidns`] the tree also ends with this process, even if this process is killed.
    tree: Want => Some(tree);
    /// Sets how to treat processes that outlive the program.
    leftovers: Leftovers => leftovers;
    /// Sets the program's input. It cannot be combined with [`writable`](Run::writable) or with
    /// [`Command::stdin`](crate::Command::stdin).
    input: impl Into<SharedBytes> => Some(input.into());
    /// Lets [`Job::write`](crate::Job::write) queue up to this many bytes of input for the program. It cannot be
    /// combined with [`Command::stdin`](crate::Command::stdin).
    writable: usize => Some(writable);
    /// Gives the program a terminal, which becomes the controlling terminal of its session. A command with a terminal
    /// can neither set a standard stream nor ask for a [`process_group`](crate::Command::process_group).
    terminal: TerminalSize => Some(terminal);
    /// Limits the resources of the program and its process tree. With limits, the tree gets a cgroup wherever one can
    /// be made, unless the run asks for a guard or a pid namespace.
    limits: Limits => limits;
    /// Limits how many runs execute at once. The call that starts the program first waits for a place, in the calling
    /// thread. The [timeout](Run::timeout) begins after that wait.
    ///
    /// [`Command::run_async`](crate::Command::run_async) does not wait: it fails with EAGAIN. Tasks wait by
    /// [`Limiter::run_async`] or [`Limiter::acquire_async`]. A call in another run's
    /// [callback](crate::Command::run_then) does not wait either; the callback can use
    /// [`Acquiring::when_ready`](crate::Acquiring::when_ready).
    limiter: &Limiter => Some(limiter.clone());
});
