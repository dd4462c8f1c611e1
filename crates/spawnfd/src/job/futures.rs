// SPDX-License-Identifier: MIT OR Apache-2.0
//! Supervised runs as lazy futures, for any executor. The engine's thread watches all programs and wakes the tasks, so
//! no thread blocks in a wait for one child.

use std::future::{Future, pending, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::command::connect_events;
use super::run_state::Connections;
use super::{Event, EventOptions, Events, Job, Output, Run};
use crate::callback::Callback;
use crate::command::Command;
use crate::error::{Errno, Error, Result, Stage};
use crate::launch::{self, Again, Wait};
use crate::limiter::{Limiter, Permit};

impl Command<'_> {
    /// Returns a lazy future that runs the program to its end: the program starts when the future is first polled.
    ///
    /// The thread that polls the future starts the program, and the program inherits that thread's confinement. The
    /// future works on any executor.
    ///
    /// If the run has a [limiter](Run::limiter), the future first waits for a place, without blocking the thread. It
    /// enters the limiter's queue when it is first polled. The library wakes the task once the future has a place, and
    /// the next poll starts the program. The future keeps the place until then, so poll all futures that share a limiter.
    ///
    /// Dropping the future ends the run:
    /// - Before the first poll, nothing has started.
    /// - While the future waits for a place, the drop removes the future from the limiter's queue.
    /// - After the start, the drop ends the program and its process tree: SIGTERM, and SIGKILL after the run's
    ///   [`grace`](Run::grace). The library still reaps the program.
    ///
    /// # Errors
    /// The same as those of [`run`](Command::run).
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use spawnfd::limits::Limiter;
    /// use spawnfd::{Command, Run};
    /// let run = Run::new().limiter(&Limiter::new(2)); // at most two programs at once
    /// let tasks = [1, 2, 3, 4].map(|number| {
    ///     let run = run.clone();
    ///     tokio::spawn(async move { Command::new("echo").arg(number.to_string()).run_async(&run).await })
    /// });
    /// let mut sum = 0;
    /// for task in tasks {
    ///     sum += task.await.unwrap()?.stdout_text().trim().parse::<i32>().unwrap();
    /// }
    /// assert_eq!(sum, 10);
    /// # Ok::<(), spawnfd::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn run_async(&self, run: &Run) -> Result<Output> {
        self.run_until(run, pending()).await
    }

    /// The same as [`run_async`](Command::run_async), for a run that the caller may want to end early and still have the
    /// output of: once `stop` is ready, the library ends the program as the drop of the future would, and the output has
    /// the reason [`Stop::Cancelled`](crate::job::Stop::Cancelled).
    ///
    /// # Errors
    /// The same as those of [`run`](Command::run). ECANCELED: `stop` was ready before the program had started.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use spawnfd::{Command, Run};
    /// let mut command = Command::new("sh");
    /// command.args(["-c", "echo begun; exec sleep 1000"]);
    /// let (run, mut pause) = (Run::new(), Command::new("sleep"));
    /// let stop = async { drop(pause.arg("0.2").run_async(&run).await) };
    /// let output = command.run_until(&run, stop).await?;
    /// assert_eq!(output.stdout, b"begun\n");
    /// assert_eq!(output.signal(), Some(spawnfd::signal::TERM));
    /// # Ok::<(), spawnfd::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn run_until(&self, run: &Run, stop: impl Future<Output = ()>) -> Result<Output> {
        let stop = pin!(stop);
        let mut stop = Some(stop);
        match self.attempt_async(run, None, &mut stop).await {
            Err(error) if stop.is_some() => match launch::again(self, &error)? {
                Some(again) => self.attempt_async(run, Some(again), &mut stop).await,
                None => Err(error),
            },
            output => output,
        }
    }

    async fn attempt_async(
        &self,
        run: &Run,
        again: Option<Again>,
        stop: &mut Option<Pin<&mut impl Future<Output = ()>>>,
    ) -> Result<Output> {
        let permits = self.wait_for_place(run, stop).await?;
        let connections = Connections { permits, ..Connections::default() };
        let (job, ()) = self.start_with(run, Wait::Nothing, again, connections, |_| (None, ()))?;
        // No caller has a handle to write to this run's input, so end the input.
        job.close_stdin();
        let cancel = || {
            job.handle.cancel();
            None
        };
        let output = unless(stop, job.wait_async(), cancel).await;
        // The program has ended. Detach the handle, so that dropping it does not end the processes that the run
        // has left running.
        job.detach();
        output.map(Arc::unwrap_or_clone)
    }

    /// The same as [`start_events`](Command::start_events), without blocking the thread while the run's
    /// [limiter](Run::limiter) has no place.
    ///
    /// # Errors
    /// The same as those of [`run_then`](Command::run_then). ECANCELED: `stop` was ready before the program had started.
    #[doc(hidden)]
    pub async fn start_until(
        &self,
        run: &Run,
        options: EventOptions,
        stop: impl Future<Output = ()>,
    ) -> Result<(Job, Events)> {
        let stop = pin!(stop);
        let permits = self.wait_for_place(run, &mut Some(stop)).await?;
        let connections = Connections { permits, ..Connections::of_job() };
        self.start_with(run, Wait::Start, None, connections, connect_events(options))
    }

    /// Waits until the run may start, and returns its permit. Fails if `stop` is ready before.
    async fn wait_for_place(
        &self,
        run: &Run,
        stop: &mut Option<Pin<&mut impl Future<Output = ()>>>,
    ) -> Result<Vec<Permit>> {
        let permit = run.take_permit();
        let limiter = run.limiter.as_ref().filter(|_| permit.is_none());
        if limiter.is_some() {
            // An invalid run fails before the wait.
            self.validate_run(run)?;
        }
        Ok(permit_until(limiter, stop).await?.or(permit).into_iter().collect())
    }
}

/// Waits for a permit of `limiter`, if there is one. Fails with ECANCELED if `stop` is ready before.
pub(crate) async fn permit_until(
    limiter: Option<&Limiter>,
    stop: &mut Option<Pin<&mut impl Future<Output = ()>>>,
) -> Result<Option<Permit>> {
    let permit = match limiter {
        Some(limiter) => unless(stop, async { Some(limiter.acquire_async().await) }, || Some(None)).await,
        None => None,
    };
    unless(stop, ready(()), || None).await;
    if stop.is_none() {
        return Err(stopped_before_start());
    }
    Ok(permit)
}

/// The error of a run that was stopped before its program had started.
pub fn stopped_before_start() -> Error {
    Error::new(Stage::Limit, Errno::ECANCELED, "run_until()")
        .saying("the run was stopped before the program had started")
}

/// Waits for `future`. If `stop` is ready before, clears it and calls `stopped`, which can return a value in place of the
/// future's.
async fn unless<T>(
    stop: &mut Option<Pin<&mut impl Future<Output = ()>>>,
    future: impl Future<Output = T>,
    stopped: impl Fn() -> Option<T>,
) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        if stop.as_mut().is_some_and(|stop| stop.as_mut().poll(context).is_ready()) {
            *stop = None;
            if let Some(value) = stopped() {
                return Poll::Ready(value);
            }
        }
        future.as_mut().poll(context)
    })
    .await
}

impl Job {
    /// Returns a lazy future that waits for the result when it is polled, without blocking the thread.
    ///
    /// Any number of tasks can wait. Dropping the future has no effect on the run.
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
    /// The number of the task's registration.
    registration: Option<u64>,
}

impl Future for JobFuture<'_> {
    type Output = Result<Arc<Output>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let JobFuture { job, registration } = &mut *self;
        job.state.poll(registration, context)
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
    /// arrives. This call replaces the function of [`on_event`](Events::on_event).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if let Some(event) = self.try_next() {
            return Poll::Ready(Some(event).filter(|event| *event != Event::End));
        }
        // If an event has arrived since `try_next`, this call wakes the task at once.
        self.set_callback(Callback::waking(context));
        Poll::Pending
    }

    /// Returns a lazy future that waits for the next event when it is polled; `None` after the last event.
    ///
    /// Dropping the future loses no event.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use spawnfd::job::{Event, EventOptions};
    /// use spawnfd::{Command, Run};
    /// let options = EventOptions::new().lines(1000);
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
