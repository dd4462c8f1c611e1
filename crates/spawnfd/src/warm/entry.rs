// SPDX-License-Identifier: MIT OR Apache-2.0
//! One program that is kept warm, and its processes that wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Mode;
use super::leased::LeasedProcess;
use super::parked::Parked;
use super::recipe::Recipe;
use crate::host::numbers::standard_is_open;

/// One program.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) recipe: Arc<Recipe>,
    pub(super) depth: usize,
    /// Those that wait, the oldest first.
    pub(super) parked: VecDeque<Waiting>,
    /// Mode fork: the process they are forked from.
    pub(super) parent: Option<Waiting>,
    /// How many a start has for itself.
    pub(super) taken: usize,
    /// One is being parked: since when, and how often the mount table had changed by then.
    pub(super) making: Option<(Instant, u64)>,
    /// Why it cannot be parked.
    pub(super) cannot: Option<&'static str>,
    /// What it lacks to be parked, as it has several times in a row, the last time then: it is tried again now and then.
    pub(super) lacks: Option<(&'static str, Instant)>,
    /// It has been parked before, as it is.
    pub(super) proven: bool,
    /// What was parked has been put away because something changed, and nothing is parked since.
    pub(super) stale: bool,
    /// How often in a row something has changed while it was being parked, or was missing.
    pub(super) disturbed: u32,
    /// Not before then.
    pub(super) due: Instant,
    pub(super) used: Instant,
    pub(super) asleep: bool,
    /// Not added, but started.
    pub(super) kept: bool,
    /// Tells what was parked before a change from what is parked now.
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

    /// Whether what others are forked from is still this.
    pub(super) fn has_parent(&self, leased: &LeasedProcess) -> bool {
        self.parent.as_ref().is_some_and(|parent| Arc::ptr_eq(&parent.process, &leased.shared.process))
    }

    /// Whether all wait that can.
    pub(super) fn is_done(&self) -> bool {
        self.cannot.is_some() || !self.is_missing()
    }

    /// Why none waits that should, as far as it is known.
    pub(super) fn why_not(&self) -> Option<&'static str> {
        self.cannot.or(self.lacks.map(|(what, _)| what))
    }

    pub(super) fn is_missing(&self) -> bool {
        self.lacks_parent() || self.parked.len() < self.depth
    }

    fn lacks_parent(&self) -> bool {
        self.recipe.mode == Mode::Fork && self.parent.as_ref().is_none_or(|parent| parent.old)
    }

    /// All its processes, to be ended.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> {
        self.parked.drain(..).chain(self.parent.take())
    }

    /// All its processes that no start has for itself.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiting> + Clone {
        self.parked.iter().chain(&self.parent)
    }
}

/// A parked process. From a parent several threads may want something.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) version: u64,
    /// When it had parked, however long that took.
    pub(super) since: Instant,
    /// To be replaced, and used until it is.
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
