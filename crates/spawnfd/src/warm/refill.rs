// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the keeper parks more processes: it asks the state for work, and reports the outcome.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Mode;
use super::entry::{Entry, Waiting};
use super::fork::ForkedChildren;
use super::leased::LeasedProcess;
use super::making::For;
use super::parked::{Origin, Parked};
use super::recipe::{Recipe, can_park};
use super::start::NotParked;
use super::state::WarmState;
use super::wire::Page;
use crate::child::interned;
use crate::host::numbers::{Known, standard_is_open};
use crate::template::Template;

/// The pause of the keeper while the host has a standard stream closed.
const LATER: Duration = Duration::from_millis(50);
/// How many times in a row the keeper parks a program again at once because one of its files has changed meanwhile.
const PATIENCE: u32 = 50;

/// The time after which a process that is still being parked no longer delays others.
const SLOW: Duration = Duration::from_millis(200);

/// The most children to fork in one request.
const AT_ONCE: usize = 16;

/// The pause before another attempt after a resource was missing, and the number of attempts before the pause grows.
const AGAIN: Duration = Duration::from_millis(200);
const ATTEMPTS: u32 = 5;

/// The keeper's next work.
pub(super) enum Work {
    /// Park a process for this entry.
    Park { whose: For, recipe: Arc<Recipe>, object: Arc<Known> },
    /// Fork this many children from this parent.
    Fork(LeasedProcess, usize),
    /// Wait until that time, or until a wake-up.
    Wait(Option<Instant>),
}

pub(super) type Waste = (Vec<Waiting>, Vec<Arc<Page>>);

impl Entry {
    /// Records that a resource was missing to park the program.
    pub(super) fn lacked(&mut self, what: &str) {
        let now = Instant::now();
        self.disturbed += 1;
        self.due = now + AGAIN * (1 << self.disturbed.saturating_sub(ATTEMPTS).min(8));
        self.lacks = (self.disturbed >= ATTEMPTS).then(|| (interned(what), now));
    }

    /// Records that a file has changed before a process was parked.
    fn changed_again(&mut self) {
        self.disturbed += 1;
        if self.disturbed >= PATIENCE {
            self.lacked("changing files");
        }
    }
}

impl WarmState {
    /// Takes in the outcome of the keeper's request for `count` children.
    pub(super) fn forked(&mut self, parent: LeasedProcess, count: usize, forked: Result<ForkedChildren, &'static str>) {
        let version = parent.shared.version;
        let forks = if parent.recipe.grows_old() { self.options.forks } else { u64::MAX };
        let none_asked = forked.is_err();
        let ForkedChildren { all, fewer } = forked.unwrap_or(ForkedChildren { all: Vec::new(), fewer: None });
        let forked = all.into_iter().map(|parked| Waiting::new(version, parked));
        match self.entries.iter_mut().find(|entry| entry.id == parent.entry && entry.version == version) {
            Some(entry) => {
                entry.parked.extend(forked);
                // A limit below the depth would replace the parent each time its children are forked, without end.
                let forks = forks.max(entry.depth as u64 + 1);
                if let Some(parent) = &mut entry.parent {
                    parent.old |= parent.process.try_lock().is_ok_and(|parent| parent.forked >= forks);
                }
            }
            None => self.gone.extend(forked),
        }
        if let Some(entry) = self.entry(parent.entry) {
            entry.taken -= count;
            match fewer {
                None if none_asked => entry.due = Instant::now() + AGAIN,
                None => entry.disturbed = 0,
                // Several threads can have requested children of this parent; only the first failure counts.
                Some(why) if entry.has_parent(&parent) => {
                    entry.lacked(why);
                    entry.parent = None;
                }
                Some(_) => {}
            }
            if fewer.is_some() {
                self.gone.push(parent.shared);
            }
        }
    }

    /// Ends the processes that were parked before a file of theirs changed.
    pub(super) fn retire(&mut self, changed: &HashSet<u64>) {
        for entry in self.entries.iter_mut().filter(|entry| changed.contains(&entry.id)) {
            entry.version += 1;
            entry.proven = false;
            entry.cannot = None;
            entry.stale = true;
            let count = self.gone.len();
            self.gone.extend(entry.drain());
            if self.gone.len() == count {
                entry.changed_again();
            }
        }
    }

    /// Takes the processes and pages that are no longer needed. The caller drops them without the lock.
    fn waste(&mut self) -> Waste {
        let spent = self.spent.extract_if(.., |page| Arc::strong_count(page) == 1).collect();
        (std::mem::take(&mut self.gone), spent)
    }

    /// Returns the work that is due. Ends the processes of idle programs, and marks parents that are too old.
    pub(super) fn next_work(&mut self) -> (Work, Waste) {
        if self.switch(self.off) {
            return (Work::Wait(None), self.waste());
        }
        let Some(common) = &mut self.shared else { return (Work::Wait(None), self.waste()) };
        common.watch.mounts.look_from_here();
        let changed = common.watch.changed().unwrap_or_default();
        let (object, remounts) = (common.object.clone(), common.watch.mounts.changes);
        self.retire(&changed);
        let (mut gone, spent) = self.waste();
        let now = Instant::now();
        let (parked, memory) = self.usage();
        let making = self.entries.iter().filter_map(|entry| entry.making);
        let parked = parked + making.clone().count();
        let room = parked < self.options.processes && memory < self.options.memory;
        // Park one process at a time. A slow one does not delay the others.
        let turn = making.map(|(begun, _)| begun + SLOW).max().unwrap_or(now);
        let mut next: Option<Instant> = None;
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        let mut work = None;
        for entry in &mut self.entries {
            if !entry.asleep && now >= entry.used + self.options.idle {
                entry.asleep = true;
                gone.extend(entry.drain());
            }
            if entry.asleep || entry.cannot.is_some() {
                continue;
            }
            sooner(entry.used + self.options.idle);
            if let Some(parent) = entry.parent.as_mut().filter(|_| entry.recipe.grows_old()) {
                let end = parent.since + self.options.age;
                parent.old |= now >= end;
                if !parent.old {
                    sooner(end);
                }
            }
            let missing = entry.is_missing() && entry.making.is_none() && room;
            if missing && !standard_is_open() {
                sooner(now + LATER);
            } else if missing
                && now >= entry.due
                && work.is_none()
                && let Some(parent) = entry.parent.as_ref().filter(|parent| !parent.old)
            {
                let count = (entry.depth - entry.parked.len()).min(AT_ONCE).min(self.options.processes - parked);
                let shared = parent.clone();
                entry.taken += count;
                let recipe = entry.recipe.clone();
                work = Some(Work::Fork(LeasedProcess { entry: entry.id, recipe, shared, is_parent: true }, count));
            } else if missing && now >= entry.due.max(turn) && work.is_none() {
                entry.making = Some((now, remounts));
                let whose = For { entry: entry.id, version: entry.version };
                work = Some(Work::Park { whose, recipe: entry.recipe.clone(), object: object.clone() });
            } else if missing {
                sooner(entry.due.max(turn));
            }
        }
        (work.unwrap_or(Work::Wait(next)), (gone, spent))
    }

    /// Takes in the process that the keeper has parked, or the reason why it could not. Returns a process that is not
    /// needed.
    pub(super) fn parked(&mut self, whose: For, outcome: Result<Parked, NotParked>) -> Option<Parked> {
        let For { entry: id, version } = whose;
        let Some(common) = &mut self.shared else { return outcome.ok() };
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return outcome.ok() };
        let since = entry.making.take();
        match outcome {
            Ok(parked) if entry.version == version => {
                let sandboxed = entry.recipe.prefix.is_some();
                let Origin { files, begun, .. } = &*parked.origin;
                // A process that executes other programs has no files to watch.
                let changed = match entry.recipe.executes {
                    true => Ok(false),
                    false => common.watch.add(id, files, sandboxed, *begun),
                };
                let Ok(changed) = changed else {
                    entry.lacked("inotify");
                    return Some(parked);
                };
                // After a change of the mount table, the same paths may refer to other files.
                let remounted =
                    !entry.recipe.executes && since.is_none_or(|(_, since)| since != common.watch.mounts.changes);
                if remounted || changed {
                    entry.due = Instant::now() + self.options.delay.max(Duration::from_millis(20));
                    entry.changed_again();
                    return Some(parked);
                }
                (entry.proven, entry.lacks, entry.stale) = (true, None, false);
                self.stats.made += 1;
                let waiting = Waiting::new(version, parked);
                match entry.recipe.mode {
                    Mode::Reserve => {
                        entry.disturbed = 0;
                        entry.parked.push_back(waiting);
                    }
                    // Children of the old parent share its memory layout, so they end with it. Whether the new parent
                    // can fork shows later.
                    Mode::Fork => {
                        self.gone.extend(entry.drain());
                        entry.parent = Some(waiting);
                    }
                }
                None
            }
            Ok(parked) => Some(parked),
            // The failure belongs to an older version, which a start has retired meanwhile.
            Err(_) if entry.version != version => None,
            Err(why) => {
                // Record a file again if it was replaced. Otherwise the result stands until something changes.
                if entry.recipe.template.revalidate().is_err() {
                    let path = entry.recipe.template.path().map(std::path::Path::to_owned);
                    match path.map(Template::open) {
                        Some(Ok(template)) => {
                            Arc::make_mut(&mut entry.recipe).template = template;
                            entry.cannot = can_park(&entry.recipe).err();
                        }
                        // Until a start finds the program again.
                        _ => entry.cannot = Some("not found"),
                    }
                    return None;
                }
                match why {
                    // After a change, the program may have read a half-written file. Try again, as for a program that
                    // was parked before.
                    NotParked::Ever(why) if !entry.proven && !entry.stale && entry.disturbed == 0 => {
                        entry.cannot = Some(interned(&why));
                    }
                    NotParked::Now(why) | NotParked::Ever(why) => entry.lacked(&why),
                }
                None
            }
        }
    }

    /// The number of processes, and their memory.
    pub(super) fn usage(&self) -> (usize, u64) {
        let all = self.entries.iter().flat_map(Entry::waiting);
        let taken: usize = self.entries.iter().map(|entry| entry.taken).sum();
        (all.clone().count() + taken, all.map(|shared| shared.memory).sum())
    }

    /// Whether every program that can be parked has its full number of processes.
    pub(super) fn is_full(&self) -> bool {
        let (parked, memory) = self.usage();
        let room = parked < self.options.processes && memory < self.options.memory;
        !room || self.entries.iter().all(Entry::is_done)
    }

    /// Whether no progress is possible now: the state does not allow it, or each missing program has failed again
    /// since `since`.
    pub(super) fn is_held_up(&self, since: Instant) -> bool {
        let held_up = |entry: &Entry| entry.is_done() || entry.lacks.is_some_and(|(_, last)| last >= since);
        self.shared.is_none() || !standard_is_open() || self.entries.iter().all(held_up)
    }

    /// Makes all programs due: those without failures at once, the others after a short pause.
    pub(super) fn hurry(&mut self) {
        let now = Instant::now();
        for entry in &mut self.entries {
            entry.due = entry.due.min(if entry.disturbed == 0 { now } else { now + AGAIN });
            if entry.asleep {
                (entry.asleep, entry.used) = (false, now);
            }
        }
    }
}
