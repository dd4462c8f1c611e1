// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts supervised runs of a command: blocking, with a callback, or with a handle.

use std::iter::zip;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Instant;

use super::engine::{self, EngineOrder, RunHandle, end_idle_helpers};
use super::handle::{Job, JobState};
use super::input::InputEngine;
use super::limits;
use super::run_state::{Connections, RunState};
use super::{EventOptions, Events, Output, Producer, Pty, Run, Source, events};
use crate::child::Child;
use crate::command::{Command, Start};
use crate::error::{Error, Result};
use crate::host::one_start::OneStart;
use crate::launch::{self, Again, Wait};
use crate::sandbox::SandboxDescriptor;
use crate::tree::Tier;

impl Command<'_> {
    /// Starts the program, and returns as soon as the child has become the program (see
    /// [`wait_for_exec`](Command::wait_for_exec) for the exception).
    ///
    /// # Errors
    /// The failed [`Stage`](crate::error::Stage), errno, and the index of the action. No process is left behind. A
    /// command made from a [`Template`](crate::Template) fails as stale if the executable has changed. A command made
    /// from a name gets a new template instead. If the caller may not have another process (EAGAIN), the call ends the
    /// library's idle helpers and tries once more.
    pub fn spawn(&self) -> Result<Child> {
        let wait = if self.waits { Wait::Exec } else { Wait::Nothing };
        let mut prepare = |may_have_helpers: bool| {
            if !may_have_helpers {
                end_idle_helpers();
            }
            Ok(Start::new(self))
        };
        let _one_start = OneStart::begin();
        launch::spawn(&mut prepare, wait)
    }

    /// Starts the program and waits for its end, as [`std::process::Command::status`] does. The program inherits the
    /// streams that the command does not set, and runs in the caller's session, without a timeout. For output, a
    /// timeout, or control over the program's children, use [`run_with`](Command::run_with).
    ///
    /// No guard watches the program: if SIGTERM or SIGKILL ends the caller, this program runs on, and a program of
    /// [`run`](Command::run) does not.
    ///
    /// # Errors
    /// Those of [`spawn`](Command::spawn) and [`Child::wait`].
    ///
    /// # Examples
    /// ```
    /// # use spawnfd::Command;
    /// assert!(Command::new("true").status()?.success());
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn status(&self) -> Result<ExitStatus> {
        self.spawn()?.wait()
    }

    /// Runs the program to its end and captures its output.
    ///
    /// The program runs in a session of its own and reads `/dev/null`, unless the command says otherwise. With
    /// [`process_group`](Command::process_group) it stays in the caller's session. The library captures standard
    /// output and standard error, unless the command connects them elsewhere.
    ///
    /// The program and its process tree end with this process, however this process ends: a helper process, the guard,
    /// kills them. The first run starts the guard, which ends up to a second after the last run.
    /// [`Run::tree`](crate::Run::tree) with [`TreeControl::Group`](crate::tree::TreeControl::Group) starts no guard.
    ///
    /// # Errors
    /// The program could not be started or watched. How the program ended is in the [`Output`]. If the
    /// library cannot watch the program any longer, it kills the program and its process tree. If the application has
    /// reused one of the run's descriptor numbers (EBADF), the library leaves the program alone.
    pub fn run(&self) -> Result<Output> {
        self.run_with(&Run::default())
    }

    /// The same as [`run`](Command::run), for callers used to [`std::process::Command::output`].
    ///
    /// # Errors
    /// The same as those of [`run`](Command::run).
    pub fn output(&self) -> Result<Output> {
        self.run()
    }

    /// Runs the program to its end in the calling thread.
    ///
    /// # Errors
    /// The same as those of [`run`](Command::run).
    ///
    /// # Examples
    /// ```
    /// use spawnfd::job::Stop;
    /// use spawnfd::{Command, Run};
    /// let slow = Command::new("sleep").arg("60").run_with(&Run::new().timeout(std::time::Duration::from_millis(50)))?;
    /// assert_eq!((slow.stop, slow.signal()), (Stop::Timeout, Some(15)));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn run_with(&self, run: &Run) -> Result<Output> {
        self.run_interruptible(run, || false)
    }

    /// Runs the program to its end in the calling thread, unless `interrupted` returns `true`.
    ///
    /// The library calls `interrupted` when it begins to wait for the run's limiter, once after the program has
    /// started, and after each signal handler that runs in this thread. A signal that arrives while the library reads
    /// output interrupts no sleep, so the library also calls `interrupted` after every 10 ms of such work. When
    /// `interrupted` returns `true`, the library ends the program and its process tree, and the output says
    /// [`Stop::Cancelled`](crate::job::Stop::Cancelled). If `interrupted` panics, the library does the same before it
    /// resumes the panic.
    ///
    /// # Errors
    /// The same as those of [`run`](Command::run). EINTR: `interrupted` returned `true` while the run waited for a
    /// place with its [limiter](Run::limiter).
    pub fn run_interruptible(&self, run: &Run, mut interrupted: impl FnMut() -> bool) -> Result<Output> {
        let (mut is_cancelled, mut panic) = (false, None);
        let mut interrupted = || {
            // Catch a panic of the callback: if it unwound past the run, the program would keep running.
            let mut call = || catch_unwind(AssertUnwindSafe(&mut interrupted));
            is_cancelled = is_cancelled
                || call().unwrap_or_else(|payload| {
                    panic = Some(payload);
                    true
                });
            is_cancelled
        };
        let outcome = self.run_unless(run, &mut interrupted);
        match panic {
            Some(payload) => resume_unwind(payload),
            None => outcome,
        }
    }

    fn run_unless(&self, run: &Run, interrupted: &mut dyn FnMut() -> bool) -> Result<Output> {
        let mut attempt = |again| {
            self.begin(run, Wait::End, again, Connections::default(), interrupted)?
                .run_blocking(None, &mut *interrupted)
                .map(|(output, _)| output)
        };
        match attempt(None) {
            Err(error) => match launch::again(self, &error)? {
                Some(again) => attempt(Some(again)),
                None => Err(error),
            },
            output => output,
        }
    }

    /// Starts the program; a thread of the library calls `done` with the output when the program has ended.
    ///
    /// One thread serves all runs of callers that are confined in the same way. It starts with the first run and
    /// exits after it has been idle for 500 ms. The calling thread starts the program, so the program inherits the
    /// caller's confinement. The call does not wait for exec. Dropping the handle has no effect on the run.
    ///
    /// The library's thread serves no other run while it executes `done`, so `done` must not block. A call in `done`
    /// that would wait for a run, or for a place with a [`Limiter`](crate::limits::Limiter), fails at once. A program that
    /// `done` starts inherits the confinement of the library's thread, and gets the signal mask of the caller whose
    /// run started that thread. All signals are blocked in `done` itself, and in threads that `done` creates.
    ///
    /// # Errors
    /// The same as those of [`run`](Command::run). EAGAIN, in another run's `done`: all places of the run's
    /// [limiter](Run::limiter) are taken. If this call returns an error, the library does not call `done`. `done`
    /// gets the errors that occur only in the child (an action, exec). `done` also gets the error of a parked process
    /// that was killed before it began ([`Stage::Killed`](crate::error::Stage::Killed), ESRCH). In this case no program has
    /// been executed, and the caller can repeat the start.
    pub fn run_then(&self, run: &Run, done: impl FnOnce(Result<Output>) + Send + 'static) -> Result<RunHandle> {
        let connections = Connections { permits: run.take_permit().into_iter().collect(), ..Connections::default() };
        let begin = |_: &RunHandle| Ok((self.begin(run, Wait::Nothing, None, connections, &mut || false)?, ()));
        engine::submit(begin, Box::new(done)).map(|(handle, ())| handle)
    }

    /// Starts the program and returns its handle, which can wait, read, write, and stop the program.
    ///
    /// Dropping the handle ends the program, unless the caller has [detached](Job::detach) it. A thread of the
    /// library sends SIGTERM, and SIGKILL after the run's [`grace`](crate::Run::grace). If this process ends before
    /// that, the guard sends SIGKILL.
    ///
    /// # Errors
    /// The same as those of [`run_then`](Command::run_then).
    ///
    /// # Examples
    /// ```
    /// use spawnfd::{Command, Run};
    /// use std::time::Duration;
    /// let job = Command::new("cat").start(&Run::new().writable(4096).window(4096))?;
    /// job.write(b"hello")?;
    /// assert!(job.wait_timeout(Duration::from_millis(20))?.is_none(), "it runs on");
    /// job.close_stdin();
    /// assert_eq!(job.wait()?.stdout, b"hello");
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn start(&self, run: &Run) -> Result<Job> {
        self.start_with(run, Wait::Start, None, Connections::of_job(), |_| (None, ())).map(|(job, ())| job)
    }

    /// Starts the program and also delivers its output as events while it runs.
    ///
    /// # Errors
    /// The same as those of [`run_then`](Command::run_then).
    pub fn start_events(&self, run: &Run, options: EventOptions) -> Result<(Job, Events)> {
        self.start_with(run, Wait::Start, None, Connections::of_job(), connect_events(options))
    }

    /// Starts a run with a handle. The sandbox command gets these descriptors, in place of its own with the same numbers.
    pub(crate) fn start_giving(&self, run: &Run, given: Vec<SandboxDescriptor>) -> Result<Job> {
        let connections = Connections { given, ..Connections::of_job() };
        self.start_with(run, Wait::Start, None, connections, |_| (None, ())).map(|(job, ())| job)
    }

    /// Starts a run with a handle.
    pub(super) fn start_with<E>(
        &self,
        run: &Run,
        wait: Wait,
        again: Option<Again>,
        mut connections: Connections,
        connect: impl FnOnce(&RunHandle) -> (Option<Producer>, E),
    ) -> Result<(Job, E)> {
        connections.permits.extend(run.take_permit());
        start_job(run, connections, connect, |connections| self.begin(run, wait, again, connections, &mut || false))
    }

    /// Checks the run's options, and that at most one of them and of the command's streams provides each stream.
    pub(crate) fn validate_run(&self, run: &Run) -> Result<()> {
        run.validate()?;
        let mut explicit =
            zip(["stdin", "stdout", "stderr"], &self.stdio).filter(|(_, stdio)| stdio.is_some()).map(|(name, _)| name);
        let has_stdin = self.stdio[0].is_some();
        let conflict = match run {
            Run { input: Some(_), writable: Some(_), .. } => Some(("input", "writable")),
            Run { input: Some(_), .. } if has_stdin => Some(("input", "stdin")),
            Run { writable: Some(_), .. } if has_stdin => Some(("writable", "stdin")),
            Run { terminal: Some(_), .. } => explicit.next().map(|stream| ("terminal", stream)),
            _ => None,
        };
        conflict.map_or(Ok(()), |(option, other)| {
            let message = format!("{option} cannot be combined with {other}");
            Err(Error::invalid(format!("{option}, {other}")).saying(message))
        })
    }

    /// Starts the program of a run. `interrupted` can end the wait for a place.
    fn begin(
        &self,
        run: &Run,
        wait: Wait,
        again: Option<Again>,
        mut connections: Connections,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<RunState> {
        // A failure returns the permit.
        connections.permits.extend(run.take_permit());
        self.validate_run(run)?;
        if let (Some(limiter), []) = (&run.limiter, &connections.permits[..]) {
            connections.permits.push(limiter.acquire_unless(interrupted)?);
            OneStart::forget();
        }
        let _one_start = OneStart::begin();
        let started = Instant::now();
        if connections.source.is_none() {
            connections.source = run.input.clone().map(Source::bytes);
        }
        let mut prepare = |may_have_helpers| self.prepare(run, may_have_helpers, again, &mut connections);
        let child = launch::spawn(&mut prepare, wait)?;
        let program = self.program_name().to_string_lossy().into_owned();
        RunState::of_child(child, program, started, run, connections)
    }

    /// Prepares the terminal, tree and limits of a run. If `may_have_helpers` is false, ends the idle helpers, and uses
    /// no guard unless the caller has asked for it.
    fn prepare(
        &self,
        run: &Run,
        may_have_helpers: bool,
        again: Option<Again>,
        connections: &mut Connections,
    ) -> Result<Start<'_>> {
        if !may_have_helpers {
            connections.tree = None;
            end_idle_helpers();
        }
        let mut start = Start::of_run(self, connections.source.is_some());
        start.is_cold = again == Some(Again::Cold);
        start.given.clone_from(&connections.given);
        if let Some(size) = run.terminal {
            let (ours, theirs) = Pty::open(size)?;
            theirs.attach_to_start(&mut start)?;
            if connections.source.is_none() {
                // Without input, the program reads EOF at once, as it would from /dev/null.
                ours.end_input()?;
            }
            connections.terminal = Some(ours);
        }
        let (tree, limits) = limits::prepare(&mut start, &run.limits, run.tree, run.grace, may_have_helpers)?;
        // A tree of the tier group has no place of its own.
        if tree.tier() != Tier::Group {
            start.placement = Some(tree.placement()?);
        }
        (connections.tree, connections.limits) = (Some(tree), limits);
        Ok(start)
    }
}

/// Returns the argument `connect` of [`start_job`] for a caller that wants events.
pub(crate) fn connect_events(options: EventOptions) -> impl FnOnce(&RunHandle) -> (Option<Producer>, Events) {
    move |handle| {
        let (producer, events) = events(options, handle.callback(EngineOrder::Read));
        (Some(producer), events)
    }
}

/// Starts a run with a handle. `begin` starts the program. If the caller wants output while the program runs, `connect`
/// creates an event queue, and returns the producer for the engine and the consumer for the caller.
pub(crate) fn start_job<E>(
    run: &Run,
    connections: Connections,
    connect: impl FnOnce(&RunHandle) -> (Option<Producer>, E),
    begin: impl FnOnce(Connections) -> Result<RunState>,
) -> Result<(Job, E)> {
    let (writer, source) = run.writable.map(Source::stream).unzip();
    let state = Arc::new(JobState::new());
    let for_callback = state.clone();
    let begin = |handle: &RunHandle| {
        if let Some(writer) = &writer {
            let (wake, run) = (handle.callback(EngineOrder::Feed), handle.clone());
            writer.set_engine(InputEngine { wake, is_watched: Box::new(move |fd| run.may_use(fd)) });
        }
        let (events, consumer) = connect(handle);
        let source = source.or_else(|| run.input.clone().map(Source::bytes));
        let run_state = begin(Connections { source, events, ..connections })?;
        let job = Job {
            handle: handle.clone(),
            pid: run_state.running.id(),
            state,
            record: run_state.record.clone(),
            writer,
            sources: if run.spill.is_none() { run_state.sources() } else { Default::default() },
            output_limit: run.output_limit.unwrap_or(u64::MAX),
            tier: run_state.running.tier(),
            command_limits: run_state.command_limits(),
            program: if run.grace.is_zero() { None } else { run_state.running.shared() },
            ends_on_drop: true,
        };
        Ok((run_state, (job, consumer)))
    };
    let done = Box::new(move |output: Result<Output>| for_callback.set(output.map(Arc::new)));
    engine::submit(begin, done).map(|(_, started)| started)
}
