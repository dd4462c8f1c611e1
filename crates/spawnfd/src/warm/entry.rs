// SPDX-License-Identifier: MIT OR Apache-2.0
//! One program that is kept warm, and its parked processes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Mode;
use super::leased::LeasedProcess;
use super::parked::Parked;
use super::recipe::Recipe;
use crate::host::numbers::standard_is_open;

/// One program to keep warm.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) recipe: Arc<Recipe>,
    pub(super) depth: usize,
    /// The parked processes, the oldest first.
    pub(super) parked: VecDeque<Waiting>,
    /// Mode fork: the parent that the others are forked from.
    pub(super) parent: Option<Waiting>,
    /// The number of leased processes.
    pub(super) taken: usize,
    /// Set while the keeper parks a process: the start time, and the number of mount table changes at that time.
    pub(super) making: Option<(Instant, u64)>,
    /// The reason why the program cannot be parked.
    pub(super) cannot: Option<&'static str>,
    /// The resource that was missing several times in a row, and the time of the last failure. The keeper tries again
    /// at intervals.
    pub(super) lacks: Option<(&'static str, Instant)>,
    /// The keeper has parked this version of the program before.
    pub(super) proven: bool,
    /// The parked processes were retired because something changed, and none has been parked since.
    pub(super) stale: bool,
    /// How many times in a row a file changed during parking, or a resource was missing.
    pub(super) disturbed: u32,
    /// The earliest time of the next parking.
    pub(super) due: Instant,
    pub(super) used: Instant,
    pub(super) asleep: bool,
    /// Kept since its first start, without having been added.
    pub(super) kept: bool,
    /// Counts changes. It distinguishes processes that were parked before and after a change.
    pub(super) version: u64,
}

impl Entry {
    /// Leases a parked process to a start; or the parent, so that the start forks a child from it.
    pub(super) fn take(&mut self, now: Instant, delay: Duration) -> Result<LeasedProcess, &'static str> {
        (self.used, self.asleep) = (now, false);
        if let Some(cannot) = self.cannot {
            return Err(cannot);
        }
        let waiting = self.parked.pop_front();
        let is_parent = waiting.is_none();
        let none = if self.stale { "stale" } else { "empty" };
        let empty =
            || if standard_is_open() { self.lacks.map_or(none, |(what, _)| what) } else { "closed standard stream" };
        let shared = waiting.or_else(|| self.parent.clone()).ok_or_else(empty)?;
        if self.parked.len() + 1 >= self.depth {
            self.due = now + delay;
        }
        self.taken += 1;
        Ok(LeasedProcess { entry: self.id, recipe: self.recipe.clone(), shared, is_parent })
    }

    /// Whether the leased process is still the parent of this entry.
    pub(super) fn has_parent(&self, leased: &LeasedProcess) -> bool {
        self.parent.as_ref().is_some_and(|parent| Arc::ptr_eq(&parent.process, &leased.shared.process))
    }

    /// Whether the entry has all its processes, or cannot have any.
    pub(super) fn is_done(&self) -> bool {
        self.cannot.is_some() || !self.is_missing()
    }

    /// The known reason why parked processes are missing.
    pub(super) fn why_not(&self) -> Option<&'static str> {
        self.cannot.or(self.lacks.map(|(what, _)| what))
    }

    pub(super) fn is_missing(&self) -> bool {
        self.lacks_parent() || self.parked.len() < self.depth
    }

    fn lacks_parent(&self) -> bool {
        self.recipe.mode == Mode::Fork && self.parent.as_ref().is_none_or(|parent| parent.old)
    }

    /// Takes all processes, to be ended.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> {
        self.parked.drain(..).chain(self.parent.take())
    }

    /// All processes that are not leased.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiting> + Clone {
        self.parked.iter().chain(&self.parent)
    }
}

/// A parked process. Several threads may use a parent at once.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) version: u64,
    /// The time at which the process was parked.
    pub(super) since: Instant,
    /// The process is to be replaced, and is used until then.
    pub(super) old: bool,
    pub(super) memory: u64,
    pub(super) process: Arc<Mutex<Parked>>,
}

impl Waiting {
    pub(super) fn new(version: u64, parked: Parked) -> Waiting {
        let (since, memory) = (Instant::now(), parked.private);
        Waiting { version, since, old: false, memory, process: Arc::new(Mutex::new(parked)) }
    }
}
