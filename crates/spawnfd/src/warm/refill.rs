// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work of the keeper thread: [`WarmState::next_work`] chooses the work, and other functions record its outcome.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Mode;
use super::entry::{ParkedHandle, WarmEntry};
use super::fork::ForkedChildren;
use super::leased::LeasedProcess;
use super::parked::{ParkedOrigin, ParkedProcess};
use super::parking::ParkTarget;
use super::recipe::{Recipe, can_park};
use super::start::NotParked;
use super::state::WarmState;
use super::wire::Page;
use crate::child::interned;
use crate::host::descriptors::{CheckedFd, standard_streams_are_open};
use crate::template::Template;

/// The keeper's pause while a standard stream of the host is closed.
const CLOSED_STREAM_PAUSE: Duration = Duration::from_millis(50);
/// The number of attempts without a pause to park a program whose files change during each attempt.
const MAX_FILE_CHANGES: u32 = 50;

/// The keeper parks the next process when the previous one is parked, or at the latest after this
/// time.
const SLOW_PARKING: Duration = Duration::from_millis(200);

/// The maximum number of children to fork in one request.
const MAX_FORKS_AT_ONCE: usize = 16;

/// The pause before the next attempt after a resource was missing. The pause grows after `ATTEMPTS_BEFORE_BACKOFF`.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const ATTEMPTS_BEFORE_BACKOFF: u32 = 5;

/// The keeper's next work.
pub(super) enum Work {
    /// The keeper parks a process for this entry.
    Park { target: ParkTarget, recipe: Arc<Recipe>, object: Arc<CheckedFd> },
    /// The keeper forks this many children from this parent.
    Fork(LeasedProcess, usize),
    /// The keeper waits until this time, or until a start wakes it.
    Wait(Option<Instant>),
}

pub(super) type Discarded = (Vec<ParkedHandle>, Vec<Arc<Page>>);

impl WarmEntry {
    /// Records that a resource for parking the program is missing.
    pub(super) fn record_missing_resource(&mut self, what: &str) {
        let now = Instant::now();
        self.failures += 1;
        self.next_attempt = now + RETRY_PAUSE * (1 << self.failures.saturating_sub(ATTEMPTS_BEFORE_BACKOFF).min(8));
        self.missing_resource = (self.failures >= ATTEMPTS_BEFORE_BACKOFF).then(|| (interned(what), now));
    }

    /// Records that a file of the program changed before the process was parked.
    fn record_file_change(&mut self) {
        self.failures += 1;
        if self.failures >= MAX_FILE_CHANGES {
            self.record_missing_resource("changing files");
        }
    }
}

impl WarmState {
    /// Records the outcome of the keeper's request for `count` children.
    pub(super) fn finish_keeper_fork(
        &mut self,
        parent: LeasedProcess,
        count: usize,
        forked: Result<ForkedChildren, &'static str>,
    ) {
        let version = parent.handle.version;
        let forks = if parent.recipe.needs_parent_renewal() { self.options.forks } else { u64::MAX };
        let not_requested = forked.is_err();
        let ForkedChildren { children, shortfall } =
            forked.unwrap_or(ForkedChildren { children: Vec::new(), shortfall: None });
        let forked = children.into_iter().map(|parked| ParkedHandle::new(version, parked));
        match self.entries.iter_mut().find(|entry| entry.id == parent.entry && entry.version == version) {
            Some(entry) => {
                entry.parked.extend(forked);
                // With a limit below the depth, the keeper would have to replace the parent at each
                // refill.
                let forks = forks.max(entry.depth as u64 + 1);
                if let Some(parent) = &mut entry.parent {
                    parent.outdated |= parent.process.try_lock().is_ok_and(|parent| parent.forked >= forks);
                }
            }
            None => self.to_end.extend(forked),
        }
        if let Some(entry) = self.entry(parent.entry) {
            entry.leased -= count;
            match shortfall {
                None if not_requested => entry.next_attempt = Instant::now() + RETRY_PAUSE,
                None => entry.failures = 0,
                // Several threads can have requested children of this parent; only the first failure counts.
                Some(why) if entry.has_parent(&parent) => {
                    entry.record_missing_resource(why);
                    entry.parent = None;
                }
                Some(_) => {}
            }
            if shortfall.is_some() {
                self.to_end.push(parent.handle);
            }
        }
    }

    /// Ends the processes of entries whose files have changed.
    pub(super) fn retire(&mut self, changed: &HashSet<u64>) {
        for entry in self.entries.iter_mut().filter(|entry| changed.contains(&entry.id)) {
            entry.version += 1;
            entry.was_parked = false;
            entry.cannot = None;
            entry.stale = true;
            let count = self.to_end.len();
            self.to_end.extend(entry.drain());
            if self.to_end.len() == count {
                entry.record_file_change();
            }
        }
    }

    /// Takes the processes and pages that are no longer needed. The caller drops them after it has released the lock.
    fn take_discarded(&mut self) -> Discarded {
        let spent_pages = self.spent_pages.extract_if(.., |page| Arc::strong_count(page) == 1).collect();
        (std::mem::take(&mut self.to_end), spent_pages)
    }

    /// Returns the work that is due. Ends the processes of idle programs, and marks parents that are too old.
    pub(super) fn next_work(&mut self) -> (Work, Discarded) {
        if self.update_turned_off(self.turned_off) {
            return (Work::Wait(None), self.take_discarded());
        }
        let Some(resources) = &mut self.resources else { return (Work::Wait(None), self.take_discarded()) };
        resources.watch.mounts.open_table();
        let changed = resources.watch.take_changed().unwrap_or_default();
        let (object, remounts) = (resources.object.clone(), resources.watch.mounts.changes);
        self.retire(&changed);
        let (mut to_end, spent_pages) = self.take_discarded();
        let now = Instant::now();
        let (parked, memory) = self.usage();
        let parking = self.entries.iter().filter_map(|entry| entry.parking);
        let parked = parked + parking.clone().count();
        let has_capacity = parked < self.options.processes && memory < self.options.memory;
        // Park one process at a time. If a process is slow to park, start the next one after `SLOW_PARKING`.
        let earliest = parking.map(|(began, _)| began + SLOW_PARKING).max().unwrap_or(now);
        let mut next: Option<Instant> = None;
        let mut wake_at = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        let mut work = None;
        for entry in &mut self.entries {
            if !entry.idle && now >= entry.last_used + self.options.idle {
                entry.idle = true;
                to_end.extend(entry.drain());
            }
            if entry.idle || entry.cannot.is_some() {
                continue;
            }
            wake_at(entry.last_used + self.options.idle);
            if let Some(parent) = entry.parent.as_mut().filter(|_| entry.recipe.needs_parent_renewal()) {
                let end = parent.parked_at + self.options.age;
                parent.outdated |= now >= end;
                if !parent.outdated {
                    wake_at(end);
                }
            }
            let missing = entry.lacks_processes() && entry.parking.is_none() && has_capacity;
            if missing && !standard_streams_are_open() {
                wake_at(now + CLOSED_STREAM_PAUSE);
            } else if missing
                && now >= entry.next_attempt
                && work.is_none()
                && let Some(parent) = entry.parent.as_ref().filter(|parent| !parent.outdated)
            {
                let count =
                    (entry.depth - entry.parked.len()).min(MAX_FORKS_AT_ONCE).min(self.options.processes - parked);
                let handle = parent.clone();
                entry.leased += count;
                let recipe = entry.recipe.clone();
                work = Some(Work::Fork(LeasedProcess { entry: entry.id, recipe, handle, is_parent: true }, count));
            } else if missing && now >= entry.next_attempt.max(earliest) && work.is_none() {
                entry.parking = Some((now, remounts));
                let target = ParkTarget { entry: entry.id, version: entry.version };
                work = Some(Work::Park { target, recipe: entry.recipe.clone(), object: object.clone() });
            } else if missing {
                wake_at(entry.next_attempt.max(earliest));
            }
        }
        (work.unwrap_or(Work::Wait(next)), (to_end, spent_pages))
    }

    /// Records the process that the keeper has parked, or the reason why it could not park one. Returns the process
    /// if it is not needed.
    pub(super) fn finish_parking(
        &mut self,
        target: ParkTarget,
        outcome: Result<ParkedProcess, NotParked>,
    ) -> Option<ParkedProcess> {
        let ParkTarget { entry: id, version } = target;
        let Some(resources) = &mut self.resources else { return outcome.ok() };
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return outcome.ok() };
        let parking = entry.parking.take();
        match outcome {
            Ok(parked) if entry.version == version => {
                let sandboxed = entry.recipe.sandbox.is_some();
                let ParkedOrigin { files, before_exec, .. } = &*parked.origin;
                // A process that executes other programs has no files to watch.
                let changed = match entry.recipe.executes {
                    true => Ok(false),
                    false => resources.watch.add(id, files, sandboxed, *before_exec),
                };
                let Ok(changed) = changed else {
                    entry.record_missing_resource("inotify");
                    return Some(parked);
                };
                // After a change of the mount table, the same paths may refer to other files.
                let remounted = !entry.recipe.executes
                    && parking.is_none_or(|(_, remounts)| remounts != resources.watch.mounts.changes);
                if remounted || changed {
                    entry.next_attempt = Instant::now() + self.options.delay.max(Duration::from_millis(20));
                    entry.record_file_change();
                    return Some(parked);
                }
                (entry.was_parked, entry.missing_resource, entry.stale) = (true, None, false);
                self.stats.made += 1;
                let handle = ParkedHandle::new(version, parked);
                match entry.recipe.mode {
                    Mode::Reserve => {
                        entry.failures = 0;
                        entry.parked.push_back(handle);
                    }
                    // Children of the old parent share its memory layout, so end them too. `failures` stays, because
                    // the new parent has not forked yet.
                    Mode::Fork => {
                        self.to_end.extend(entry.drain());
                        entry.parent = Some(handle);
                    }
                }
                None
            }
            Ok(parked) => Some(parked),
            // The entry has changed since the keeper began, so the failure concerns an older
            // version.
            Err(_) if entry.version != version => None,
            Err(why) => {
                // If another file has replaced the program's file, record the new file. Otherwise keep the result until
                // a file changes.
                if entry.recipe.template.revalidate().is_err() {
                    let path = entry.recipe.template.path().map(std::path::Path::to_owned);
                    match path.map(Template::open) {
                        Some(Ok(template)) => {
                            Arc::make_mut(&mut entry.recipe).template = template;
                            entry.cannot = can_park(&entry.recipe).err();
                        }
                        // The program counts as not found until a start finds it again.
                        _ => entry.cannot = Some("not found"),
                    }
                    return None;
                }
                match why {
                    // After a change, the program may have read a half-written file. Try again, as for a program that
                    // was parked before.
                    NotParked::Permanent(why) if !entry.was_parked && !entry.stale && entry.failures == 0 => {
                        entry.cannot = Some(interned(&why));
                    }
                    NotParked::Temporary(why) | NotParked::Permanent(why) => entry.record_missing_resource(&why),
                }
                None
            }
        }
    }

    /// Returns the number of parked and leased processes, and the memory of the parked ones.
    pub(super) fn usage(&self) -> (usize, u64) {
        let all = self.entries.iter().flat_map(WarmEntry::unleased);
        let leased: usize = self.entries.iter().map(|entry| entry.leased).sum();
        (all.clone().count() + leased, all.map(|handle| handle.memory).sum())
    }

    /// Whether every program that can be parked has its full number of processes.
    pub(super) fn is_full(&self) -> bool {
        let (parked, memory) = self.usage();
        let has_capacity = parked < self.options.processes && memory < self.options.memory;
        !has_capacity || self.entries.iter().all(WarmEntry::is_complete)
    }

    /// Whether the keeper can make no progress now. Either the state does not allow it, or parking
    /// has failed after `since` for every program with missing processes.
    pub(super) fn is_blocked(&self, since: Instant) -> bool {
        let blocked =
            |entry: &WarmEntry| entry.is_complete() || entry.missing_resource.is_some_and(|(_, last)| last >= since);
        self.resources.is_none() || !standard_streams_are_open() || self.entries.iter().all(blocked)
    }

    /// Makes the keeper try all programs again. It tries programs without failures at once, and the others after a
    /// short pause.
    pub(super) fn retry_now(&mut self) {
        let now = Instant::now();
        for entry in &mut self.entries {
            entry.next_attempt = entry.next_attempt.min(if entry.failures == 0 { now } else { now + RETRY_PAUSE });
            if entry.idle {
                (entry.idle, entry.last_used) = (false, now);
            }
        }
    }
}
