// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a supervised run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Keep, Limits, SharedBytes, Spill, TerminalSize};
use crate::error::{Error, Result};
use crate::limiter::{Limiter, Permit};
use crate::option::{Kind, OptionValue, Value, check_set};
use crate::tree::TreeControl;

options! {
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
    // `permit` is the place of the next run. Clones of these options share it.
    pub struct Run "" with permit: Option<Arc<Mutex<Option<Permit>>>>;

    /// The time after which the library ends the program: SIGTERM to the process tree, and SIGKILL after the
    /// [`grace`](Run::grace). The result has the output so far, and its `stop` is `timeout`. By default there is no
    /// timeout.
    timeout: Option<Duration> = None, (timeout: impl Into<Option<Duration>>) => timeout.into();
        Kind::Duration, Tree, [Run, Start, Command];
    /// The time without output in either stream after which the library ends the program, in the same way as after a
    /// [`timeout`](Run::timeout). The result's `stop` is then `idle_timeout`. By default there is no such timeout.
    idle_timeout: Option<Duration> = None, (idle_timeout: impl Into<Option<Duration>>) => idle_timeout.into();
        Kind::Duration, Output, [Run, Start, Command];
    /// The time between SIGTERM and SIGKILL. Zero: SIGKILL at once. If the program still runs one second after SIGKILL,
    /// the run ends without it. The program is then among the result's `leftovers`, with the fate `not_permitted` (a
    /// set-uid program that has become root, say) or `uninterruptible` (in a read from a dead network file system, say).
    grace: Duration = Duration::from_secs(2); Kind::Duration, Tree, [Run, Start, Command];
    /// The program's input. By default the program has the standard input that the call gives it, or else an empty one.
    /// An input cannot be combined with another standard input. Input of a program with a [`terminal`](Run::terminal)
    /// is typed, followed by end-of-file (Ctrl-D). Such a program waits for more input if it continues to read after
    /// that, reads single keys, or discards early input (at a password prompt).
    input: Option<SharedBytes> = None, (input: impl Into<SharedBytes>) => Some(input.into());
        Kind::Data, Output, [Run, Start, Command];
    /// The number of bytes of each stream's beginning and end that the result has. The library reads and drops the rest,
    /// and the result's `omitted` counts it. A cut moves to a line end that is near: within a fifth of the size of the
    /// head or tail. `all` keeps all bytes; then only [`output_limit`](Run::output_limit)
    /// bounds the memory.
    keep: (usize, usize) = Keep::default().streams, (head: usize, tail: usize) => (head, tail);
        Kind::HeadTail, Output, [Run, Start, Command];
    /// The text of the line that replaces omitted bytes in the result. `{omitted}` in it stands for their number:
    /// `12,345 bytes`. No text, or an empty one: no line.
    marker: Option<String> = Keep::default().marker, (marker: Option<&str>) => marker.map(str::to_owned);
        Kind::Text, Output, [Run, Start, Command];
    /// Whether the result also has both streams in order of arrival.
    combined: bool = false; Kind::Flag, Output, [Run, Start, Command];
    /// Also writes all output to a file, once a stream exceeds [`keep`](Run::keep).
    spill: Option<Spill> = None, (spill: impl Into<Option<Spill>>) => spill.into();
        Kind::Object, Output, [Run, Start, Command];
    /// The number of bytes, of both streams together, after which the library ends the program as after a
    /// [`timeout`](Run::timeout). The result's `stop` is then `output_limit`. By default there is no such limit.
    output_limit: Option<u64> = None, (output_limit: impl Into<Option<u64>>) => output_limit.into();
        Kind::Bytes, Output, [Run, Start, Command];
    /// The time that other processes of the tree have after the program's end, with and without captured output. Until
    /// then the library reads the pipes that such processes hold open, and does not apply
    /// [`leftovers`](Run::leftovers). The run ends earlier if no such process is left. The result's `drain` names the
    /// processes that kept a pipe open to the end.
    drain: Duration = Duration::from_millis(100); Kind::Duration, Tree, [Run, Start, Command];
    /// How the library controls the process tree. The result's `tree` has the tier that was used. Except with `group`,
    /// the tree ends with this process, however this process ends. By default the tier is `guard`, or `group` if no
    /// guard can be started, or if the limit on processes leaves no room for one.
    tree: Option<TreeControl> = None, (tree: impl Into<Option<TreeControl>>) => tree.into();
        Kind::Word(TreeControl::WORDS), Tree, [Run, Start];
    /// The treatment of processes that outlive the program.
    leftovers: Leftovers = Leftovers::Kill; Kind::Word(Leftovers::WORDS), Tree, [Run, Start];
    /// Limits of the resources of the program and its process tree. With limits, the tree gets a cgroup wherever one can
    /// be made, unless the run asks for a guard or a pid namespace.
    limits: Limits = Limits::new(); Kind::Object, Limits, [Run, Start];
    /// Limits how many runs execute at once. A run waits for a permit before its program starts. The
    /// [`timeout`](Run::timeout) and the measured time begin after that wait.
    @
    ///
    /// - The future of [`Command::run_async`](crate::Command::run_async) waits without blocking the thread that polls
    ///   it.
    /// - Every other call that starts a run blocks the calling thread until it has a place. A task can await
    ///   [`Limiter::acquire_async`] first and pass the place to [`Run::permit`].
    /// - In another run's [callback](crate::Command::run_then), such a call fails with EAGAIN instead of blocking. The
    ///   callback can use [`Acquiring::when_ready`](crate::limits::Acquiring::when_ready).
    limiter: Option<Limiter> = None, (limiter: &Limiter) => Some(limiter.clone());
        Kind::Object, Tree, [Run, Start, Command];
    /// The number of bytes of the latest output, of both streams, that [`Job::read`](crate::Job::read) can still return.
    /// None by default.
    window: usize = 0; Kind::Bytes, Output, [];
    /// Lets [`Job::write`](crate::Job::write) queue up to this many bytes of input once the pipe to the program is full.
    /// It cannot be combined with [`Command::stdin`](crate::Command::stdin).
    writable: Option<usize> = None, (writable: impl Into<Option<usize>>) => writable.into(); Kind::Bytes, Output, [];
    /// Gives the program a terminal of this size as its three streams, and as the controlling terminal of its session.
    /// All its output is standard output, as the terminal transmits it (`\n` becomes `\r\n`). A program with a terminal
    /// can have no other standard stream, and no process group of its own.
    terminal: Option<TerminalSize> = None, (terminal: impl Into<Option<TerminalSize>>) => terminal.into();
        Kind::TerminalSize, Output, [Run, Start];
}

words! {
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
        @ #[default]
        Kill = "kill",
        /// The processes run on, the library still reads their output, and the end of the job ends them. A run without a
        /// job kills them.
        Adopt = "adopt",
        /// The library leaves the processes alone.
        Detach = "detach",
    }
}

impl Leftovers {
    /// The treatment by a run without a job handle, which kills processes that a job would adopt.
    pub(super) fn without_job(self) -> Leftovers {
        if self == Leftovers::Adopt { Leftovers::Kill } else { self }
    }
}

impl Run {
    /// Returns the default options: no timeout, 2 s of grace, 64 KB of head and of tail with the
    /// marker `[… {omitted} omitted …]` between, no window, 100 ms of draining, no input. The
    /// library kills leftover processes.
    pub fn new() -> Run {
        Run::default()
    }

    /// Gives the next run with these options a place that the caller already has with a limiter. So the run does not
    /// wait for a place. The end of the run returns the place, or a failure of its start does.
    pub fn permit(mut self, permit: impl Into<Option<Permit>>) -> Run {
        self.permit = permit.into().map(|permit| Arc::new(Mutex::new(Some(permit))));
        self
    }

    /// Takes the permit of the next run.
    pub(crate) fn take_permit(&self) -> Option<Permit> {
        self.permit.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps all output, so memory is bounded by the program alone, or by [`output_limit`](Run::output_limit).
    pub fn keep_all(self) -> Run {
        self.keep(usize::MAX, 0)
    }

    /// Sets the option of this name; [`options`](crate::options) lists the options.
    ///
    /// # Errors
    /// EINVAL: there is no such option of a run, or it does not accept the value.
    pub fn set(&mut self, name: &str, value: Value) -> Result<()> {
        let known = self.try_set(name, &value);
        check_set(name, &value, known)
    }

    /// Sets the option of this name. Returns false if there is none. The error is the reason why the value is wrong.
    pub(crate) fn try_set(&mut self, name: &str, value: &Value) -> std::result::Result<bool, String> {
        match name.split_once('.') {
            Some(("limits", field)) => self.limits.set_valid(field, value),
            Some(("spill", field)) => self.spill.get_or_insert_default().set_field(field, value),
            _ => self.set_field(name, value),
        }
    }

    /// Returns the value of the option of this name. It is [`Value::None`] if the option is not set or has no value, or
    /// if there is no such option.
    pub fn get(&self, name: &str) -> Value {
        match name.split_once('.') {
            Some(("limits", field)) => self.limits.field(field),
            Some(("spill", field)) => self.spill.as_ref().map_or(Value::None, |spill| spill.field(field)),
            _ => self.field(name),
        }
    }

    /// The record of a run of another process, which keeps the output itself.
    #[cfg(feature = "remote")]
    pub(super) fn record_of_remote(&self) -> Keep {
        Keep { streams: (0, 0), marker: None, combined: false, window: self.window, spill: None }
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

objects!(Limits, Limiter, Spill);

impl OptionValue for TerminalSize {
    fn from_value(value: &Value) -> std::result::Result<TerminalSize, String> {
        let size = match value {
            Value::Pair(rows, columns) => u16::try_from(*rows).ok().zip(u16::try_from(*columns).ok()),
            _ => None,
        };
        let (rows, columns) = size.ok_or("must be two numbers up to 65535: rows and columns")?;
        Ok(TerminalSize::new(rows, columns))
    }

    fn to_value(&self) -> Value {
        Value::Pair(self.rows.into(), self.columns.into())
    }
}
