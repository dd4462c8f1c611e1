// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the keeper asks of the state, and tells it.

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

/// How long the keeper waits where the host has a standard stream closed.
const LATER: Duration = Duration::from_millis(50);
/// How often a program is parked anew because a file of its has changed meanwhile.
const PATIENCE: u32 = 50;

/// After how long what is being parked does not keep others from it any more.
const SLOW: Duration = Duration::from_millis(200);

/// How many children are forked at once.
const AT_ONCE: usize = 16;

/// When to try again what failed for want of something, and how often.
const AGAIN: Duration = Duration::from_millis(200);
const ATTEMPTS: u32 = 5;

/// What the keeper is to do next.
pub(super) enum Work {
    /// Park one for this entry.
    Park { whose: For, recipe: Arc<Recipe>, object: Arc<Known> },
    /// Fork so many more.
    Fork(LeasedProcess, usize),
    /// Nothing before then.
    Wait(Option<Instant>),
}

pub(super) type Waste = (Vec<Waiting>, Vec<Arc<Page>>);

impl Entry {
    /// It could not be parked for want of something.
    pub(super) fn lacked(&mut self, what: &str) {
        let now = Instant::now();
        self.disturbed += 1;
        self.due = now + AGAIN * (1 << self.disturbed.saturating_sub(ATTEMPTS).min(8));
        self.lacks = (self.disturbed >= ATTEMPTS).then(|| (interned(what), now));
    }

    /// A file has changed before a process of it was ready.
    fn changed_again(&mut self) {
        self.disturbed += 1;
        if self.disturbed >= PATIENCE {
            self.lacked("changing files");
        }
    }
}

impl WarmState {
    /// What has come of the keeper's wish for so many.
    pub(super) fn forked(&mut self, parent: LeasedProcess, count: usize, forked: Result<ForkedChildren, &'static str>) {
        let version = parent.shared.version;
        let forks = if parent.recipe.grows_old() { self.options.forks } else { u64::MAX };
        let none_asked = forked.is_err();
        let ForkedChildren { all, fewer } = forked.unwrap_or(ForkedChildren { all: Vec::new(), fewer: None });
        let forked = all.into_iter().map(|parked| Waiting::new(version, parked));
        match self.entries.iter_mut().find(|entry| entry.id == parent.entry && entry.version == version) {
            Some(entry) => {
                entry.parked.extend(forked);
                // Replaced for those who wait, it would be for ever.
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
                // Once for all who had wished for some.
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

    /// Ends what was parked before something changed.
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

    /// What is of no use any more, to be dropped without the lock: processes, and pages.
    fn waste(&mut self) -> Waste {
        let spent = self.spent.extract_if(.., |page| Arc::strong_count(page) == 1).collect();
        (std::mem::take(&mut self.gone), spent)
    }

    /// What is due; ends what is idle or too old.
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
        // One at a time, but what is slow keeps no others waiting.
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

    /// What the keeper has parked, or why it could not.
    pub(super) fn parked(&mut self, whose: For, outcome: Result<Parked, NotParked>) -> Option<Parked> {
        let For { entry: id, version } = whose;
        let Some(common) = &mut self.shared else { return outcome.ok() };
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return outcome.ok() };
        let since = entry.making.take();
        match outcome {
            Ok(parked) if entry.version == version => {
                let sandboxed = entry.recipe.prefix.is_some();
                let Origin { files, begun, .. } = &*parked.origin;
                // A process that executes other programs has nothing to watch.
                let changed = match entry.recipe.executes {
                    true => Ok(false),
                    false => common.watch.add(id, files, sandboxed, *begun),
                };
                let Ok(changed) = changed else {
                    entry.lacked("inotify");
                    return Some(parked);
                };
                // It may have found what another mount hides, or shows, by now.
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
                    // What the old one has left shares its layout. Whether it is of use will show.
                    Mode::Fork => {
                        self.gone.extend(entry.drain());
                        entry.parent = Some(waiting);
                    }
                }
                None
            }
            Ok(parked) => Some(parked),
            // It was another version's, which a start has put away meanwhile.
            Err(_) if entry.version != version => None,
            Err(why) => {
                // A file that was replaced is recorded anew; all else stays as it is until something changes.
                if entry.recipe.template.revalidate().is_err() {
                    let path = entry.recipe.template.path().map(std::path::Path::to_owned);
                    match path.map(Template::open) {
                        Some(Ok(template)) => {
                            Arc::make_mut(&mut entry.recipe).template = template;
                            entry.cannot = can_park(&entry.recipe).err();
                        }
                        // Until a start finds it again.
                        _ => entry.cannot = Some("not found"),
                    }
                    return None;
                }
                match why {
                    // After a change the program may have met a file that was half written. It is tried again, as what has been parked before.
                    NotParked::Ever(why) if !entry.proven && !entry.stale && entry.disturbed == 0 => {
                        entry.cannot = Some(interned(&why));
                    }
                    NotParked::Now(why) | NotParked::Ever(why) => entry.lacked(&why),
                }
                None
            }
        }
    }

    /// How many processes there are, and their memory.
    pub(super) fn usage(&self) -> (usize, u64) {
        let all = self.entries.iter().flat_map(Entry::waiting);
        let taken: usize = self.entries.iter().map(|entry| entry.taken).sum();
        (all.clone().count() + taken, all.map(|shared| shared.memory).sum())
    }

    /// Whether all that can be parked is.
    pub(super) fn is_full(&self) -> bool {
        let (parked, memory) = self.usage();
        let room = parked < self.options.processes && memory < self.options.memory;
        !room || self.entries.iter().all(Entry::is_done)
    }

    /// Whether nothing is parked for the time being: that is so by itself, or has shown again since then.
    pub(super) fn is_held_up(&self, since: Instant) -> bool {
        let held_up = |entry: &Entry| entry.is_done() || entry.lacks.is_some_and(|(_, last)| last >= since);
        self.shared.is_none() || !standard_is_open() || self.entries.iter().all(held_up)
    }

    /// Nobody is to wait for what could be parked now, nor long for what could not.
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
