// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work of the keeper thread: [`WarmState::next_work`] chooses the work, and other functions record its outcome.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Mode;
use super::entry::{LeasedProcess, WarmEntry};
use super::parked::{ForkedChildren, NotParked, ParkedHandle, ParkedOrigin, ParkedProcess};
use super::parking::ParkTarget;
use super::recipe::{Recipe, can_park};
use super::spare::MemoryFinding;
use super::state::WarmState;
use super::wire::Page;
use crate::cold_reason::ColdReason;
use crate::host::descriptors::{CheckedFd, standard_streams_are_open};
use crate::template::Template;

/// The keeper's pause while a standard stream of the host is closed.
const CLOSED_STREAM_PAUSE: Duration = Duration::from_millis(50);
/// The number of attempts without a pause to park a program whose files change during each attempt.
const MAX_FILE_CHANGES: u32 = 50;

/// The keeper parks the next process when the previous one is parked, or at the latest after this
/// time.
const SLOW_PARKING: Duration = Duration::from_millis(200);

/// The time for which a caller in `fill` lets the keeper start processes on a busy machine. The caller asks each
/// millisecond.
const FILL_TIME: Duration = Duration::from_millis(50);

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
    /// The keeper reads the load of the machine.
    ReadLoad,
    /// The keeper waits until this time, or until a start wakes it.
    Wait(Option<Instant>),
}

/// The time at which the keeper next has work.
struct WakeUp(Option<Instant>);

impl WakeUp {
    fn at(&mut self, time: Instant) {
        self.0 = Some(self.0.map_or(time, |earlier| earlier.min(time)));
    }
}

pub(super) type Discarded = (Vec<ParkedHandle>, Vec<Arc<Page>>);

impl WarmEntry {
    /// Records that a resource for parking the program is missing.
    pub(super) fn record_missing_resource(&mut self, what: ColdReason) {
        let now = Instant::now();
        self.failures += 1;
        self.next_attempt = now + RETRY_PAUSE * (1 << self.failures.saturating_sub(ATTEMPTS_BEFORE_BACKOFF).min(8));
        self.missing_resource = (self.failures >= ATTEMPTS_BEFORE_BACKOFF).then_some((what, now));
    }

    /// Records that a file of the program changed before the process was parked.
    fn record_file_change(&mut self) {
        self.failures += 1;
        if self.failures >= MAX_FILE_CHANGES {
            self.record_missing_resource(ColdReason::ChangingFiles);
        }
    }
}

impl WarmState {
    /// Records the outcome of the keeper's request for `count` children.
    pub(super) fn finish_keeper_fork(
        &mut self,
        parent: LeasedProcess,
        count: usize,
        forked: Result<ForkedChildren, ColdReason>,
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
                entry.parked.back().into_iter().for_each(|child| entry.usage.record_forked(child.memory));
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
                    entry.parent = None;
                    if !entry.give_up_forking() {
                        entry.record_missing_resource(why);
                    }
                }
                Some(_) => {}
            }
            if shortfall.is_some() {
                self.to_end.push(parent.handle);
            }
        }
        self.keep_memory_limit();
    }

    /// Ends the processes of entries whose files have changed.
    pub(super) fn retire(&mut self, changed: &HashSet<u64>) {
        for entry in self.entries.iter_mut().filter(|entry| changed.contains(&entry.id)) {
            entry.version += 1;
            entry.was_parked = false;
            entry.cannot = None;
            entry.stale = true;
            entry.usage.forget_program();
            entry.auto.iter_mut().for_each(|auto| auto.may_fork = auto.is_trusted);
            let count = self.to_end.len();
            self.to_end.extend(entry.drain());
            entry.return_to_reserve();
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

    /// Returns the work that is due. Ends processes that are no longer worth their memory, and marks parents that are
    /// too old.
    pub(super) fn next_work(&mut self, memory: MemoryFinding) -> (Work, Discarded) {
        if self.update_turned_off(self.turned_off) {
            return (Work::Wait(None), self.take_discarded());
        }
        let Some(resources) = &mut self.resources else { return (Work::Wait(None), self.take_discarded()) };
        resources.watch.mounts.open_table();
        let changed = resources.watch.take_changed().unwrap_or_default();
        self.retire(&changed);
        let now = Instant::now();
        let mut wake_up = WakeUp(None);
        self.update_entries(now, &mut wake_up);
        if memory == MemoryFinding::Pressure
            && let Some(index) = self.least_valuable(now)
        {
            self.to_end.extend(self.entries[index].drain());
        }
        let work = self.due_work(memory, now, &mut wake_up);
        (work.unwrap_or(Work::Wait(wake_up.0)), self.take_discarded())
    }

    /// Ends the processes of idle programs, marks parents that are too old, and chooses modes.
    fn update_entries(&mut self, now: Instant, wake_up: &mut WakeUp) {
        for entry in &mut self.entries {
            if !entry.idle && now >= entry.last_used + self.options.idle {
                entry.idle = true;
                self.to_end.extend(entry.drain());
                entry.return_to_reserve();
            }
            if entry.is_unserved() {
                continue;
            }
            wake_up.at(entry.last_used + self.options.idle);
            entry.choose_mode(now);
            if let Some(parent) = entry.parent.as_mut().filter(|_| entry.recipe.needs_parent_renewal()) {
                let end = parent.parked_at + self.options.age;
                parent.outdated |= now >= end;
                if !parent.outdated {
                    wake_up.at(end);
                }
            }
        }
    }

    /// Chooses an entry that lacks a process, if the machine has resources to spare.
    fn due_work(&mut self, memory: MemoryFinding, now: Instant, wake_up: &mut WakeUp) -> Option<Work> {
        let is_filling = self.filling_until.is_some_and(|until| now < until);
        // Park one process at a time. If a process is slow to park, start the next one after `SLOW_PARKING`.
        let parking = self.entries.iter().filter_map(|entry| entry.parking);
        let earliest = parking.map(|(began, _)| began + SLOW_PARKING).max().unwrap_or(now);
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.is_unserved() || entry.parking.is_some() || !entry.lacks_processes() {
                continue;
            }
            if !standard_streams_are_open() {
                wake_up.at(now + CLOSED_STREAM_PAUSE);
                continue;
            }
            let parent = entry.usable_parent().cloned();
            let due = if parent.is_some() { entry.next_attempt } else { entry.next_attempt.max(earliest) };
            if now < due {
                wake_up.at(due);
                continue;
            }
            if !is_filling && memory != MemoryFinding::Available {
                continue;
            }
            // A parent saves CPU time in all later starts, so it does not wait for an idle machine.
            if !is_filling && !entry.lacks_parent() {
                let share_from = self.keeper_share.used_up_until(now).filter(|_| !entry.usage.has_long_start_up());
                if let Some(from) = share_from {
                    wake_up.at(from);
                    continue;
                }
                match self.load {
                    Some(load) if now < load.until && load.is_busy => {
                        wake_up.at(load.until);
                        continue;
                    }
                    Some(load) if now < load.until => {}
                    _ => return Some(Work::ReadLoad),
                }
            }
            if !self.make_space(index, now) {
                continue;
            }
            return match parent {
                Some(parent) => Some(self.fork_work(index, parent)),
                None => self.park_work(index, now),
            };
        }
        None
    }

    fn fork_work(&mut self, index: usize, parent: ParkedHandle) -> Work {
        let (processes, memory) = self.usage();
        let free = self.options.processes.saturating_sub(processes).max(1);
        let entry = &mut self.entries[index];
        // As long as the size of a child is unknown, fork only one.
        let fitting = match entry.expected_memory() {
            0 => 1,
            size => usize::try_from((self.options.memory.saturating_sub(memory)) / size).unwrap_or(usize::MAX).max(1),
        };
        let count = (entry.depth - entry.parked.len()).min(MAX_FORKS_AT_ONCE).min(free).min(fitting);
        entry.leased += count;
        let recipe = entry.recipe.clone();
        Work::Fork(LeasedProcess { entry: entry.id, recipe, handle: parent, is_parent: true }, count)
    }

    fn park_work(&mut self, index: usize, now: Instant) -> Option<Work> {
        let resources = self.resources.as_ref()?;
        let entry = &mut self.entries[index];
        entry.parking = Some((now, resources.watch.mounts.changes));
        let target = ParkTarget { entry: entry.id, version: entry.version };
        Some(Work::Park { target, recipe: entry.recipe.clone(), object: resources.object.clone() })
    }

    /// The entries with parked processes, those first whose warm starts save least, with what they save.
    fn by_value(&self, now: Instant) -> Vec<(usize, f64)> {
        let parked = self.entries.iter().enumerate().filter(|(_, entry)| entry.unleased().next().is_some());
        let mut values: Vec<_> = parked.map(|(index, entry)| (index, entry.usage.value(now))).collect();
        values.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        values
    }

    fn least_valuable(&self, now: Instant) -> Option<usize> {
        self.by_value(now).first().map(|&(index, _)| index)
    }

    /// The number of processes of each entry that have to end so that another process of this entry fits into the
    /// limits. `None`: it does not fit.
    fn victims(&self, index: usize, now: Instant) -> Option<Vec<(usize, usize)>> {
        let (mut processes, mut memory) = self.usage();
        let size = self.entries[index].expected_memory();
        let limits = &self.options;
        let fits = |processes: usize, memory: u64| {
            processes < limits.processes && memory < limits.memory && memory.saturating_add(size) <= limits.memory
        };
        let mut victims = Vec::new();
        if fits(processes, memory) {
            return Some(victims);
        }
        // The factor prevents two programs of similar value from replacing each other.
        let limit = self.entries[index].usage.value(now) / 2.0;
        for (victim, _) in self.by_value(now).into_iter().filter(|&(victim, value)| victim != index && value < limit) {
            for (taken, handle) in self.entries[victim].in_order_of_removal().enumerate() {
                (processes, memory) = (processes - 1, memory - handle.memory);
                if fits(processes, memory) {
                    victims.push((victim, taken + 1));
                    return Some(victims);
                }
            }
            victims.push((victim, usize::MAX));
        }
        None
    }

    /// Ends processes of programs that save much less, so that a process of this entry fits into the limits. Returns
    /// `false`, and ends none, if that does not suffice.
    fn make_space(&mut self, index: usize, now: Instant) -> bool {
        let Some(victims) = self.victims(index, now) else { return false };
        for (victim, count) in victims {
            let entry = &mut self.entries[victim];
            self.to_end.extend(std::iter::from_fn(|| entry.take_one()).take(count));
        }
        true
    }

    /// Ends the least valuable processes while all of them need more than the memory limit.
    pub(super) fn keep_memory_limit(&mut self) {
        let now = Instant::now();
        while self.usage().1 > self.options.memory
            && let Some(index) = self.least_valuable(now)
        {
            self.to_end.extend(self.entries[index].take_one());
        }
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
                let ParkedOrigin { files, before_exec, modules, first_path, .. } = &*parked.origin;
                let first_path = first_path.as_deref().map(|directory| (directory, modules));
                // A process that executes other programs has no files to watch.
                // The files of an earlier process of this version have been watched since then.
                let is_watched = entry.watched.as_ref().is_some_and(|(watched, earlier)| {
                    *watched == version && !sandboxed && earlier.has_files_of(&parked.origin)
                });
                let changed = match entry.recipe.executes || is_watched {
                    true => Ok(false),
                    false => resources.watch.add(id, files, first_path, sandboxed, *before_exec),
                };
                let Ok(changed) = changed else {
                    entry.record_missing_resource(ColdReason::Inotify);
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
                entry.watched = Some((version, parked.origin.clone()));
                self.stats.made += 1;
                self.stats.refill_time += parked.start_up;
                entry.usage.record_parked(parked.start_up, parked.private);
                if parked.private > self.options.memory {
                    entry.cannot = Some(ColdReason::MemoryLimit);
                    return Some(parked);
                }
                let handle = ParkedHandle::new(version, parked);
                if entry.recipe.mode == Mode::Fork {
                    // Children of the old parent share its memory layout, so end them too. `failures` stays, because
                    // the new parent has not forked yet.
                    self.to_end.extend(entry.drain());
                    entry.parent = Some(handle);
                } else {
                    entry.failures = 0;
                    entry.parked.push_back(handle);
                }
                self.keep_memory_limit();
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
                        _ => entry.cannot = Some(ColdReason::NotFound),
                    }
                    return None;
                }
                if entry.give_up_forking() {
                    return None;
                }
                match why {
                    // After a change, the program may have read a half-written file. Try again, as for a program that
                    // was parked before.
                    NotParked::Permanent(why) if !entry.was_parked && !entry.stale && entry.failures == 0 => {
                        entry.cannot = Some(why);
                    }
                    NotParked::Temporary(why) | NotParked::Permanent(why) => entry.record_missing_resource(why),
                }
                None
            }
        }
    }

    /// Returns the number of parked and leased processes and of those being parked, and the memory of the parked ones.
    pub(super) fn usage(&self) -> (usize, u64) {
        let all = self.entries.iter().flat_map(WarmEntry::unleased);
        let others: usize = self.entries.iter().map(|entry| entry.leased + usize::from(entry.parking.is_some())).sum();
        (all.clone().count() + others, all.map(|handle| handle.memory).sum())
    }

    /// Whether every program that can be parked has its full number of processes.
    pub(super) fn is_full(&self) -> bool {
        let now = Instant::now();
        let mut entries = self.entries.iter().enumerate();
        entries.all(|(index, entry)| entry.is_complete() || self.victims(index, now).is_none())
    }

    /// Whether the keeper can make no progress now. Either the state does not allow it, or parking
    /// has failed after `since` for every program with missing processes.
    pub(super) fn is_blocked(&self, since: Instant) -> bool {
        let blocked =
            |entry: &WarmEntry| entry.is_complete() || entry.missing_resource.is_some_and(|(_, last)| last >= since);
        self.resources.is_none() || !standard_streams_are_open() || self.entries.iter().all(blocked)
    }

    /// Lets the keeper start processes for a moment, whether or not the machine is busy.
    pub(super) fn fill_now(&mut self) {
        self.filling_until = Some(Instant::now() + FILL_TIME);
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

#[cfg(test)]
mod tests {
    use super::super::confinement::Confinement;
    use super::super::spare::Finding;
    use super::super::{Park, WarmOptions};
    use super::*;

    fn state() -> WarmState {
        let mut state = WarmState::new(WarmOptions::new()).expect("inotify and a memfd");
        let template = Template::open("/bin/sh").expect("a shell");
        state.add(&template, None, None, Confinement::default(), Park::new());
        state
    }

    fn look(state: &mut WarmState, is_busy: bool) -> Instant {
        let until = Instant::now() + Duration::from_secs(60);
        state.load = Some(Finding { is_busy, until });
        until
    }

    fn next(state: &mut WarmState, memory: MemoryFinding) -> Work {
        state.next_work(memory).0
    }

    #[test]
    fn a_process_is_parked_once_cpu_time_and_memory_are_available() {
        let mut state = state();
        assert!(matches!(next(&mut state, MemoryFinding::Pressure), Work::Wait(_)));
        assert!(matches!(next(&mut state, MemoryFinding::Scarce), Work::Wait(_)));
        assert!(matches!(next(&mut state, MemoryFinding::Available), Work::ReadLoad));
        let until = look(&mut state, true);
        assert!(matches!(next(&mut state, MemoryFinding::Available), Work::Wait(Some(at)) if at == until));
        look(&mut state, false);
        assert!(matches!(next(&mut state, MemoryFinding::Available), Work::Park { .. }));
        assert!(matches!(next(&mut state, MemoryFinding::Available), Work::Wait(_)), "one process at a time");
    }

    #[test]
    fn a_finding_that_has_expired_is_renewed() {
        let mut state = state();
        state.load = Some(Finding { is_busy: true, until: Instant::now() });
        assert!(matches!(next(&mut state, MemoryFinding::Available), Work::ReadLoad));
    }

    #[test]
    fn a_keeper_that_has_used_its_share_waits() {
        let mut state = state();
        look(&mut state, false);
        state.record_keeper_time(Duration::from_secs(1));
        assert!(matches!(next(&mut state, MemoryFinding::Available), Work::Wait(Some(_))));
        state.fill_now();
        assert!(matches!(next(&mut state, MemoryFinding::Scarce), Work::Park { .. }), "a caller waits in fill()");
    }
}
