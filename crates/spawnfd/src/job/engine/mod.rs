// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine drives asynchronous runs. It is an epoll set and a [step](Engine::step) that handles what is ready and
//! due. It also wakes tasks that wait for a [`Child`](crate::Child).
//!
//! Each engine has a thread, which starts with the first run, and ends after the engine has been idle for 500 ms. Usually
//! this thread makes the steps (`thread.rs`). The engine of an event loop (`event_loop.rs`) is different: the loop's own
//! thread makes the steps, and the engine's thread only takes its place while the loop is blocked.
//!
//! A step signals programs and searches for their descendants, so an engine serves only callers with the same [`Reach`]
//! (credentials and confinement). Usually one engine serves all threads of a process that run no event loop. Threads
//! that are confined or scheduled differently have another engine.

mod event_loop;
mod handle;
mod state;
mod thread;

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::Output;
use super::run_state::{RECHECK_INTERVAL, Readiness, RunFd, RunState};
use crate::callback::Callback;
use crate::error::{Error, Result, Stage, errno};
use crate::host::authority::Reach;
use crate::host::descriptors::CheckedFd;
use crate::host::one_start::OneStart;
use crate::host::per_process::PerProcess;
use crate::host::thread::{EXIT_TIMEOUT, ExitingThread, is_engine};
use crate::{reaper, tree};

pub use event_loop::EventLoop;
use event_loop::LoopView;
#[cfg(feature = "tokio")]
pub(super) use event_loop::is_entered;
pub use handle::EngineOrder;
pub(super) use handle::PidfdWatch;
#[cfg(feature = "remote")]
pub use handle::RemoteRuns;
pub use handle::RunHandle;
use state::{EngineRun, EngineState, RunEvent, descriptors_lost};

/// The interval at which to check whether the helpers of runs have ended.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_micros(20);

/// How many calls a step makes.
const CALLS_AT_ONCE: usize = 4;

/// How many events a step handles, and how many deadlines. A run has up to four descriptors.
const EVENTS_AT_ONCE: usize = 64;

/// The same for a step in the thread of an event loop, which has other work: about four runs.
const EVENTS_IN_LOOP: usize = 12;

/// The epoll data of the eventfd that only wakes the thread.
const WAKE: u64 = u64::MAX;

/// The bit of epoll data for a stream of which the set reports the hangup, but not whether it has data.
const ONLY_HANGUP: u64 = 4;

/// The epoll data of a run's descriptor.
fn epoll_data(id: u64, fd_kind: RunFd) -> u64 {
    id << 3 | fd_kind as u64
}

type OnDone = Box<dyn FnOnce(Result<Output>) + Send>;

/// An epoll set and its runs.
struct Engine {
    /// The credentials and confinement of the engine's thread, and of every caller that the engine serves.
    reach: Arc<Reach>,
    poll: CheckedFd,
    wake: CheckedFd,
    /// The state that submitting threads share with the thread that makes the steps.
    inbox: PerProcess<Inbox>,
    /// The runs. The thread that makes a step has the lock during the step, and while it waits for events.
    state: PerProcess<EngineState>,
    /// The view of the event loop that makes the steps; `None`: the engine's thread makes all of them.
    event_loop: Option<Arc<LoopView>>,
    /// The event loop is gone, or has another engine now. The engine's thread makes all steps from now on.
    has_left_loop: AtomicBool,
    /// How often the event loop has come to make a step.
    visits: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    arrived: Vec<(u64, EngineRun)>,
    orders: Vec<(u64, EngineOrder)>,
    /// The calls that the next steps are to make.
    calls: VecDeque<Callback>,
    /// The callbacks of tasks that wait for a child, by id. A watch and a run never have the same id.
    watches: HashMap<u64, Callback>,
    next: u64,
    /// The number of runs that callers are about to add.
    expected: usize,
    /// The number of runs in the [`EngineState`], except those whose results are about to be delivered.
    owned: usize,
    /// The latest time of the next step. A caller that adds a run with an earlier deadline causes an earlier step.
    next_step: Option<Instant>,
    /// The engine's thread.
    thread: Option<Thread>,
    /// The event loop has left the next steps to the thread.
    needs_thread: bool,
    /// The thread has ended or is about to end, so this engine accepts no new run.
    over: bool,
}

impl Inbox {
    /// Whether the engine has nothing to do.
    fn is_idle(&self) -> bool {
        self.expected + self.arrived.len() + self.owned + self.watches.len() == 0
    }
}

#[derive(Default)]
struct Engines {
    /// The running engines. No two of them that serve threads without event loops have the same reach.
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
    if is_engine() {
        return;
    }
    let deadline = Instant::now() + EXIT_TIMEOUT;
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
    let one_start = OneStart::begin();
    let mut expected = expect_run()?;
    let handle = expected.handle();
    let (run, more) = begin(&handle)?;
    drop(one_start);
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
        RunHandle::new(&self.engine, self.id)
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
    if let Some(view) = event_loop::of_calling_thread() {
        return view.expect_run(reach);
    }
    let mut engines = ENGINES.lock();
    for engine in engines.running.iter().filter(|engine| engine.event_loop.is_none() && engine.reach.equals(&reach)) {
        if let Some(expected) = engine.expect_run() {
            return Ok(expected);
        }
    }
    engines.start(Engine::new(reach, None)?)
}

impl Engines {
    /// Starts the thread of a new engine, and registers an expected run with the engine.
    fn start(&mut self, engine: Engine) -> Result<ExpectedRun> {
        let engine = Arc::new(engine);
        let expected = engine.expect_run().ok_or_else(descriptors_lost)?;
        engine.start_thread()?;
        self.running.push(engine);
        Ok(expected)
    }
}

impl Engine {
    fn new(reach: Arc<Reach>, event_loop: Option<Arc<LoopView>>) -> Result<Engine> {
        let failed = |e| Error::new(Stage::Capture, errno(e), "epoll_create1(EPOLL_CLOEXEC)");
        let poll = CheckedFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
        let wake = CheckedFd::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN).map_err(failed)?;
        let in_fork = || Inbox { over: true, ..Inbox::default() };
        let inbox = PerProcess::for_this_process(Inbox::default(), in_fork);
        let state = PerProcess::for_this_process(EngineState::default(), EngineState::default);
        let (has_left_loop, visits) = Default::default();
        Ok(Engine { reach, poll, wake, inbox, state, event_loop, has_left_loop, visits })
    }

    /// Whether an event loop makes the steps, and the engine's thread only takes its place.
    fn is_driven_by_loop(&self) -> bool {
        self.event_loop.is_some() && !self.has_left_loop.load(Ordering::Relaxed)
    }

    /// Causes a step soon.
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

    /// Registers an expected run. `None`: the thread is ending, or the application has closed the engine's descriptors.
    fn expect_run(self: &Arc<Engine>) -> Option<ExpectedRun> {
        let mut inbox = self.inbox.lock();
        if inbox.over || !self.has_own_descriptors() {
            return None;
        }
        inbox.expected += 1;
        inbox.next += 1;
        Some(ExpectedRun { engine: self.clone(), id: inbox.next, was_added: false })
    }

    /// Adds a run and watches its descriptors.
    fn add(&self, id: u64, run: RunState, done: Option<OnDone>) -> Result<()> {
        // Keep the lock until the run is in the inbox, so that the step that the first event causes finds the run.
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
        // Count the run as arrived while the lock is held. Once the lock is released, another thread may finish the run
        // at any time. If it finished the run before this change, nothing would wake it again.
        inbox.expected -= 1;
        if let Some(due) = due.filter(|due| inbox.next_step.is_none_or(|at| *due < at)) {
            match &self.event_loop {
                Some(view) if self.is_driven_by_loop() => view.set_timer(&mut inbox, Some(due)),
                _ => self.wake(),
            }
        }
        Ok(())
    }

    /// Watches a child's pidfd for a task.
    fn watch(&self, id: u64, pidfd: BorrowedFd<'_>, callback: Callback) -> Result<()> {
        // Keep the lock until the callback is in the inbox, so that the step that the event causes finds the callback.
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
    fn add_or_change(&self, fd: BorrowedFd<'_>, data: u64, flags: epoll::EventFlags, stage: Stage) -> Result<()> {
        let data = epoll::EventData::new_u64(data);
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
        if inbox.is_idle() {
            self.end_thread(&mut inbox);
        }
        inbox.over
    }

    /// Makes the engine's thread end.
    fn end_thread(&self, inbox: &mut Inbox) {
        if !std::mem::replace(&mut inbox.over, true) {
            self.wake();
            inbox.thread.iter().for_each(Thread::unpark);
        }
    }

    /// Waits for events, at most for `longest`, and handles what is ready and due. Returns whether there was something to
    /// do; `Break`: the engine must end.
    fn step(&self, state: &mut EngineState, longest: Duration) -> ControlFlow<(), bool> {
        let is_driven_by_loop = self.is_driven_by_loop();
        let now = Instant::now();
        let (until, calls) = {
            let mut inbox = self.inbox.lock();
            if inbox.over {
                return ControlFlow::Break(());
            }
            state.take_arrived(&mut inbox);
            let until = state.first_due().into_iter().fold(now + longest, Instant::min);
            if !is_driven_by_loop {
                inbox.next_step = Some(until);
            }
            let count = inbox.calls.len().min(CALLS_AT_ONCE);
            (until, inbox.calls.drain(..count).collect::<Vec<_>>())
        };
        calls.iter().for_each(Callback::call);
        let has_work = !calls.is_empty() || !state.unfinished.is_empty();
        let left = if has_work { Duration::ZERO } else { until.saturating_duration_since(now) };
        let at_once = if is_driven_by_loop { EVENTS_IN_LOOP } else { EVENTS_AT_ONCE };
        let mut events = Vec::with_capacity(at_once);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        let waited = epoll::wait(&self.poll, buffer, Timespec::try_from(left).ok().as_ref());
        // EINTR comes from libc's internal signals. Any other error means that the number is not an epoll descriptor any
        // more. If events arrive, the number is an epoll descriptor, and most likely this engine's. So the engine compares
        // its descriptors only if no event has arrived.
        let is_lost = matches!(waited, Err(error) if error != rustix::io::Errno::INTR);
        if is_lost || events.is_empty() && !self.has_own_descriptors() {
            return ControlFlow::Break(());
        }
        if state.needs_check(now) {
            tree::maintain_guard();
            state.abandon_replaced(self);
            // A pidfd that the application has closed causes no event. Its task notices when it checks the child.
            self.wake_tasks();
        }
        for event in std::mem::take(&mut state.unfinished) {
            state.on_event(self, event);
        }
        for event in &events {
            let data = event.data.u64();
            if data == WAKE {
                self.take_orders(state);
            } else {
                let flags = event.flags;
                let may_have_data = flags.contains(epoll::EventFlags::IN) || data & ONLY_HANGUP != 0;
                let readiness = Readiness::of(flags.contains(epoll::EventFlags::HUP), may_have_data);
                self.pass_on(state, RunEvent { id: data >> 3, fd_kind: RunFd::ALL[(data & 3) as usize], readiness });
            }
        }
        let ticked = state.tick(self, Instant::now(), at_once);
        // Update the number of runs first, because a caller that receives a result may ask at once whether all runs are
        // over.
        state.take_arrived(&mut self.inbox.lock());
        state.deliver();
        ControlFlow::Continue(has_work || ticked || !events.is_empty())
    }

    /// Takes the orders and the new runs from the inbox.
    fn take_orders(&self, state: &mut EngineState) {
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        let orders = {
            let mut inbox = self.inbox.lock();
            state.take_arrived(&mut inbox);
            std::mem::take(&mut inbox.orders)
        };
        // Release the lock first, because a consumer that is notified of output may send the next order.
        for (id, order) in orders {
            state.abandon_if_replaced(self, id);
            state.carry_out(id, order);
        }
    }

    /// Passes an event to its run, or to the task that waits for its child.
    fn pass_on(&self, state: &mut EngineState, event: RunEvent) {
        if !state.has(event.id) {
            let mut inbox = self.inbox.lock();
            state.take_arrived(&mut inbox);
            let watch = inbox.watches.remove(&event.id);
            drop(inbox);
            if let Some(task) = watch {
                return task.call();
            }
        }
        state.on_event(self, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_engine_expects_no_more_runs() {
        let reach = Reach::of_calling_thread(Stage::Capture).expect("/proc");
        let engine = Arc::new(Engine::new(reach, None).expect("descriptors"));
        assert!(engine.expect_run().is_some());
        engine.run_thread(|| panic!("on purpose"));
        assert!(engine.expect_run().is_none());
    }

    #[test]
    fn a_run_that_panics_at_its_start_is_no_longer_expected() {
        spawnfd_tests::deadline(Duration::from_secs(60), || {
            let mut engine = None;
            let begun = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let begin = |handle: &RunHandle| -> Result<(RunState, ())> {
                    engine = handle.engine();
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
