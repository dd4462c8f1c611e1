// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command's supervised runs: to the end in the calling thread, with a callback, or by a handle.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::engine::{self, Order, RunHandle};
use super::handle::{Job, JobState};
use super::limits;
use super::run_state::{Connections, RunState};
use super::{EventOptions, Events, Output, Producer, Pty, Run, Source, events};
use crate::child::Child;
use crate::command::{Command, Stdio};
use crate::error::{ErrorKind, Result};
use crate::launch::{self, Wait};
use crate::limiter::Permit;

impl Command<'_> {
    /// Runs the program to its end and captures what it writes.
    ///
    /// It runs in a session of its own, with nothing to read, unless the command says otherwise
    /// ([`process_group`](Command::process_group): it stays in this one). Standard output and error
    /// are captured where the command leaves them [`Stdio::Inherit`](crate::Stdio::Inherit). Its process tree is ended with a timeout.
    ///
    /// # Errors
    /// Only that the program could not be started or watched; how it ended is in the [`Output`](crate::Output). One that cannot be watched any more
    /// is killed, with its process tree; it is left alone where numbers that it was watched by have become the application's (EBADF).
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
    /// assert_eq!((slow.stop, slow.signal()), (Stop::Timeout, Some(15)));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn run_with(&mut self, run: &Run) -> Result<Output> {
        self.run_interruptible(run, || false)
    }

    /// Runs the program to its end in the calling thread, unless `interrupted` says that a signal has made that pointless.
    ///
    /// It is called before or once the program has been started, whenever a signal handler has run in this thread, and where that cannot be told
    /// as the program writes, every few milliseconds. When it returns `true` the program and its process tree are ended, and the output says [`Stop::Cancelled`](crate::Stop::Cancelled).
    /// They are if it panics, too, before that goes on.
    ///
    /// # Errors
    /// As [`run`](Command::run). EINTR: while the run waited for a place with its [limiter](Run::limiter).
    pub fn run_interruptible(&mut self, run: &Run, mut interrupted: impl FnMut() -> bool) -> Result<Output> {
        let (mut gives_up, mut panic) = (false, None);
        let mut interrupted = || {
            // Nobody would end the program that unwinding leaves behind.
            let mut asked = || catch_unwind(AssertUnwindSafe(&mut interrupted));
            gives_up = gives_up
                || asked().unwrap_or_else(|payload| {
                    panic = Some(payload);
                    true
                });
            gives_up
        };
        let outcome = self.run_until(run, &mut interrupted);
        match panic {
            Some(payload) => resume_unwind(payload),
            None => outcome,
        }
    }

    fn run_until(&mut self, run: &Run, interrupted: &mut dyn FnMut() -> bool) -> Result<Output> {
        let mut attempt = |command: &mut Command<'_>| {
            command.take_turn(run, interrupted)?;
            command.begin(run, Wait::End, Connections::default())?.run_here(&mut *interrupted)
        };
        match attempt(self) {
            Err(error) if error.is_unstarted() => attempt(self.died()),
            // Another start uses another descriptor table strategy, or a new template.
            Err(error) if error.is_without_descriptors() || error.kind() == ErrorKind::Stale && self.is_named() => {
                self.renew()?;
                attempt(self)
            }
            outcome => outcome,
        }
    }

    /// The next start is cold, as one from a parked process was killed as it was about to begin (`Stage::Killed`, ESRCH).
    #[doc(hidden)]
    pub fn died(&mut self) -> &mut Self {
        self.died = true;
        self
    }

    /// Starts the program, and calls `done` with its output from a thread of the library once it has ended.
    ///
    /// One thread serves all runs of callers that are confined in the same way; it starts with the first and ends when there have been none
    /// for a while. The program is
    /// started by the calling thread, whose confinement it inherits; the call does not wait until it has become the program.
    /// Dropping the handle changes nothing.
    ///
    /// No other run is moved on while `done` is called, so it must not block. What would wait there for a run, or for a place with a
    /// [`Limiter`](crate::Limiter), is an error at once. A program that is started there inherits what the library's thread has.
    /// From there also comes the program's signal mask, while all signals are blocked in `done` itself, and in threads that it makes.
    ///
    /// # Errors
    /// As [`run`](Command::run); in another run's `done` EAGAIN: all places of the run's [limiter](Run::limiter) are taken. Then `done` is not
    /// called. What goes wrong only in the child (an action, exec) is told to `done`. So is that a parked process was killed before it had
    /// begun ([`Stage::Killed`](crate::Stage::Killed), ESRCH): then nothing has happened, and the start can be repeated.
    pub fn run_then(&mut self, run: &Run, done: impl FnOnce(Result<Output>) + Send + 'static) -> Result<RunHandle> {
        let begin = |_: &RunHandle| Ok((self.begin(run, Wait::Nothing, Connections::default())?, ()));
        let submitted = engine::submit(begin, Box::new(done));
        self.permit = None;
        submitted.map(|(handle, ())| handle)
    }

    /// Starts the program and gives a handle to it: to wait without ending it, to read, to write, to stop it.
    ///
    /// Dropping the handle ends the program, unless it is [detached](Job::detach). That is done by the library's thread: a host that
    /// exits right afterwards may be gone before it, and then the guard ends it.
    ///
    /// # Errors
    /// As [`run_then`](Command::run_then).
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
    pub fn start(&mut self, run: &Run) -> Result<Job> {
        self.start_with(run, true, |_| (None, ())).map(|(job, ())| job)
    }

    /// Starts the program; what it writes also comes as events while it runs.
    ///
    /// # Errors
    /// As [`run_then`](Command::run_then).
    pub fn start_events(&mut self, run: &Run, options: EventOptions) -> Result<(Job, Events)> {
        self.start_with(run, true, |handle| {
            let (producer, events) = events(options, handle.waker(Order::Read));
            (Some(producer), events)
        })
    }

    /// `listen` connects who is to have the output as it comes.
    pub(super) fn start_with<E>(
        &mut self,
        run: &Run,
        is_job: bool,
        listen: impl FnOnce(&RunHandle) -> (Option<Producer>, E),
    ) -> Result<(Job, E)> {
        let (writer, source) = run.writable.map(Source::stream).unzip();
        let state = Arc::new(JobState::new());
        let told = state.clone();
        let submitted = engine::submit(
            |handle| {
                if let Some(writer) = &writer {
                    writer.set_engine(handle.waker(Order::Feed));
                }
                let (events, seen) = listen(handle);
                let connections = Connections { is_job, source, events, ..Connections::default() };
                let running = self.begin(run, Wait::Start, connections)?;
                let (log, pid) = (running.log.clone(), running.pid());
                Ok((running, (log, pid, seen)))
            },
            Box::new(move |output| told.set(output.map(Arc::new))),
        );
        // Taken, unless it did not even come to that.
        self.permit = None;
        let (handle, (log, pid, seen)) = submitted?;
        Ok((Job { handle, pid, state, log, writer, ends: true }, seen))
    }

    /// Gives the next supervised run of this command a place that is taken already; it does not wait for one then.
    pub fn permit(&mut self, permit: Permit) -> &mut Self {
        self.permit = Some(permit);
        self
    }

    /// Waits for a place, if the run needs one and has none yet.
    fn take_turn(&mut self, run: &Run, interrupted: &mut dyn FnMut() -> bool) -> Result<()> {
        if let (None, Some(limiter)) = (&self.permit, &run.limiter) {
            self.permit = Some(limiter.acquire_unless(interrupted)?);
        }
        Ok(())
    }

    fn begin(&mut self, run: &Run, wait: Wait, mut connections: Connections) -> Result<RunState> {
        self.take_turn(run, &mut || false)?;
        connections.permit = self.permit.take();
        let started = Instant::now();
        if connections.source.is_none() {
            connections.source = run.input.clone().map(Source::bytes);
        }
        // What stands in for the command's own streams is this run's alone.
        let mut own: [Option<Stdio<'_>>; 3] = [None, None, None];
        for (number, (stdio, own)) in self.stdio.iter_mut().zip(&mut own).enumerate() {
            let captured = matches!(stdio, Stdio::Inherit) || run.terminal.is_some();
            let instead = match number {
                0 if connections.source.is_some() => Stdio::Piped,
                0 if captured => Stdio::Null,
                1 | 2 if captured => Stdio::Piped,
                _ => continue,
            };
            *own = Some(std::mem::replace(stdio, instead));
        }
        let actions = self.begin_own_actions();
        self.new_session = true;
        let launched = self.launch(run, wait, &mut connections);
        self.new_session = false;
        self.forget_actions_from(actions);
        // A start into a cgroup is waited for: its child needs the directory no more.
        self.end_tree();
        for (stdio, own) in self.stdio.iter_mut().zip(own) {
            if let Some(own) = own {
                *stdio = own;
            }
        }
        let child = launched?;
        let program = self.program_name().to_string_lossy().into_owned();
        RunState::new(child, program, started, run, connections)
    }

    /// Makes what a run's program is to be born with, and starts it.
    fn launch(&mut self, run: &Run, wait: Wait, connections: &mut Connections) -> Result<Child> {
        if let Some(size) = run.terminal {
            let (ours, theirs) = Pty::open(size)?;
            theirs.attach(self)?;
            if connections.source.is_none() {
                // The program reads the end of its input at once, as from /dev/null.
                ours.end_input()?;
            }
            connections.terminal = Some(ours);
        }
        (connections.tree, connections.limits) = limits::prepare(self, run, connections.is_job)?;
        if let Some(tree) = &connections.tree {
            self.begin_tree(tree)?;
        }
        launch::spawn(self, wait)
    }
}
