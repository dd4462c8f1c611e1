// SPDX-License-Identifier: MIT OR Apache-2.0
//! One program that the keeper thread keeps warm, and its parked processes.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Mode;
use super::parked::{ParkedHandle, ParkedOrigin, ParkedProcess};
use super::recipe::Recipe;
use super::usage::{Choice, Usage};
use crate::cold_reason::ColdReason;
use crate::host::descriptors::standard_streams_are_open;

/// One program for which the keeper thread parks processes.
#[derive(Debug)]
pub(super) struct WarmEntry {
    pub(super) id: u64,
    pub(super) recipe: Arc<Recipe>,
    pub(super) depth: usize,
    /// The parked processes, the oldest first.
    pub(super) parked: VecDeque<ParkedHandle>,
    /// In mode fork, the parked process that forks the others.
    pub(super) parent: Option<ParkedHandle>,
    /// The number of leased processes.
    pub(super) leased: usize,
    /// While the keeper parks a process: the start time, and the number of mount table changes at that time.
    pub(super) parking: Option<(Instant, u64)>,
    /// The reason why the keeper cannot park the program.
    pub(super) cannot: Option<ColdReason>,
    /// The resource that was missing several times in a row, and the time of the last failure. The keeper tries again
    /// at intervals.
    pub(super) missing_resource: Option<(ColdReason, Instant)>,
    /// True if the keeper has parked this version of the program before.
    pub(super) was_parked: bool,
    /// True if a file has changed, so the keeper has ended the parked processes, and has parked none since.
    pub(super) stale: bool,
    /// The number of successive attempts in which a file changed during parking, or a resource was missing.
    pub(super) failures: u32,
    /// The earliest time at which the keeper parks the next process.
    pub(super) next_attempt: Instant,
    pub(super) last_used: Instant,
    /// True if the keeper has ended the processes because no start used them for [`idle`](super::WarmOptions::idle).
    pub(super) idle: bool,
    /// True if a start added the program, not the application ([`keep`](super::WarmOptions::keep)).
    pub(super) auto_added: bool,
    /// In mode auto: how the keeper treats the program now. `None`: the mode is that of the recipe.
    pub(super) auto: Option<Auto>,
    pub(super) usage: Usage,
    /// The files of the last parked process, which [`FileWatch`](super::watch::FileWatch) has watched since then for
    /// this version. `None`: none are watched.
    pub(super) watched: Option<(u64, Arc<ParkedOrigin>)>,
    /// Counts changes. It distinguishes processes that were parked before and after a change.
    pub(super) version: u64,
}

/// The state of a program in mode auto.
#[derive(Clone, Copy, Debug)]
pub(super) struct Auto {
    /// True if the application says that the program's input is trusted, and the program is neither confined nor in a
    /// sandbox.
    pub(super) is_trusted: bool,
    /// True if the library may choose mode fork: the input is trusted, and this version of the program has not failed
    /// in mode fork.
    pub(super) may_fork: bool,
    /// Why the keeper parks no process for the program at present.
    pub(super) stays_cold: Option<ColdReason>,
}

impl WarmEntry {
    /// In mode auto, chooses how to treat the program from now on.
    pub(super) fn choose_mode(&mut self, now: Instant) {
        let Some(auto) = &mut self.auto else { return };
        let mode = match self.usage.choose(!self.auto_added, auto.may_fork, self.recipe.mode, now) {
            Choice::Cold(why) => {
                auto.stays_cold = Some(why);
                return;
            }
            Choice::Park(mode) => mode,
        };
        auto.stays_cold = None;
        if self.recipe.mode != mode {
            self.set_mode(mode);
            self.next_attempt = now;
        }
    }

    fn set_mode(&mut self, mode: Mode) {
        Arc::make_mut(&mut self.recipe).mode = mode;
        // A process that the keeper is parking has the old mode.
        self.version += 1;
    }

    /// In mode auto, returns to mode reserve, which is the first mode.
    pub(super) fn return_to_reserve(&mut self) {
        if self.auto.is_some() && self.recipe.mode == Mode::Fork {
            self.set_mode(Mode::Reserve);
        }
    }

    /// In mode auto, gives up mode fork, which this version of the program does not support. Returns `false` in other
    /// modes.
    pub(super) fn give_up_forking(&mut self) -> bool {
        let Some(auto) = self.auto.as_mut().filter(|_| self.recipe.mode == Mode::Fork) else { return false };
        auto.may_fork = false;
        (self.cannot, self.missing_resource, self.failures) = (None, None, 0);
        self.return_to_reserve();
        true
    }

    fn stays_cold(&self) -> Option<ColdReason> {
        self.auto.and_then(|auto| auto.stays_cold)
    }

    /// Records that the program starts. `found`: a process was parked for it.
    pub(super) fn record_start(&mut self, found: bool, now: Instant) {
        (self.last_used, self.idle) = (now, false);
        self.usage.record_start(found, now);
        self.choose_mode(now);
    }

    /// Leases a parked process to a start. If none is free, leases the parent, so that the start forks a child from
    /// it. `counts`: the program starts.
    pub(super) fn lease(&mut self, now: Instant, delay: Duration, counts: bool) -> Result<LeasedProcess, ColdReason> {
        if let Some(cannot) = self.cannot {
            return Err(cannot);
        }
        let parked = self.parked.pop_front();
        let is_parent = parked.is_none();
        // A start that finds a process counts once the process has become the program.
        if counts && is_parent && self.parent.is_none() {
            self.record_start(false, now);
        }
        let reason = if self.stale { ColdReason::Stale } else { self.stays_cold().unwrap_or(ColdReason::Empty) };
        let refusal = || {
            if standard_streams_are_open() {
                self.missing_resource.map_or(reason, |(what, _)| what)
            } else {
                ColdReason::ClosedStandardStream
            }
        };
        let handle = parked.or_else(|| self.parent.clone()).ok_or_else(refusal)?;
        if counts && self.parked.len() + 1 >= self.depth {
            self.next_attempt = now + delay;
        }
        self.leased += 1;
        Ok(LeasedProcess { entry: self.id, recipe: self.recipe.clone(), handle, is_parent })
    }

    /// Whether the leased process is still the parent of this entry.
    pub(super) fn has_parent(&self, leased: &LeasedProcess) -> bool {
        self.parent.as_ref().is_some_and(|parent| Arc::ptr_eq(&parent.process, &leased.handle.process))
    }

    /// Whether the entry has all its processes, or can have none.
    pub(super) fn is_complete(&self) -> bool {
        self.cannot.is_some() || !self.lacks_processes()
    }

    /// Returns the reason why the entry has too few parked processes, if the reason is known.
    pub(super) fn missing_reason(&self) -> Option<ColdReason> {
        self.cannot.or(self.missing_resource.map(|(what, _)| what))
    }

    pub(super) fn lacks_processes(&self) -> bool {
        self.stays_cold().is_none() && (self.lacks_parent() || self.parked.len() < self.depth)
    }

    pub(super) fn lacks_parent(&self) -> bool {
        self.recipe.mode == Mode::Fork && self.parent.as_ref().is_none_or(|parent| parent.outdated)
    }

    /// Removes all processes from the entry. The caller ends them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = ParkedHandle> {
        self.parked.drain(..).chain(self.parent.take())
    }

    /// Removes the first process of [`in_order_of_removal`](WarmEntry::in_order_of_removal). The caller ends it.
    pub(super) fn take_one(&mut self) -> Option<ParkedHandle> {
        self.parked.pop_back().or_else(|| self.parent.take())
    }

    /// The processes in the order in which [`take_one`](WarmEntry::take_one) removes them: a parent after its children.
    pub(super) fn in_order_of_removal(&self) -> impl Iterator<Item = &ParkedHandle> {
        self.parked.iter().rev().chain(&self.parent)
    }

    /// Whether the keeper parks nothing for this entry: it has been idle, or its program cannot be parked.
    pub(super) fn is_unserved(&self) -> bool {
        self.idle || self.cannot.is_some()
    }

    /// The parent from which the keeper forks the next process. `None`: it parks the next process by exec.
    pub(super) fn usable_parent(&self) -> Option<&ParkedHandle> {
        self.parent.as_ref().filter(|parent| !parent.outdated)
    }

    /// The private memory that the next process will have, in bytes. 0: unknown.
    pub(super) fn expected_memory(&self) -> u64 {
        self.usage.expected_memory(self.usable_parent().is_some())
    }

    /// All processes that are not leased.
    pub(super) fn unleased(&self) -> impl Iterator<Item = &ParkedHandle> + Clone {
        self.parked.iter().chain(&self.parent)
    }
}

/// A parked process that is leased to one start.
#[derive(Debug)]
pub(super) struct LeasedProcess {
    pub(super) entry: u64,
    pub(super) recipe: Arc<Recipe>,
    pub(super) handle: ParkedHandle,
    /// True if the leased process is the parent of a fork mode entry. The start forks a child from it.
    pub(super) is_parent: bool,
}

impl LeasedProcess {
    pub(super) fn lock(&self) -> MutexGuard<'_, ParkedProcess> {
        self.handle.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
