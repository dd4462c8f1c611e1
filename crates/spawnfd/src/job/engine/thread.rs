// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread of an engine.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spawnfd_sys::call;

use super::{ENGINES, Engine, RECHECK_INTERVAL};
use crate::callback::{Callback, catch_panic};
use crate::error::{Error, Result, Stage};
use crate::host::thread::{self, ExitingThread};
use crate::{launch, tree};

/// How long an idle engine waits for another run before its thread ends.
const IDLE: Duration = Duration::from_millis(500);

/// If an event loop has left its engine alone for this time while something was ready or due, the engine's thread takes
/// the loop's place, until nothing has happened for this time, or the loop comes. The thread looks at this interval.
const LOOP_IS_BLOCKED: Duration = Duration::from_millis(20);

impl Engine {
    /// Starts the thread.
    pub(super) fn start_thread(self: &Arc<Engine>) -> Result<()> {
        let engine = self.clone();
        let mask = thread::mask_in_engine().unwrap_or_else(call::signal_mask);
        let body = move || {
            thread::become_engine(mask);
            engine.run_thread(|| engine.serve());
        };
        let started = thread::start_thread("spawnfd-engine", thread::DEFAULT_STACK, body)
            .map_err(|errno| Error::new(Stage::Capture, errno, "pthread_create()"))?;
        self.inbox.lock().thread = Some(started.thread().clone());
        Ok(())
    }

    /// The thread's main function. When `serve` returns or panics, the remaining runs fail with an error, and later
    /// runs use another engine.
    pub(super) fn run_thread(self: &Arc<Engine>, serve: impl FnOnce()) {
        let has_panicked = catch_panic(serve).is_none();
        let calls = {
            let mut inbox = self.inbox.lock();
            inbox.over = true;
            std::mem::take(&mut inbox.calls)
        };
        let mut engines = ENGINES.lock();
        engines.running.retain(|engine| !Arc::ptr_eq(engine, self));
        engines.leaving.retain(|thread| thread.is_running());
        engines.leaving.extend(ExitingThread::now());
        drop(engines);
        self.wake_tasks();
        calls.iter().for_each(Callback::call);
        let mut state = self.state.lock();
        state.take_arrived(&mut self.inbox.lock());
        state.fail_all(has_panicked);
    }

    /// Serves the engine until it has been idle for some time, or must end.
    fn serve(&self) {
        let (mut idle_since, mut last_check) = (None, Instant::now());
        while let ControlFlow::Continue(left) = self.end_if_idle_since(&mut idle_since) {
            let outcome = if self.is_driven_by_loop() {
                self.watch_loop(left, &mut last_check)
            } else {
                self.step(&mut self.state.lock(), left).map_continue(drop)
            };
            if outcome.is_break() {
                return;
            }
        }
    }

    /// Ends the engine if it has been idle for [`IDLE`]. Otherwise returns when to call this again.
    fn end_if_idle_since(&self, idle_since: &mut Option<Instant>) -> ControlFlow<(), Duration> {
        let mut inbox = self.inbox.lock();
        if inbox.over {
            return ControlFlow::Break(());
        }
        if !inbox.is_idle() {
            *idle_since = None;
            return ControlFlow::Continue(RECHECK_INTERVAL);
        }
        let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
        if idle < IDLE {
            return ControlFlow::Continue(IDLE - idle);
        }
        inbox.over = true;
        drop(inbox);
        launch::drop_unused_slots();
        tree::drop_template();
        ControlFlow::Break(())
    }

    /// Sleeps for [`LOOP_IS_BLOCKED`], and takes the place of an event loop that has not served its engine meanwhile.
    fn watch_loop(&self, left: Duration, last_check: &mut Instant) -> ControlFlow<()> {
        let visits = self.visits.load(Ordering::Relaxed);
        std::thread::park_timeout(left.min(LOOP_IS_BLOCKED));
        let is_visited = |visits| self.visits.load(Ordering::Relaxed) != visits;
        let is_needed = std::mem::take(&mut self.inbox.lock().needs_thread);
        let is_blocked = is_needed || !is_visited(visits) && self.has_work();
        if !is_blocked && last_check.elapsed() < RECHECK_INTERVAL {
            return ControlFlow::Continue(());
        }
        *last_check = Instant::now();
        let Some(mut state) = self.state.try_lock() else {
            // The loop is making a step.
            self.inbox.lock().needs_thread |= is_needed;
            return ControlFlow::Continue(());
        };
        let longest = if is_blocked { LOOP_IS_BLOCKED } else { Duration::ZERO };
        // Meanwhile, events do not wake the loop, which could not handle them.
        self.show_to_loop(false);
        let visits = self.visits.load(Ordering::Relaxed);
        while self.step(&mut state, longest)? && !is_visited(visits) {}
        self.set_timer(&state);
        drop(state);
        if self.is_driven_by_loop() {
            self.show_to_loop(true);
        }
        ControlFlow::Continue(())
    }

    /// Whether a descriptor of the epoll set is ready, or a deadline has passed.
    fn has_work(&self) -> bool {
        let is_due = self.inbox.lock().next_step.is_some_and(|at| at <= Instant::now());
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        is_due || poll(&mut [PollFd::new(&self.poll, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}
