// SPDX-License-Identifier: MIT OR Apache-2.0
//! Supervised runs as futures, for any executor. The engine's thread watches all programs and wakes the tasks, so no
//! thread blocks in a wait for one child.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Event, Events, Job, Output, Run};
use crate::command::Command;
use crate::error::{Errno, Error, Result, Stage};
use crate::limiter::Limiter;
use crate::waker::Waker;

impl Command<'_> {
    /// Starts the program and returns a future of its output.
    ///
    /// This call starts the program in the calling thread, and the program inherits that thread's confinement. The
    /// future only waits, and works on any executor.
    ///
    /// Dropping the future before it is ready ends the program and its process tree: SIGTERM, and SIGKILL after the
    /// run's [`grace`](Run::grace). The library still reaps the program.
    ///
    /// # Errors
    /// The same as those of [`run`](Command::run). EAGAIN: all places of the run's [limiter](Run::limiter) are taken.
    /// The future returns all errors.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use spawnfd::{Command, Run};
    /// let (mut one, mut two) = (Command::new("echo"), Command::new("echo"));
    /// let (one, two) = (one.arg("1").run_async(&Run::new()), two.arg("2").run_async(&Run::new()));
    /// assert_eq!((one.await?.text(), two.await?.text()), ("1\n".into(), "2\n".into()));
    /// # Ok::<(), spawnfd::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "dropping the future ends the program"]
    pub fn run_async(&mut self, run: &Run) -> impl Future<Output = Result<Output>> + Send + use<> {
        let job = self.start_without_waiting(run);
        async move {
            let job = job?;
            // No caller has a handle to write to this run's input, so end the input.
            job.close_stdin();
            let output = job.wait_async().await;
            // The program has ended. Detach the handle, so that dropping it does not end the processes that the run
            // has left running.
            job.detach();
            output.map(Arc::unwrap_or_clone)
        }
    }

    fn start_without_waiting(&mut self, run: &Run) -> Result<Job> {
        if let (None, Some(limiter)) = (&self.permit, &run.limiter) {
            let none = || {
                let message = "the limiter has no free permit: await Limiter::run_async or acquire_async";
                Error::new(Stage::Limit, Errno::EAGAIN, "limiter: try_acquire()").saying(message)
            };
            self.permit = Some(limiter.try_acquire().ok_or_else(none)?);
        }
        self.start_with(run, false, |_| (None, ())).map(|(job, ())| job)
    }
}

impl Job {
    /// Waits for the result without blocking. Any number of tasks can wait. Dropping the future has no effect on the
    /// run.
    ///
    /// # Errors
    /// The same as those of [`wait`](Job::wait).
    pub fn wait_async(&self) -> impl Future<Output = Result<Arc<Output>>> + Send + '_ {
        JobFuture { job: self, registration: None }
    }
}

/// A task that waits for a job's result.
struct JobFuture<'a> {
    job: &'a Job,
    /// The number of the waker's registration.
    registration: Option<u64>,
}

impl Future for JobFuture<'_> {
    type Output = Result<Arc<Output>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let JobFuture { job, registration } = &mut *self;
        job.state.poll(registration, context.waker())
    }
}

impl Drop for JobFuture<'_> {
    fn drop(&mut self) {
        if let Some(registration) = self.registration {
            self.job.state.unregister(registration);
        }
    }
}

impl Events {
    /// The next event, or `None` after the last. If no event has arrived yet, the engine wakes the task when one
    /// arrives. This call replaces the waker of [`set_waker`](Events::set_waker).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if let Some(event) = self.try_next() {
            return Poll::Ready(Some(event).filter(|event| *event != Event::End));
        }
        let task = context.waker().clone();
        // If an event has arrived since `try_next`, this call wakes the task at once.
        self.set_waker(Waker::new(move || task.wake_by_ref()));
        Poll::Pending
    }

    /// Waits for the next event without blocking; `None` after the last. Dropping the future loses no event.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use spawnfd::{Command, Event, EventOptions, Run};
    /// let options = EventOptions { lines: Some(1000), ..EventOptions::default() };
    /// let (job, mut events) = Command::new("seq").arg("3").start_events(&Run::new(), options)?;
    /// let mut sum = 0;
    /// while let Some(event) = events.next().await {
    ///     if let Event::Line { bytes, .. } = event {
    ///         sum += i32::from(bytes[0] - b'0');
    ///     }
    /// }
    /// assert!(sum == 6 && job.wait_async().await?.ok());
    /// # Ok::<(), spawnfd::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

impl Limiter {
    /// Waits for a place and then for the output, without blocking the thread; see
    /// [`Command::run_async`](crate::Command::run_async).
    ///
    /// When a place is free, the thread that polls the future starts the program. The program inherits that thread's
    /// confinement.
    ///
    /// # Errors
    /// The same as those of [`Command::run_async`](crate::Command::run_async).
    pub async fn run_async(&self, command: &mut Command<'_>, run: &Run) -> Result<Output> {
        let permit = self.acquire_async().await;
        command.permit(permit).run_async(run).await
    }
}
