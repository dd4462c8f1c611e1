// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a program to its end, with its output captured.

mod capture;
mod engine;
mod holders;

use std::fmt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::child::Usage;
use crate::command::{Command, Stdio};
use crate::error::Result;
use crate::launch;
use capture::Running;
pub use engine::RunHandle;

/// How a captured run is to go; see [`Command::run_with`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The program's whole process group gets SIGKILL after so long. `None`: never.
    pub timeout: Option<Duration>,
    /// Bytes kept of each stream's beginning and end; the pipe is drained beyond.
    pub keep: (usize, usize),
    /// How long to go on reading after the program has ended, while somebody else still holds its pipes.
    pub drain: Duration,
    /// What the program reads; nothing (`/dev/null`) if `None` and the command has no standard input of its own.
    pub input: Option<Vec<u8>>,
}

impl Default for Run {
    /// No timeout, 64 KB of head and of tail, 100 ms of draining, no input.
    fn default() -> Run {
        Run { timeout: None, keep: (64_000, 64_000), drain: Duration::from_millis(100), input: None }
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

    /// Keeps so many bytes of each stream's beginning and end.
    pub fn keep(mut self, head: usize, tail: usize) -> Run {
        self.keep = (head, tail);
        self
    }

    /// Reads on for so long after the program's end.
    pub fn drain(mut self, drain: Duration) -> Run {
        self.drain = drain;
        self
    }

    /// Gives the program something to read.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Run {
        self.input = Some(input.into());
        self
    }
}

/// Why a run came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The program ended by itself (or by somebody else's signal).
    Exited,
    /// It was killed when its time was over.
    Timeout,
    /// It was killed as nobody wanted the result any more.
    Cancelled,
}

/// How reading the program's output ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Drain {
    /// All of it has been read.
    Eof,
    /// After the program's end these processes still held its pipes; what they write later is lost. Empty if nobody could
    /// be named: they belong to another user, or let go in this instant.
    Cut(Vec<u32>),
}

/// How the program was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Started {
    /// By clone and exec.
    Clone,
}

/// The result of a run. An exit code, a timeout and cut output are results, not errors; see [`check`](Output::check).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Output {
    /// The status, whatever the reason of the stop.
    pub status: ExitStatus,
    /// Why it ended.
    pub stop: Stop,
    /// Captured standard output: its head, then its tail, with [`omitted_bytes`](Output::omitted_bytes) between.
    pub stdout: Vec<u8>,
    /// Captured standard error, likewise; empty if merged into standard output.
    pub stderr: Vec<u8>,
    /// How many bytes both streams had that were not kept.
    pub omitted_bytes: u64,
    /// How reading ended.
    pub drain: Drain,
    /// From the start of the spawn to the end of reading.
    pub wall: Duration,
    /// What the program used.
    pub usage: Usage,
    /// How it was started.
    pub started: Started,
    program: String,
}

impl Output {
    /// Whether the program ended by itself with exit code 0.
    pub fn ok(&self) -> bool {
        self.stop == Stop::Exited && self.status.success()
    }

    /// The exit code; `None` if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&self.status)
    }

    /// Standard output as text, what is no UTF-8 replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
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
        let Output { program, stop, wall, stderr, .. } = &self.output;
        match (stop, self.output.code(), self.output.signal()) {
            (Stop::Timeout, ..) => write!(f, "{program} was killed after {:.3} s", wall.as_secs_f64())?,
            (Stop::Cancelled, ..) => write!(f, "{program} was cancelled")?,
            (_, Some(code), _) => write!(f, "{program} exited with code {code}")?,
            (_, None, signal) => write!(f, "{program} was killed by signal {}", signal.unwrap_or(0))?,
        }
        match String::from_utf8_lossy(stderr).trim_end().lines().last() {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ExitError {}

impl Command<'_> {
    /// Runs the program to its end and captures what it writes.
    ///
    /// It runs in a session of its own, with nothing to read, unless the command says otherwise. Standard output and error
    /// are captured where the command leaves them [`Stdio::Inherit`].
    ///
    /// # Errors
    /// Only that the program could not be started or watched; how it ended is in the [`Output`].
    pub fn run(&mut self) -> Result<Output> {
        self.run_with(&Run::default())
    }

    /// Runs the program to its end in the calling thread.
    ///
    /// # Errors
    /// As [`run`](Command::run).
    ///
    /// # Examples
    /// ```
    /// use spawnfd::{Command, Run, Stop};
    /// let slow = Command::new("sleep").arg("60").run_with(&Run::new().timeout(std::time::Duration::from_millis(50)))?;
    /// assert_eq!((slow.stop, slow.signal()), (Stop::Timeout, Some(9)));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn run_with(&mut self, run: &Run) -> Result<Output> {
        self.begin(run)?.run_here(|| false)
    }

    /// Runs the program to its end in the calling thread, unless `interrupted` says that a signal has made that pointless.
    ///
    /// It is called once the program has been started, and whenever a signal handler has run in this thread. When it returns
    /// `true` the program and its process group are killed, and the output says [`Stop::Cancelled`].
    ///
    /// # Errors
    /// As [`run`](Command::run).
    pub fn run_interruptible(&mut self, run: &Run, interrupted: impl FnMut() -> bool) -> Result<Output> {
        self.begin(run)?.run_here(interrupted)
    }

    /// Starts the program, and calls `done` with its output from a thread of the library once it has ended.
    ///
    /// One thread serves all runs; it starts with the first and ends when there have been none for a while. The program is
    /// started by the calling thread, whose confinement it inherits. Dropping the handle changes nothing.
    ///
    /// # Errors
    /// As [`run`](Command::run); then `done` is not called.
    pub fn run_then(&mut self, run: &Run, done: impl FnOnce(Result<Output>) + Send + 'static) -> Result<RunHandle> {
        engine::submit(self.begin(run)?, Box::new(done))
    }

    fn begin(&mut self, run: &Run) -> Result<Running> {
        let started = Instant::now();
        let deadline = run.timeout.and_then(|timeout| started.checked_add(timeout));
        let asked = std::mem::take(&mut self.stdio);
        let piped = |stdio: &Stdio<'_>| matches!(stdio, Stdio::Inherit);
        let capture: [bool; 3] = std::array::from_fn(|number| piped(&asked[number]));
        let mut number = 0;
        self.stdio = asked.map(|stdio| {
            let captured = capture[number];
            let input = number == 0;
            number += 1;
            match (input, captured) {
                (true, _) if run.input.is_some() => Stdio::Piped,
                (true, true) => Stdio::Null,
                (false, true) => Stdio::Piped,
                (_, false) => stdio,
            }
        });
        self.new_session = true;
        let spawned = launch::spawn(self);
        self.new_session = false;
        for (stdio, captured) in self.stdio.iter_mut().zip(capture) {
            if captured {
                *stdio = Stdio::Inherit;
            }
        }
        let (child, leads_session) = spawned?;
        let program = self.program_name().to_string_lossy().into_owned();
        Running::new(child, leads_session, program, started, deadline, run)
    }
}
