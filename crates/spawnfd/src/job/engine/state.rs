// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runs of an engine, and the work that is due on them.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use spawnfd_sys::Errno;

use super::{Engine, EngineOrder, Inbox, OnDone};
use crate::callback::catch_panic;
use crate::error::{Error, Result, Stage};
use crate::job::run_state::{RECHECK_INTERVAL, REPLACED, Readiness, RunFd, RunState};
use crate::job::{Output, Stop};

/// A run in an engine.
pub(super) struct EngineRun {
    pub(super) run: RunState,
    /// The callback; `None` once the callback has the result. After that, the engine only watches the run's surviving
    /// processes.
    pub(super) done: Option<OnDone>,
    /// The time under which the run is listed in [`EngineState::due`].
    pub(super) scheduled: Option<Instant>,
}

/// The error of a run that the engine can no longer watch.
pub(super) fn descriptors_lost() -> Error {
    Error::new(Stage::Capture, Errno::EBADF, "epoll_wait()").saying(REPLACED)
}

/// The error of a run that a panic has ended, usually a panic in the source of its input.
fn panicked() -> Error {
    Error::new(Stage::Capture, Errno::EIO, "a panic").saying("a panic ended the run")
}

/// Performs one step of a run. A panic ends only this run, because the engine has other runs.
fn perform_step<T>(step: impl FnOnce() -> T) -> Result<T> {
    catch_panic(step).ok_or_else(panicked)
}

/// An event on a descriptor of a run.
pub(super) struct RunEvent {
    pub(super) id: u64,
    pub(super) fd_kind: RunFd,
    pub(super) readiness: Readiness,
}

/// The runs, and the work that is due on them.
pub(super) struct EngineState {
    runs: HashMap<u64, EngineRun>,
    /// The time of each run's next check, if no event comes earlier.
    due: BTreeSet<(Instant, u64)>,
    /// Events of streams that have more data than one call reads.
    pub(super) unfinished: Vec<RunEvent>,
    /// Results to deliver.
    done: Vec<(OnDone, Result<Output>)>,
    buffer: Vec<u8>,
    /// The time of the last comparison of all descriptors.
    last_check: Instant,
}

impl Default for EngineState {
    fn default() -> EngineState {
        EngineState {
            runs: HashMap::new(),
            due: BTreeSet::new(),
            unfinished: Vec::new(),
            done: Vec::new(),
            buffer: vec![0; 64 << 10],
            last_check: Instant::now(),
        }
    }
}

impl EngineState {
    /// Takes over the runs in the inbox.
    pub(super) fn take_arrived(&mut self, inbox: &mut Inbox) {
        for (id, entry) in inbox.arrived.drain(..) {
            self.runs.insert(id, entry);
            self.schedule(id);
        }
        inbox.owned = self.runs.len();
    }

    /// Whether this run is one of the engine's.
    pub(super) fn has(&self, id: u64) -> bool {
        self.runs.contains_key(&id)
    }

    /// The first deadline of a run.
    pub(super) fn first_due(&self) -> Option<Instant> {
        self.due.first().map(|&(due, _)| due)
    }

    /// Whether a run may signal processes at a deadline that has passed.
    pub(super) fn signals_by(&self, now: Instant) -> bool {
        let signals = |(_, id): &(Instant, u64)| self.runs.get(id).is_some_and(|entry| entry.run.signals_by(now));
        self.due.range(..=(now, u64::MAX)).any(signals)
    }

    /// Whether it is time to compare all descriptors, which the application may have replaced.
    pub(super) fn needs_check(&mut self, now: Instant) -> bool {
        let needs_check = now.duration_since(self.last_check) >= RECHECK_INTERVAL;
        if needs_check {
            self.last_check = now;
        }
        needs_check
    }

    /// Abandons the runs of which the application has closed or replaced a descriptor.
    pub(super) fn abandon_replaced(&mut self, engine: &Engine) {
        let ids: Vec<u64> = self.runs.keys().copied().collect();
        ids.into_iter().for_each(|id| self.abandon_if_replaced(engine, id));
    }

    /// Handles an event, unless the application has replaced the run's descriptor. The epoll set
    /// reports events of the file that was added. That file may stay open, because a child before
    /// exec or a forked process has a copy of this descriptor table.
    pub(super) fn on_event(&mut self, engine: &Engine, event: RunEvent) {
        let is_ours = |entry: &EngineRun| entry.run.watched(event.fd_kind).is_none_or(|(fd, _)| engine.watches(fd));
        if self.runs.get(&event.id).is_some_and(is_ours) {
            self.handle_event(event);
        } else {
            self.abandon_if_replaced(engine, event.id);
        }
    }

    /// Abandons a run if the application has closed or replaced one of its descriptors.
    pub(super) fn abandon_if_replaced(&mut self, engine: &Engine, id: u64) {
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

    pub(super) fn carry_out(&mut self, id: u64, order: EngineOrder) {
        // Without an entry, the run is over, and there is nothing to do.
        let Some(entry) = self.runs.get_mut(&id) else { return };
        let run = &mut entry.run;
        let mut outcome = Ok(());
        match order {
            EngineOrder::End { grace } => outcome = perform_step(|| run.end(Stop::Cancelled, grace)),
            EngineOrder::Feed => {
                return self.handle_event(RunEvent { id, fd_kind: RunFd::Stdin, readiness: Readiness::Ready });
            }
            EngineOrder::Read => {
                // The edge-triggered event of unread output does not come again, so read until the pipe is empty, as
                // at a hangup.
                self.handle_event(RunEvent { id, fd_kind: RunFd::Stdout, readiness: Readiness::HungUp });
                return self.handle_event(RunEvent { id, fd_kind: RunFd::Stderr, readiness: Readiness::HungUp });
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
        let outcome = perform_step(|| entry.run.handle_event(event.fd_kind, event.readiness, &mut self.buffer))
            .and_then(|outcome| outcome);
        let id = event.id;
        if matches!(outcome, Ok(false)) && !entry.run.is_over() {
            self.unfinished.push(event);
        }
        self.finish_if_done(id, outcome.map(drop));
    }

    /// Handles up to `at_once` deadlines, and returns whether there were any. Each due run gets one call, even if it has
    /// more work to do, so that other runs get theirs.
    pub(super) fn tick(&mut self, engine: &Engine, now: Instant, at_once: usize) -> bool {
        let due: Vec<u64> = self.due.range(..=(now, u64::MAX)).take(at_once).map(|&(_, id)| id).collect();
        for &id in &due {
            self.abandon_if_replaced(engine, id);
            let Some(entry) = self.runs.get_mut(&id) else { continue };
            let outcome = perform_step(|| entry.run.tick(now, &mut self.buffer)).and_then(|outcome| outcome);
            self.finish_if_done(id, outcome);
        }
        !due.is_empty()
    }

    /// Delivers the results. The inbox is not locked, because a callback may submit the next run.
    pub(super) fn deliver(&mut self) {
        for (done, output) in self.done.drain(..) {
            catch_panic(|| done(output));
        }
    }

    /// Ends all runs with an error. Unless a panic is the cause, the application may have replaced the runs'
    /// descriptors, so the runs are abandoned.
    pub(super) fn fail_all(&mut self, has_panicked: bool) {
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
