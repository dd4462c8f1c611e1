// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine: a thread that drives asynchronous runs. The thread starts with the first run, and ends after it has
//! been idle for 500 ms. The thread also wakes tasks that wait for a [`Child`](crate::Child).
//!
//! The thread signals programs and searches for their descendants, so it serves only callers with the same [`Reach`]
//! (credentials and confinement). Usually one engine serves all threads of a process. Threads that are confined or
//! scheduled differently have another engine.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use spawnfd_sys::{Errno, call};

use super::run_state::{RECHECK_INTERVAL, REPLACED, RunFd, RunState};
use super::{Output, Stop, TerminalSize};
use crate::callback::{Callback, catch_panic};
use crate::error::{Error, Result, Stage, errno};
use crate::host::authority::Reach;
use crate::host::descriptors::CheckedFd;
use crate::host::per_process::PerProcess;
use crate::host::thread::{self, ExitingThread};
use crate::{launch, reaper, tree};

/// How long an idle engine thread waits for another run before it ends.
const IDLE: Duration = Duration::from_millis(500);

/// The interval at which to check whether the helpers of runs have ended.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_micros(20);

/// How many calls the thread makes before it looks at its runs again.
const CALLS_AT_ONCE: usize = 4;

/// The epoll data of the eventfd that only wakes the thread.
const WAKE: u64 = u64::MAX;

/// The epoll data of a run's descriptor.
fn epoll_data(id: u64, fd_kind: RunFd) -> epoll::EventData {
    epoll::EventData::new_u64(id << 2 | fd_kind as u64)
}

type OnDone = Box<dyn FnOnce(Result<Output>) + Send>;

/// The handle of a run that the engine drives.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Run};
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let handle = Command::new("sleep").arg("1000").run_then(&Run::new(), move |output| sender.send(output).unwrap())?;
/// handle.cancel();
/// assert_eq!(receiver.recv().unwrap()?.signal(), Some(spawnfd::signal::TERM));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RunHandle {
    /// The reference is weak, because a job's handle must not keep the engine's descriptors open
    /// after the engine's thread has ended.
    engine: Weak<Engine>,
    id: u64,
}

impl RunHandle {
    /// Ends the program and its process tree, if the program still runs, as a timeout would. The library still calls
    /// the callback, with the output so far.
    pub fn cancel(&self) {
        self.order(EngineOrder::End { grace: None });
    }

    pub(crate) fn order(&self, order: EngineOrder) {
        self.send(|inbox| inbox.orders.push((self.id, order)));
    }

    /// Makes the engine's thread call `callback`. Returns `false` if the thread is ending.
    pub(super) fn call_soon(&self, callback: Callback) -> bool {
        self.send(|inbox| inbox.calls.push_back(callback))
    }

    /// Puts something into the engine's inbox, and wakes the engine. Returns `false` if the engine's thread is ending.
    fn send(&self, put: impl FnOnce(&mut Inbox)) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let mut inbox = engine.inbox.lock();
        // In a forked copy of the host, `over` is set: the copy has no engine thread, and the program is not its
        // child.
        if inbox.over {
            return false;
        }
        put(&mut inbox);
        drop(inbox);
        engine.wake();
        true
    }

    /// The engine, unless its thread is ending. In a forked copy of the host, `over` is set.
    fn engine(&self) -> Option<Arc<Engine>> {
        self.engine.upgrade().filter(|engine| !engine.inbox.lock().over)
    }

    /// Whether an engine of this process drives the run.
    pub(super) fn is_driven(&self) -> bool {
        self.engine().is_some()
    }

    /// Whether the calling thread may use this descriptor of the run: the engine still watches the run, and the
    /// application has not closed or replaced the descriptor.
    pub(super) fn may_use(&self, fd: BorrowedFd<'_>) -> bool {
        self.engine().is_some_and(|engine| engine.watches(fd))
    }

    /// Makes the engine watch a stream of the output for new bytes, or stop that. The engine notices the end of the
    /// stream in both cases. Returns `false` if the engine does not have the descriptor any more.
    pub(super) fn watch_output(&self, fd: BorrowedFd<'_>, fd_kind: RunFd, watch: bool) -> bool {
        let Some(engine) = self.engine() else { return false };
        let input = if watch { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&engine.poll, fd, epoll_data(self.id, fd_kind), input | epoll::EventFlags::ET).is_ok()
    }

    /// Returns a callback that sends this order to the engine.
    pub(super) fn callback(&self, order: EngineOrder) -> Callback {
        let handle = self.clone();
        Callback::new(move || handle.order(order))
    }
}

/// An order from a handle to its run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EngineOrder {
    /// End the program, with this time between SIGTERM and SIGKILL. `None`: the run's own grace time.
    End { grace: Option<Duration> },
    /// Check for input to write.
    Feed,
    /// Check for output to read.
    Read,
    /// Send a signal to the whole tree, or to the program alone.
    Signal { signal: i32, tree: bool },
    /// Resize the terminal.
    Resize(TerminalSize),
}

/// A task that waits until a pidfd is readable.
#[derive(Debug)]
pub(super) struct PidfdWatch {
    engine: Weak<Engine>,
    id: u64,
}

impl PidfdWatch {
    /// Makes an engine call the callback once, when the pidfd becomes readable. The engine may also call the callback
    /// earlier, so the task then checks the child and starts another watch.
    pub(super) fn start(pidfd: BorrowedFd<'_>, callback: Callback) -> Result<PidfdWatch> {
        let mut expected = expect_run()?;
        expected.engine.watch(expected.id, pidfd, callback)?;
        expected.was_added = true;
        Ok(PidfdWatch { engine: Arc::downgrade(&expected.engine), id: expected.id })
    }

    /// Replaces the callback. Returns `false` if the engine has already called the callback.
    pub(super) fn replace(&self, callback: &Callback) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let replace = |own: &mut Callback| std::mem::replace(own, callback.clone());
        let replaced = engine.inbox.lock().watches.get_mut(&self.id).map(replace);
        // The old callback is dropped here, without the lock, because the drop may run code of the application.
        replaced.is_some()
    }

    /// Ends the watch. `pidfd` is `None` if the application has closed or replaced the pidfd.
    pub(super) fn end(self, pidfd: Option<BorrowedFd<'_>>) {
        let Some(engine) = self.engine.upgrade() else { return };
        let mut inbox = engine.inbox.lock();
        // A forked copy of the host must not change the epoll set, because the copy shares the set with the host.
        if inbox.over {
            return;
        }
        let callback = inbox.watches.remove(&self.id);
        if let Some(pidfd) = pidfd {
            let _ = epoll::delete(&engine.poll, pidfd);
        }
        drop(inbox);
        if callback.is_some() {
            // An engine with a watch does not count as idle. Wake the engine, so that it begins to measure its idle
            // time.
            engine.wake();
        }
    }
}

/// The state that the engine's thread shares with submitting threads. Only the engine's thread has access to the
/// runs.
struct Engine {
    /// The credentials and confinement of the engine's thread, and of every caller that the engine serves.
    reach: Arc<Reach>,
    poll: CheckedFd,
    wake: CheckedFd,
    inbox: PerProcess<Inbox>,
}

#[derive(Default)]
struct Inbox {
    arrived: Vec<(u64, EngineRun)>,
    orders: Vec<(u64, EngineOrder)>,
    /// The calls that the thread is to make.
    calls: VecDeque<Callback>,
    /// The callbacks of tasks that wait for a child, by id. A watch and a run never have the same id.
    watches: HashMap<u64, Callback>,
    next: u64,
    /// The number of runs that callers are about to add.
    expected: usize,
    /// The number of runs that the thread has, except those whose results it is about to deliver.
    owned: usize,
    /// The latest time at which the sleeping thread wakes up. A caller that adds a run with an
    /// earlier deadline wakes the thread.
    sleeps_until: Option<Instant>,
    /// The thread has ended or is about to end, so this engine accepts no new run.
    over: bool,
}

struct EngineRun {
    run: RunState,
    /// The callback; `None` once the callback has the result. After that, the engine only watches the run's surviving
    /// processes.
    done: Option<OnDone>,
    /// The time under which the run is listed in [`EngineState::due`].
    scheduled: Option<Instant>,
}

#[derive(Default)]
struct Engines {
    /// The running engines. No two of them have the same reach.
    running: Vec<Arc<Engine>>,
    /// Threads that have been told to exit. Some may have exited already.
    leaving: Vec<ExitingThread>,
}

static ENGINES: PerProcess<Engines> = PerProcess::new(Engines { running: Vec::new(), leaving: Vec::new() });

/// Ends the threads that have no runs. Returns `false` if a thread still has runs.
pub(crate) fn end_if_idle() -> bool {
    // `all()` would stop at the first engine that has runs, and the engines after it would not end.
    ENGINES.lock().running.iter().filter(|engine| !engine.end_if_idle()).count() == 0
}

/// Whether a thread that is ending, by request or after its idle time, still exists.
fn is_leaving() -> bool {
    let engines = ENGINES.lock();
    engines.running.iter().any(|engine| engine.inbox.lock().over)
        || engines.leaving.iter().any(|thread| thread.is_running())
}

/// Ends the idle helpers of runs (engine threads, guards, and the reaper threads that wait for guards), and returns when
/// they have ended. Busy ones stay. An engine thread cannot wait for itself, so there the call does nothing.
pub(crate) fn end_idle_helpers() {
    if thread::is_engine() {
        return;
    }
    let deadline = Instant::now() + thread::EXIT_TIMEOUT;
    end_if_idle();
    tree::end_guard_if_idle();
    // The reaper ends only after the guard has ended.
    while (is_leaving() || tree::is_guard_exiting() || reaper::is_exiting()) && Instant::now() < deadline {
        std::thread::sleep(EXIT_CHECK_INTERVAL);
    }
    tree::forget_ended_guards();
}

/// Creates the run's handle, starts the run, and adds it to an engine. Returns the handle and the value that `begin`
/// returned with the run.
pub(super) fn submit<T>(
    begin: impl FnOnce(&RunHandle) -> Result<(RunState, T)>,
    done: OnDone,
) -> Result<(RunHandle, T)> {
    let mut expected = expect_run()?;
    let handle = expected.handle();
    let (run, more) = begin(&handle)?;
    expected.engine.add(expected.id, run, Some(done))?;
    expected.was_added = true;
    Ok((handle, more))
}

/// Watches a run that has its result, until the run is over. If the run cannot be watched, drops it.
pub(crate) fn adopt(run: RunState) {
    let Ok(mut expected) = expect_run() else { return };
    expected.was_added = expected.engine.add(expected.id, run, None).is_ok();
}

/// A run that a caller is about to add to an engine. The engine does not end while it expects a run. Dropping this
/// value before the run is added, also while unwinding, cancels the expectation.
pub(super) struct ExpectedRun {
    engine: Arc<Engine>,
    id: u64,
    was_added: bool,
}

impl ExpectedRun {
    pub(super) fn handle(&self) -> RunHandle {
        RunHandle { engine: Arc::downgrade(&self.engine), id: self.id }
    }
}

impl Drop for ExpectedRun {
    fn drop(&mut self) {
        if !self.was_added {
            let mut inbox = self.engine.inbox.lock();
            // A forked copy of the host expects nothing.
            inbox.expected = inbox.expected.saturating_sub(1);
            drop(inbox);
            // An engine that expects a run does not count as idle. Wake the engine, so that it begins to measure its
            // idle time.
            self.engine.wake();
        }
    }
}

/// Registers an expected run with an engine that has the calling thread's reach.
pub(super) fn expect_run() -> Result<ExpectedRun> {
    let reach = Reach::of_calling_thread(Stage::Capture)?;
    let mut engines = ENGINES.lock();
    for engine in engines.running.iter().filter(|engine| engine.reach.equals(&reach)) {
        if let Some(id) = engine.expect_run() {
            return Ok(ExpectedRun { engine: engine.clone(), id, was_added: false });
        }
    }
    let engine = Arc::new(Engine::new(reach)?);
    let id = engine.expect_run().unwrap_or_default();
    engine.start()?;
    engines.running.push(engine.clone());
    Ok(ExpectedRun { engine, id, was_added: false })
}

impl Engine {
    fn new(reach: Arc<Reach>) -> Result<Engine> {
        let failed = |e| Error::new(Stage::Capture, errno(e), "epoll_create1(EPOLL_CLOEXEC)");
        let poll = CheckedFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
        let wake = CheckedFd::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN).map_err(failed)?;
        let in_fork = || Inbox { over: true, ..Inbox::default() };
        Ok(Engine { reach, poll, wake, inbox: PerProcess::for_this_process(Inbox::default(), in_fork) })
    }

    /// Starts the thread.
    fn start(self: &Arc<Engine>) -> Result<()> {
        let engine = self.clone();
        let mask = thread::mask_in_engine().unwrap_or_else(call::signal_mask);
        let body = move || {
            thread::become_engine(mask);
            engine.run_thread(|state| engine.serve(state));
        };
        thread::start_thread("spawnfd-engine", thread::DEFAULT_STACK, body)
            .map(drop)
            .map_err(|errno| Error::new(Stage::Capture, errno, "pthread_create()"))
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether the engine's epoll descriptor and eventfd still refer to the engine's own files. The application may
    /// have closed or replaced them.
    fn has_own_descriptors(&self) -> bool {
        self.watches(self.wake.as_fd())
    }

    /// Whether a descriptor still refers to the file that was added to the epoll set. The kernel identifies an entry
    /// by number and file, so adding the same number and file again fails with EEXIST.
    fn watches(&self, fd: BorrowedFd<'_>) -> bool {
        let added = epoll::add(&self.poll, fd, epoll::EventData::new_u64(WAKE), epoll::EventFlags::empty());
        if added.is_ok() {
            let _ = epoll::delete(&self.poll, fd);
        }
        added == Err(rustix::io::Errno::EXIST)
    }

    /// Whether all descriptors of a run still refer to the run's own files.
    fn watches_all(&self, run: &RunState) -> bool {
        RunFd::ALL.into_iter().filter_map(|fd_kind| run.watched(fd_kind)).all(|(fd, _)| self.watches(fd))
    }

    /// Registers an expected run and returns its id. `None`: the thread is ending, or the application has closed its
    /// descriptors.
    fn expect_run(&self) -> Option<u64> {
        let mut inbox = self.inbox.lock();
        if inbox.over || !self.has_own_descriptors() {
            return None;
        }
        inbox.expected += 1;
        inbox.next += 1;
        Some(inbox.next)
    }

    /// Adds a run and watches its descriptors.
    fn add(&self, id: u64, run: RunState, done: Option<OnDone>) -> Result<()> {
        // Keep the lock until the run is in the inbox, so that the engine's thread finds the run when the first event
        // arrives.
        let mut inbox = self.inbox.lock();
        if inbox.over {
            return Err(descriptors_lost());
        }
        for fd_kind in RunFd::ALL {
            let Some((fd, write)) = run.watched(fd_kind) else { continue };
            // Use edge-triggered events. After this process has closed a pipe's end, the end stays
            // in the epoll set while a starting child has a copy of the descriptor table. A
            // level-triggered entry would report its hangup again and again.
            let flags = if write { epoll::EventFlags::OUT } else { epoll::EventFlags::IN } | epoll::EventFlags::ET;
            // If an earlier command of the session has used the same terminal, the set still has it. After an error,
            // dropping the run closes its descriptors, which removes them from the set.
            self.add_or_change(fd, epoll_data(id, fd_kind), flags, Stage::Capture)?;
        }
        let due = run.deadline();
        inbox.arrived.push((id, EngineRun { run, done, scheduled: None }));
        // Count the run as arrived while the lock is held. Once the lock is released, the thread may finish the run at
        // any time. If the thread finished the run before this change, nothing would wake the thread again.
        inbox.expected -= 1;
        if due.is_some_and(|due| inbox.sleeps_until.is_none_or(|until| due < until)) {
            self.wake();
        }
        Ok(())
    }

    /// Watches a child's pidfd for a task.
    fn watch(&self, id: u64, pidfd: BorrowedFd<'_>, callback: Callback) -> Result<()> {
        // Keep the lock until the callback is in the inbox, so that the engine's thread finds it when the event arrives.
        let mut inbox = self.inbox.lock();
        if inbox.over {
            return Err(descriptors_lost());
        }
        // After the event, the set reports nothing until the task has started another watch.
        let (data, flags) = (epoll_data(id, RunFd::Process), epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        // If the task has leaked an earlier watch, as `mem::forget` does, the set still has the pidfd.
        self.add_or_change(pidfd, data, flags, Stage::Wait)?;
        inbox.watches.insert(id, callback);
        inbox.expected -= 1;
        Ok(())
    }

    /// Adds a descriptor to the epoll set, or changes the entry that the set has for the descriptor.
    fn add_or_change(
        &self,
        fd: BorrowedFd<'_>,
        data: epoll::EventData,
        flags: epoll::EventFlags,
        stage: Stage,
    ) -> Result<()> {
        match epoll::add(&self.poll, fd, data, flags) {
            Err(rustix::io::Errno::EXIST) => epoll::modify(&self.poll, fd, data, flags),
            added => added,
        }
        .map_err(|e| Error::new(stage, errno(e), "epoll_ctl(EPOLL_CTL_ADD)"))
    }

    /// Wakes all tasks that wait for a child. They check the child, and start another watch.
    fn wake_tasks(&self) {
        let watches = std::mem::take(&mut self.inbox.lock().watches);
        watches.values().for_each(Callback::call);
    }

    /// Ends this engine's thread if it has no runs. Returns whether the thread is ending.
    fn end_if_idle(&self) -> bool {
        let mut inbox = self.inbox.lock();
        if !inbox.over && inbox.expected + inbox.arrived.len() + inbox.owned + inbox.watches.len() == 0 {
            inbox.over = true;
            self.wake();
        }
        inbox.over
    }

    /// The thread's main function. When `serve` returns or panics, the remaining runs fail with an error, and later
    /// runs use another engine.
    fn run_thread(self: &Arc<Engine>, serve: impl FnOnce(&mut EngineState)) {
        let mut state = EngineState { buffer: vec![0; 64 << 10], ..EngineState::default() };
        let has_panicked = catch_panic(|| serve(&mut state)).is_none();
        let calls = {
            let mut inbox = self.inbox.lock();
            inbox.over = true;
            state.take_arrived(&mut inbox);
            std::mem::take(&mut inbox.calls)
        };
        let mut engines = ENGINES.lock();
        engines.running.retain(|engine| !Arc::ptr_eq(engine, self));
        engines.leaving.retain(|thread| thread.is_running());
        engines.leaving.extend(ExitingThread::now());
        drop(engines);
        self.wake_tasks();
        calls.iter().for_each(Callback::call);
        state.fail_all(has_panicked);
    }

    fn serve(&self, state: &mut EngineState) {
        let mut events = Vec::with_capacity(64);
        let mut idle_since = None;
        let mut last_check = Instant::now();
        loop {
            let now = Instant::now();
            let (until, calls) = {
                let mut inbox = self.inbox.lock();
                state.take_arrived(&mut inbox);
                if inbox.over {
                    return;
                }
                if state.runs.is_empty() && inbox.expected + inbox.watches.len() == 0 {
                    let since = *idle_since.get_or_insert(now);
                    if now.duration_since(since) >= IDLE {
                        inbox.over = true;
                        drop(inbox);
                        launch::drop_unused_slots();
                        tree::drop_template();
                        return;
                    }
                    inbox.sleeps_until = Some(since + IDLE);
                } else {
                    idle_since = None;
                    inbox.sleeps_until = state.due.first().map(|&(due, _)| due);
                }
                let count = inbox.calls.len().min(CALLS_AT_ONCE);
                (inbox.sleeps_until, inbox.calls.drain(..count).collect::<Vec<_>>())
            };
            calls.iter().for_each(Callback::call);
            let left = if state.unfinished.is_empty() && calls.is_empty() {
                until.map(|until| until.saturating_duration_since(now))
            } else {
                Some(Duration::ZERO)
            };
            let left = Timespec::try_from(left.map_or(RECHECK_INTERVAL, |left| left.min(RECHECK_INTERVAL))).ok();
            events.clear();
            let waited = epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), left.as_ref());
            // EINTR comes from libc's internal signals. Any other error means that the number is
            // not an epoll descriptor any more. If events arrive, the number is an epoll
            // descriptor, and most likely this engine's. So the thread compares its descriptors
            // only if no event has arrived.
            let is_lost = matches!(waited, Err(error) if error != rustix::io::Errno::INTR);
            if is_lost || events.is_empty() && !self.has_own_descriptors() {
                return;
            }
            if now.duration_since(last_check) >= RECHECK_INTERVAL {
                last_check = now;
                tree::maintain_guard();
                let ids: Vec<u64> = state.runs.keys().copied().collect();
                ids.into_iter().for_each(|id| state.abandon_if_replaced(self, id));
                // A pidfd that the application has closed causes no event. Its task notices when it checks the child.
                self.wake_tasks();
            }
            for event in std::mem::take(&mut state.unfinished) {
                state.on_event(self, event);
            }
            for event in &events {
                let data = event.data.u64();
                if data == WAKE {
                    if let Some(wake) = self.wake.get() {
                        let _ = rustix::io::read(wake, &mut [0; 8]);
                    }
                    let orders = {
                        let mut inbox = self.inbox.lock();
                        state.take_arrived(&mut inbox);
                        std::mem::take(&mut inbox.orders)
                    };
                    // Release the lock first, because a consumer that is notified of output may
                    // send the next order.
                    for (id, order) in orders {
                        state.abandon_if_replaced(self, id);
                        state.carry_out(id, order);
                    }
                    continue;
                }
                let (id, fd_kind) = (data >> 2, RunFd::ALL[(data & 3) as usize]);
                if !state.runs.contains_key(&id) {
                    let mut inbox = self.inbox.lock();
                    state.take_arrived(&mut inbox);
                    let watch = inbox.watches.remove(&id);
                    drop(inbox);
                    if let Some(task) = watch {
                        task.call();
                        continue;
                    }
                }
                let flags = event.flags;
                state.on_event(self, RunEvent { id, fd_kind, hung_up: flags.contains(epoll::EventFlags::HUP) });
            }
            state.tick(self, Instant::now());
            if !state.done.is_empty() {
                // Update the number of runs first, because a caller that receives a result may ask
                // at once whether all runs are over.
                state.take_arrived(&mut self.inbox.lock());
            }
            state.deliver();
        }
    }
}

/// The error of a run that the engine can no longer watch.
fn descriptors_lost() -> Error {
    Error::new(Stage::Capture, Errno::EBADF, "epoll_wait()").saying(REPLACED)
}

/// The error of a run that a panic has ended, usually a panic in the source of its input.
fn panicked() -> Error {
    Error::new(Stage::Capture, Errno::EIO, "a panic").saying("a panic ended the run")
}

/// Performs one step of a run. A panic ends only this run, because the thread serves other runs.
fn perform_step<T>(step: impl FnOnce() -> T) -> Result<T> {
    catch_panic(step).ok_or_else(panicked)
}

/// An event on a descriptor of a run.
struct RunEvent {
    id: u64,
    fd_kind: RunFd,
    hung_up: bool,
}

/// The thread's runs, and the work that is due on them.
#[derive(Default)]
struct EngineState {
    runs: HashMap<u64, EngineRun>,
    /// The time of each run's next check, if no event comes earlier.
    due: BTreeSet<(Instant, u64)>,
    /// Events of streams that have more data than one call reads.
    unfinished: Vec<RunEvent>,
    /// Results to deliver.
    done: Vec<(OnDone, Result<Output>)>,
    buffer: Vec<u8>,
}

impl EngineState {
    /// Takes over the runs in the inbox.
    fn take_arrived(&mut self, inbox: &mut Inbox) {
        for (id, entry) in inbox.arrived.drain(..) {
            self.runs.insert(id, entry);
            self.schedule(id);
        }
        inbox.owned = self.runs.len();
    }

    /// Handles an event, unless the application has replaced the run's descriptor. The epoll set
    /// reports events of the file that was added. That file may stay open, because a child before
    /// exec or a forked process has a copy of this descriptor table.
    fn on_event(&mut self, engine: &Engine, event: RunEvent) {
        let is_ours = |entry: &EngineRun| entry.run.watched(event.fd_kind).is_none_or(|(fd, _)| engine.watches(fd));
        if self.runs.get(&event.id).is_some_and(is_ours) {
            self.handle_event(event);
        } else {
            self.abandon_if_replaced(engine, event.id);
        }
    }

    /// Abandons a run if the application has closed or replaced one of its descriptors.
    fn abandon_if_replaced(&mut self, engine: &Engine, id: u64) {
        if self.runs.get(&id).is_some_and(|entry| !engine.watches_all(&entry.run))
            && let Some(entry) = self.remove(id)
        {
            entry.run.abandon();
            self.done.extend(entry.done.map(|done| (done, Err(descriptors_lost()))));
        }
    }

    fn remove(&mut self, id: u64) -> Option<EngineRun> {
        let entry = self.runs.remove(&id)?;
        entry.scheduled.map(|scheduled| self.due.remove(&(scheduled, id)));
        Some(entry)
    }

    fn carry_out(&mut self, id: u64, order: EngineOrder) {
        // Without an entry, the run is over, and there is nothing to do.
        let Some(entry) = self.runs.get_mut(&id) else { return };
        let run = &mut entry.run;
        let mut outcome = Ok(());
        match order {
            EngineOrder::End { grace } => outcome = perform_step(|| run.end(Stop::Cancelled, grace)),
            EngineOrder::Feed => return self.handle_event(RunEvent { id, fd_kind: RunFd::Stdin, hung_up: false }),
            EngineOrder::Read => {
                // The edge-triggered event of unread output does not come again, so read until the pipe is empty, as
                // at a hangup.
                self.handle_event(RunEvent { id, fd_kind: RunFd::Stdout, hung_up: true });
                return self.handle_event(RunEvent { id, fd_kind: RunFd::Stderr, hung_up: true });
            }
            EngineOrder::Signal { signal, tree } => run.running.signal(signal, tree),
            EngineOrder::Resize(size) => run.resize(size),
        }
        self.finish_if_done(id, outcome);
    }

    /// Updates the run's entry in `due`.
    fn schedule(&mut self, id: u64) {
        let Some(entry) = self.runs.get_mut(&id) else { return };
        let due = entry.run.deadline();
        if entry.scheduled != due {
            entry.scheduled.map(|scheduled| self.due.remove(&(scheduled, id)));
            due.map(|due| self.due.insert((due, id)));
            entry.scheduled = due;
        }
    }

    /// Handles an event of a run.
    fn handle_event(&mut self, event: RunEvent) {
        // An earlier event of the same batch may have ended the run.
        let Some(entry) = self.runs.get_mut(&event.id) else { return };
        let outcome = perform_step(|| entry.run.handle_event(event.fd_kind, event.hung_up, &mut self.buffer))
            .and_then(|outcome| outcome);
        let id = event.id;
        if matches!(outcome, Ok(false)) && !entry.run.is_over() {
            self.unfinished.push(event);
        }
        self.finish_if_done(id, outcome.map(drop));
    }

    /// Handles deadlines. Each due run gets one call, even if it has more work to do, so that other
    /// runs get theirs.
    fn tick(&mut self, engine: &Engine, now: Instant) {
        let due: Vec<u64> = self.due.range(..=(now, u64::MAX)).map(|&(_, id)| id).collect();
        for id in due {
            self.abandon_if_replaced(engine, id);
            let Some(entry) = self.runs.get_mut(&id) else { continue };
            let outcome = perform_step(|| entry.run.tick(now, &mut self.buffer)).and_then(|outcome| outcome);
            self.finish_if_done(id, outcome);
        }
    }

    /// Delivers the results. No lock is held: a callback may submit the next run.
    fn deliver(&mut self) {
        for (done, output) in self.done.drain(..) {
            catch_panic(|| done(output));
        }
    }

    /// Ends all runs with an error. Unless a panic is the cause, the application may have replaced the runs'
    /// descriptors, so the runs are abandoned.
    fn fail_all(&mut self, has_panicked: bool) {
        for (_, EngineRun { run, done, .. }) in self.runs.drain() {
            let why = if has_panicked { panicked() } else { descriptors_lost() };
            catch_panic(|| if has_panicked { drop(run) } else { run.abandon() });
            self.done.extend(done.map(|done| (done, Err(why))));
        }
        self.deliver();
    }

    /// Queues the result if the run is done, and removes a run that is over.
    fn finish_if_done(&mut self, id: u64, outcome: Result<()>) {
        let Some(entry) = self.runs.get_mut(&id) else { return };
        let failed = outcome.is_err();
        if (failed || entry.run.is_done())
            && let Some(done) = entry.done.take()
        {
            let output = outcome.map(|()| entry.run.finish());
            self.done.push((done, output));
        }
        self.schedule(id);
        if failed || self.runs.get(&id).is_some_and(|entry| entry.run.is_over()) {
            drop(self.remove(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_engine_expects_no_more_runs() {
        let reach = Reach::of_calling_thread(Stage::Capture).expect("/proc");
        let engine = Arc::new(Engine::new(reach).expect("descriptors"));
        assert!(engine.expect_run().is_some());
        engine.run_thread(|_| panic!("on purpose"));
        assert!(engine.expect_run().is_none());
    }

    #[test]
    fn a_run_that_panics_at_its_start_is_no_longer_expected() {
        spawnfd_tests::deadline(Duration::from_secs(60), || {
            let mut engine = None;
            let begun = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let begin = |handle: &RunHandle| -> Result<(RunState, ())> {
                    engine = handle.engine.upgrade();
                    panic!("on purpose");
                };
                submit(begin, Box::new(|_| ())).map(drop)
            }));
            assert!(begun.is_err());
            let engine = engine.expect("the run has begun");
            // Runs of other tests may use the same engine.
            while engine.inbox.lock().expected != 0 {
                std::thread::yield_now();
            }
        });
    }
}
