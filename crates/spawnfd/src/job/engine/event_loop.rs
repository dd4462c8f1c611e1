// SPDX-License-Identifier: MIT OR Apache-2.0
//! An event loop that drives its own runs.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{ENGINES, Engine, EngineOrder, EngineState, ExpectedRun, Inbox};
use crate::callback::catch_panic;
use crate::error::{Error, Result, Stage, errno};
use crate::host::authority::Reach;
use crate::host::descriptors::CheckedFd;
use crate::host::per_process::PerProcess;
use crate::host::thread;

/// How long one call of [`EventLoop::serve`] may take before it leaves the rest of a program's output to the next call.
const LONGEST_VISIT: Duration = Duration::from_millis(1);

/// The adapter of an event loop to the library. Runs that are started inside [`enter`](EventLoop::enter) belong to the
/// loop: the loop's thread handles their output, deadlines and ends in [`serve`](EventLoop::serve), so no other thread
/// has to be woken for them.
///
/// A thread of the library takes the loop's place while the loop is blocked, and after this value has been dropped.
#[derive(Debug)]
pub struct EventLoop(Arc<LoopView>);

/// The descriptor that an event loop watches: an epoll set with the epoll set of the loop's engine, and with a timer.
#[derive(Debug)]
pub(super) struct LoopView {
    poll: CheckedFd,
    timer: CheckedFd,
    /// The engine of the loop's next runs.
    engine: PerProcess<Weak<Engine>>,
}

thread_local! {
    /// The event loop to which the runs belong that the calling thread starts.
    static CURRENT: RefCell<Option<Arc<LoopView>>> = const { RefCell::new(None) };
}

/// The event loop to which the runs belong that the calling thread starts.
pub(super) fn of_calling_thread() -> Option<Arc<LoopView>> {
    // A thread that is exiting has no thread-local storage. A forked copy of the process must not change the epoll set,
    // because the copy shares the set with the process.
    CURRENT
        .try_with(|current| current.borrow().clone())
        .ok()
        .flatten()
        .filter(|view| view.engine.belongs_to_this_process())
}

fn failed(error: rustix::io::Errno, call: &'static str) -> Error {
    Error::new(Stage::Capture, errno(error), call)
}

impl EventLoop {
    /// Creates the descriptor that the loop watches.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> Result<EventLoop> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e, "epoll_create1(EPOLL_CLOEXEC)"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| failed(e, "timerfd_create(CLOCK_MONOTONIC)"))?;
        let (poll, timer) = (CheckedFd::new(poll), CheckedFd::new(timer));
        let engine = PerProcess::for_this_process(Weak::new(), Weak::new);
        let event_loop = EventLoop(Arc::new(LoopView { poll, timer, engine }));
        event_loop.watch(event_loop.0.timer.as_fd())?;
        Ok(event_loop)
    }

    /// Makes the loop's descriptor readable also while `fd` is readable.
    ///
    /// # Errors
    /// EEXIST, ENOMEM, ENOSPC, EPERM: see epoll_ctl(2).
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.0.watch(fd)
    }

    /// The descriptor, unless the application has closed or replaced it.
    pub fn own_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.poll.get().map(AsFd::as_fd)
    }

    /// Calls `call`. Runs that it starts in this thread belong to this loop.
    pub fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        let _entered = self.entered();
        call()
    }

    /// Runs that the calling thread starts belong to this loop until the returned value is dropped.
    pub(in crate::job) fn entered(&self) -> Entered {
        Entered { before: CURRENT.replace(Some(self.0.clone())), of_thread: PhantomData }
    }

    /// Handles the events and deadlines of the loop's runs, without waiting. The loop calls this when its descriptor is
    /// readable. One call handles few runs, so that the loop gets to its other work; the descriptor then stays readable.
    pub fn serve(&self) {
        let engine = self.0.engine.lock().upgrade();
        if let Some(engine) = engine {
            engine.visit();
        }
    }
}

/// Restores the event loop to which the runs of a thread belonged.
pub(in crate::job) struct Entered {
    before: Option<Arc<LoopView>>,
    /// Only the same thread can restore it.
    of_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.replace(self.before.take()));
    }
}

/// Whether the runs that the calling thread starts belong to an event loop.
#[cfg(feature = "tokio")]
pub(in crate::job) fn is_entered() -> bool {
    of_calling_thread().is_some()
}

impl AsFd for EventLoop {
    /// The descriptor for the loop to watch: readable while [`serve`](EventLoop::serve) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.poll.as_fd()
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        let engine = self.0.engine.lock().upgrade();
        if let Some(engine) = engine {
            engine.leave_loop();
        }
    }
}

impl LoopView {
    fn watch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.poll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|e| failed(e, "epoll_ctl(EPOLL_CTL_ADD)"))
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::delete(&self.poll, fd).map_err(|e| failed(e, "epoll_ctl(EPOLL_CTL_DEL)"))
    }

    /// Registers an expected run with the loop's engine. If the calling thread has another reach now, or the engine has
    /// ended, the loop gets another engine.
    pub(super) fn expect_run(self: &Arc<LoopView>, reach: Arc<Reach>) -> Result<ExpectedRun> {
        let mut current = self.engine.lock();
        let before = current.upgrade();
        if let Some(engine) = &before
            && engine.is_driven_by_loop()
            && engine.reach.equals(&reach)
            && let Some(expected) = engine.expect_run()
        {
            return Ok(expected);
        }
        let engine = Engine::new(reach, Some(self.clone()))?;
        self.watch(engine.poll.as_fd())?;
        let expected = ENGINES.lock().start(engine)?;
        *current = Arc::downgrade(&expected.engine);
        drop(current);
        if let Some(engine) = before {
            engine.leave_loop();
        }
        Ok(expected)
    }

    /// Sets the timer to this time. `None`: turns the timer off.
    pub(super) fn set_timer(&self, inbox: &mut Inbox, at: Option<Instant>) {
        inbox.next_step = at;
        let Some(timer) = self.timer.get() else { return };
        // A value of zero would turn the timer off.
        let left = |at: Instant| at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let off = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = at.and_then(|at| Timespec::try_from(left(at)).ok()).unwrap_or(off);
        let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: off, it_value });
    }
}

impl Engine {
    /// Makes steps in the thread of the engine's event loop.
    fn visit(&self) {
        if !self.is_driven_by_loop() {
            return;
        }
        self.visits.fetch_add(1, Ordering::Relaxed);
        // If the lock is taken, the engine's thread has the place of the loop.
        let Some(mut state) = self.state.try_lock().filter(|state| !self.must_signal(state)) else {
            return self.leave_to_thread();
        };
        let begun = Instant::now();
        let visit = thread::visit_engine();
        loop {
            match catch_panic(|| self.step(&mut state, Duration::ZERO)) {
                Some(ControlFlow::Continue(_)) if state.unfinished.is_empty() => break,
                Some(ControlFlow::Continue(_)) if begun.elapsed() < LONGEST_VISIT => {}
                Some(ControlFlow::Continue(_)) => {
                    self.wake();
                    break;
                }
                ended => {
                    // The engine's thread fails the runs that are left.
                    if ended.is_none() {
                        state.fail_all(true);
                    }
                    self.end_thread(&mut self.inbox.lock());
                    break;
                }
            }
        }
        drop(visit);
        self.set_timer(&state);
    }

    /// Whether the next step may signal processes. This can take seconds, and the thread of the loop may have confined
    /// itself since the start, so the engine's thread does it.
    fn must_signal(&self, state: &EngineState) -> bool {
        let now = Instant::now();
        let signals = |order: &EngineOrder| matches!(order, EngineOrder::End { .. } | EngineOrder::Signal { .. });
        let inbox = self.inbox.lock();
        inbox.orders.iter().any(|(_, order)| signals(order))
            || inbox.arrived.iter().any(|(_, entry)| entry.run.signals_by(now))
            || state.signals_by(now)
    }

    /// Makes the engine's thread make the next steps, at once.
    fn leave_to_thread(&self) {
        let mut inbox = self.inbox.lock();
        inbox.needs_thread = true;
        inbox.thread.iter().for_each(Thread::unpark);
        // The thread handles the deadlines. A timer that has expired would keep the loop's descriptor readable.
        if let Some(view) = &self.event_loop {
            view.set_timer(&mut inbox, None);
        }
    }

    /// Sets the timer of the event loop to the first deadline, unless the timer expires earlier anyway.
    pub(super) fn set_timer(&self, state: &EngineState) {
        let Some(view) = self.event_loop.as_ref().filter(|_| self.is_driven_by_loop()) else { return };
        let (first, now) = (state.first_due(), Instant::now());
        let mut inbox = self.inbox.lock();
        let is_set_for_later = || first.is_some_and(|first| inbox.next_step.is_none_or(|at| first < at));
        // A timer that has expired keeps the loop's descriptor readable until it is set again.
        if inbox.next_step.is_some_and(|at| at <= now) || is_set_for_later() {
            view.set_timer(&mut inbox, first);
        }
    }

    /// Makes the loop's descriptor report the engine's events, or stop that.
    pub(super) fn show_to_loop(&self, shown: bool) {
        if let (Some(view), Some(poll)) = (&self.event_loop, self.poll.get()) {
            let _ = if shown { view.watch(poll.as_fd()) } else { view.unwatch(poll.as_fd()) };
        }
    }

    /// Makes the engine's thread make all steps from now on.
    fn leave_loop(&self) {
        self.show_to_loop(false);
        self.has_left_loop.store(true, Ordering::Relaxed);
        self.inbox.lock().thread.iter().for_each(Thread::unpark);
    }
}
