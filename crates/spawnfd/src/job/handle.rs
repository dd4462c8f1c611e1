// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a supervised run, and its result.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::engine::{EngineOrder, RunHandle};
use super::limits::LimitMonitor;
use super::record::{OutputSource, SharedRecord};
use super::run_state::SharedProgram;
use super::{Chunk, InputWriter, Output, TerminalSize};
use crate::callback::Callback;
use crate::error::{Errno, Error, Result, Stage};
use crate::host::per_process::PerProcess;
use crate::host::thread;
use crate::tree::Tier;
use spawnfd_guard::process::Stat;

/// The handle of a supervised run. Dropping it ends the program.
///
/// A copy of the handle in a forked process is useless: waiting fails with ECHILD, writing fails with EPIPE, reading
/// returns nothing, and dropping it has no effect.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Run};
/// use std::time::Duration;
/// let job = Command::new("sleep").arg("1000").start(&Run::new())?;
/// assert!(job.wait_timeout(Duration::from_millis(10))?.is_none(), "it still runs");
/// job.stop(Duration::from_secs(1)); // SIGTERM, and SIGKILL a second later
/// assert_eq!(job.wait()?.signal(), Some(spawnfd::signal::TERM));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "dropping a job ends its program"]
#[derive(Debug)]
pub struct Job {
    pub(crate) handle: RunHandle,
    pub(super) pid: u32,
    pub(super) state: Arc<JobState>,
    pub(super) record: Arc<SharedRecord>,
    pub(super) writer: Option<InputWriter>,
    /// The sources of the output, which the run owns.
    pub(super) sources: [Weak<OutputSource>; 2],
    pub(super) output_limit: u64,
    /// How far control of the process tree reaches.
    pub(crate) tier: Tier,
    /// If the run has limits, those of a command in this job's shell.
    pub(crate) command_limits: Option<Box<LimitMonitor>>,
    /// The program, if dropping the handle sends SIGTERM.
    pub(super) program: Option<SharedProgram>,
    /// Dropping the handle ends the program; `detach` clears this.
    pub(super) ends_on_drop: bool,
}

/// The result of a job, and the callbacks to call when the result is set.
#[derive(Debug)]
pub(super) struct JobState {
    result: PerProcess<JobResult>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct JobResult {
    outcome: Option<Result<Arc<Output>>>,
    /// The number of threads that wait for the result.
    waiting: usize,
    /// Callbacks that `set` calls. The key is the number of the registration.
    callbacks: BTreeMap<u64, Callback>,
    last_registration: u64,
}

impl JobResult {
    /// Registers a callback under the number `registration`, or under a new one. Returns the number and the callback
    /// that it replaces.
    fn register(&mut self, registration: Option<u64>, callback: Callback) -> (u64, Option<Callback>) {
        self.last_registration += 1;
        let registration = registration.unwrap_or(self.last_registration);
        (registration, self.callbacks.insert(registration, callback))
    }

    /// Returns an error if there is no result yet and the caller is the engine's thread. That
    /// thread produces the result, so it cannot wait for it.
    fn check_may_wait(&self) -> Result<()> {
        if self.outcome.is_none() && thread::is_engine() {
            let message = "a run's callback cannot wait for a run: the same thread delivers the result";
            return Err(Error::new(Stage::Wait, Errno::EDEADLK, "wait(), in a run's callback").saying(message));
        }
        Ok(())
    }
}

impl JobState {
    pub(super) fn new() -> JobState {
        // In a forked copy of the host, the result is an error: the program is not a child of the copy.
        let in_fork = || JobResult { outcome: Some(Err(not_ours())), ..JobResult::default() };
        JobState { result: PerProcess::for_this_process(JobResult::default(), in_fork), changed: Condvar::new() }
    }

    pub(super) fn set(&self, outcome: Result<Arc<Output>>) {
        let mut result = self.result.lock();
        result.outcome = Some(outcome);
        let callbacks = std::mem::take(&mut result.callbacks);
        let waiting = result.waiting;
        drop(result);
        if waiting > 0 {
            self.changed.notify_all();
        }
        callbacks.values().for_each(Callback::call);
    }

    /// Returns the result, or registers the task to be woken when the result is set. `registration`: the number of
    /// the task's registration, which this call sets.
    pub(super) fn poll(&self, registration: &mut Option<u64>, task: &Context<'_>) -> Poll<Result<Arc<Output>>> {
        // A task's waker may take locks of its own. So clone and drop wakers only while the lock of `result` is not
        // held.
        let callback = Callback::waking(task);
        let mut result = self.result.lock();
        if let Some(outcome) = &result.outcome {
            return Poll::Ready(outcome.clone());
        }
        let (number, before) = result.register(*registration, callback);
        drop(result);
        drop(before);
        *registration = Some(number);
        Poll::Pending
    }

    /// Removes a registered callback.
    pub(super) fn unregister(&self, registration: u64) {
        let callback = self.result.lock().callbacks.remove(&registration);
        drop(callback);
    }
}

fn not_ours() -> Error {
    let message = "a forked process cannot wait for this program: the program is a child of the original process";
    Error::new(Stage::Wait, Errno::ECHILD, "wait(), in a forked process").saying(message)
}

impl Job {
    /// The program's process id, for printing. Another process may have the same id once the program has ended.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// How far control of the process tree reaches.
    #[doc(hidden)]
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Passes an order to what drives the run.
    #[doc(hidden)]
    pub fn order(&self, order: EngineOrder) {
        self.handle.order(order);
    }

    /// Waits for the result. Can be called any number of times.
    ///
    /// # Errors
    /// The program could not be started or watched. How the program ended is in the [`Output`]. EDEADLK: the run has
    /// no result yet, and the caller is a run's [callback](crate::Command::run_then), in the thread that would
    /// produce the result.
    pub fn wait(&self) -> Result<Arc<Output>> {
        let mut result = self.state.result.lock();
        result.check_may_wait()?;
        result.waiting += 1;
        let waited = self.state.changed.wait_while(result, |result| result.outcome.is_none());
        let mut result = waited.unwrap_or_else(PoisonError::into_inner);
        result.waiting -= 1;
        result.outcome.clone().unwrap_or_else(|| Err(not_ours()))
    }

    /// Waits for the result for at most `timeout`. Returns `None` if there is no result after that time. The timeout
    /// does not affect the program.
    ///
    /// # Errors
    /// The same as those of [`wait`](Job::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Arc<Output>>> {
        let mut result = self.state.result.lock();
        if !timeout.is_zero() {
            result.check_may_wait()?;
        }
        result.waiting += 1;
        let waited = self.state.changed.wait_timeout_while(result, timeout, |result| result.outcome.is_none());
        let (mut result, _) = waited.unwrap_or_else(PoisonError::into_inner);
        result.waiting -= 1;
        result.outcome.clone().transpose()
    }

    /// Returns the result if the run has ended; does not wait.
    ///
    /// # Errors
    /// The same as those of [`wait`](Job::wait).
    pub fn try_wait(&self) -> Result<Option<Arc<Output>>> {
        self.state.result.lock().outcome.clone().transpose()
    }

    /// Calls `done` once when the result is set, or at once if it is set already. Several functions can be registered.
    /// The library's thread calls `done`, so `done` must not block.
    pub fn when_done(&self, done: impl Fn() + Send + Sync + 'static) {
        let callback = Callback::new(done);
        let mut result = self.state.result.lock();
        if result.outcome.is_none() {
            result.register(None, callback);
        } else {
            drop(result);
            callback.call();
        }
    }

    /// The output of both streams from position `since` on, as far as the [window](crate::Run::window) still has it.
    pub fn read(&self, since: u64) -> Chunk {
        self.record.lock().read(since)
    }

    /// The same as [`read`](Job::read), for at most `max` bytes. These may end within a character.
    pub fn read_up_to(&self, since: u64, max: usize) -> Chunk {
        self.record.lock().read_up_to(since, max)
    }

    /// How long the program has written no output.
    pub fn idle(&self) -> Duration {
        self.record.lock().latest().elapsed()
    }

    /// Waits until `find` returns a value for the output from position `since` on, for at most `timeout`. `find` gets
    /// what [`read`](Job::read) returns, at once and again after each further output. Returns `None` after `timeout`, or
    /// once the run has its result and `find` has had all output. In a run's [callback](crate::Command::run_then) the
    /// call does not wait.
    ///
    /// The [window](crate::Run::window) bounds the output that `find` can get.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::{Command, Run};
    /// use std::time::Duration;
    /// let job = Command::new("sh").args(["-c", "echo ready; exec sleep 60"]).start(&Run::new().window(4096))?;
    /// let ready = job.wait_for(0, Duration::from_secs(10), |output| output.text().contains("ready").then_some(output.next));
    /// assert_eq!(ready, Some(6));
    /// # job.stop(Duration::ZERO);
    /// # job.wait()?;
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn wait_for<T>(&self, since: u64, timeout: Duration, mut find: impl FnMut(&Chunk) -> Option<T>) -> Option<T> {
        let timeout = if thread::is_engine() { Duration::ZERO } else { timeout };
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let (chunk, seen, is_last) = {
                let record = self.record.lock();
                (record.read(since), record.seen(), record.is_closed())
            };
            let found = find(&chunk);
            if found.is_some() || is_last || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return found;
            }
            self.record.wait(seen, deadline);
        }
    }

    /// Whether the run has its result or has failed, so that no more output arrives, except from adopted processes.
    pub fn output_has_ended(&self) -> bool {
        self.record.lock().is_closed()
    }

    /// Calls `arrived` after each output, and when the run has its result. This call replaces the function of an
    /// earlier call. The library's thread calls `arrived`, so `arrived` must not block.
    pub fn on_output(&self, arrived: impl Fn() + Send + Sync + 'static) {
        let before = self.record.lock().callback.replace(Callback::new(arrived));
        drop(before);
    }

    /// Queues input for the program. Returns how many bytes were accepted: fewer than all if the queue is full.
    ///
    /// # Errors
    /// EPIPE: the program reads no more. EBADF: the run is not [writable](crate::Run::writable).
    pub fn write(&self, bytes: &[u8]) -> Result<usize> {
        self.writer()?.write(bytes)
    }

    /// Queues input for the program, and waits for at most `timeout` for space in the queue. Returns how many bytes
    /// were accepted.
    ///
    /// # Errors
    /// The same as those of [`write`](Job::write).
    pub fn write_timeout(&self, bytes: &[u8], timeout: Duration) -> Result<usize> {
        self.writer()?.write_timeout(bytes, timeout)
    }

    /// Calls `writable` each time the queue has space again after a [`write`](Job::write) that did not accept all
    /// bytes, and when the program stops reading. This call replaces the function of an earlier call. The library's
    /// thread calls `writable`, so `writable` must not block.
    pub fn on_writable(&self, writable: impl Fn() + Send + Sync + 'static) {
        if let Some(writer) = &self.writer {
            writer.set_callback(Callback::new(writable));
        }
    }

    /// Ends the program's input: the program reads EOF after the bytes that are queued so far.
    pub fn close_stdin(&self) {
        if let Some(writer) = &self.writer {
            writer.close();
        }
    }

    fn writer(&self) -> Result<&InputWriter> {
        let not_writable = || {
            let message = "the program's input is not writable: the run was started without a queue for it";
            Error::new(Stage::Capture, Errno::EBADF, "write(stdin)").saying(message)
        };
        self.writer.as_ref().ok_or_else(not_writable)
    }

    /// Ends the program and its process tree: sends SIGTERM, and SIGKILL after `grace`. The result's `stop` is
    /// [`Stop::Cancelled`](crate::job::Stop::Cancelled).
    pub fn stop(&self, grace: Duration) {
        self.handle.order(EngineOrder::End { grace: Some(grace) });
    }

    /// Sends a signal to the program, or with `tree` to its whole process tree. Signal 0 sends nothing, as in kill(2).
    /// [`signal`](crate::signal) has the numbers of the signals.
    ///
    /// # Errors
    /// EINVAL: no such signal.
    pub fn signal(&self, signal: i32, tree: bool) -> Result<()> {
        crate::signals::check_number(signal)?;
        self.handle.order(EngineOrder::Signal { signal, tree });
        Ok(())
    }

    /// Changes the size of the run's [terminal](crate::Run::terminal); the foreground process group gets SIGWINCH.
    pub fn resize(&self, size: TerminalSize) {
        self.handle.order(EngineOrder::Resize(size));
    }

    /// Lets the tree find and remember its processes. Call this before the program or one of them is made to end by another
    /// way than the job's: their children may have left the session.
    pub(crate) fn remember_members(&self) {
        if let Some(program) = self.program.as_ref().filter(|_| self.handle.is_driven()) {
            program.remember_members();
        }
    }

    /// The processes that have outlived the program, if the job has adopted them.
    pub(crate) fn survivors(&self) -> Vec<Stat> {
        let program = self.program.as_ref().filter(|_| self.handle.is_driven());
        program.map_or_else(Vec::new, SharedProgram::survivors)
    }

    /// Drops the handle without ending the program. The library still watches, drains and reaps the program.
    pub fn detach(mut self) {
        self.ends_on_drop = false;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.ends_on_drop {
            // The process may end before the engine carries out the order, so send the first signal here.
            self.program.iter().filter(|_| self.handle.is_driven()).for_each(SharedProgram::terminate);
            self.handle.order(EngineOrder::End { grace: None });
        }
        // The engine may have a reference to this state for a moment longer. Take the result out now, so that its
        // spill file is released.
        let result = self.state.result.lock().outcome.take();
        drop(result);
    }
}
