// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard: two processes that sleep until their owner has died, and then kill the owner's trees.
//!
//! The first process is a child of the owner. The second process is a child of the first one, in a session of its own, so
//! a supervisor that kills the owner's children does not reach it. Each process continues the other one when it has been
//! stopped, and the kernel continues both when the owner, or the other process, ends. If the second process ends, the
//! first one starts another. If the first process ends, the second one guards the trees alone until another guard of the
//! table has a second process.

use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::descendants::Descendants;
use crate::members::Members;
use crate::process::{Process, Stat};
use crate::sys::{SIGCONT, SIGKILL};
use crate::table::{SLOTS, SlotState, TreeTable};
use crate::{cgroup, members, sys};

/// The interval at which the guard checks whether the table is unused. The guard exits one to two intervals after the
/// last tree.
pub const CHECK_INTERVAL_MS: u64 = 500;

/// The time after which the guard stops trying to kill trees, or to remove cgroups.
const KILL_TIMEOUT_MS: u64 = 10_000;

/// The time that a tree with a subreaper has to end before the guard goes on to the next tree.
const SHORT_KILL_TIMEOUT_MS: u64 = 50;

/// How long the first process waits for the end of the second one, after it has killed it.
const EXIT_MS: u64 = 1_000;

/// The largest number of orphans of a tree that the guard remembers.
const MAX_ORPHANS: usize = 256;

/// Guards the trees of a table until the table is empty, or until the owner has died and the guard has killed the
/// trees. `owner` is a pidfd. Calls `ready` once the guard watches the owner.
pub fn watch(table: &TreeTable, owner: i32, ready: impl FnOnce()) {
    sys::continue_at_parent_death();
    let mut guard = Guard {
        table,
        owner,
        number: table.next_guard(),
        is_second: false,
        other: None,
        requests: sys::pending_signal(sys::SIGTERM).ok(),
        orphans: Vec::new(),
    };
    if !guard.start_second() {
        ready();
    }
    guard.run();
}

/// One of the two processes.
struct Guard<'a> {
    table: &'a TreeTable,
    owner: i32,
    /// The number of this guard, counted over all guards of the table.
    number: u64,
    is_second: bool,
    /// The pidfd of the other process, while there is one.
    other: Option<sys::Fd>,
    /// The descriptor by which the owner asks for the end of a guard whose table is closed.
    requests: Option<sys::Fd>,
    orphans: Vec<Orphans>,
}

/// The last known children of a tree's subreaper. If the subreaper is killed, nothing else shows that they belong to the
/// tree.
struct Orphans {
    subreaper: u64,
    processes: Vec<Process>,
}

impl Guard<'_> {
    /// Starts the second process. Returns whether the caller is the second process.
    fn start_second(&mut self) -> bool {
        let Ok(first) = sys::pidfd_open(sys::getpid()) else { return false };
        match sys::fork() {
            Ok(0) => {
                sys::start_session();
                sys::continue_at_parent_death();
                (self.is_second, self.other) = (true, Some(first));
                // The second process of an earlier guard ends now. If it ended sooner, a supervisor that kills the
                // owner's children could leave no guard.
                self.table.guard_is_complete(self.number);
                true
            }
            Ok(pid) => {
                self.other = sys::pidfd_open(pid).ok();
                if self.other.is_none() {
                    sys::kill(pid, SIGKILL);
                    let _ = sys::wait_for_child(true);
                }
                false
            }
            // The next check tries again.
            Err(_) => false,
        }
    }

    fn run(&mut self) {
        let mut registrations = self.table.registrations();
        let mut next_check = sys::now() + CHECK_INTERVAL_MS;
        loop {
            let number = |fd: &Option<sys::Fd>| fd.as_ref().map_or(-1, sys::Fd::number);
            let watched = [self.owner, number(&self.other), number(&self.requests)];
            let left = next_check.saturating_sub(sys::now());
            let [owner_has_ended, other_has_ended, is_asked] = sys::wait_for_any(watched, Some(left));
            if owner_has_ended {
                self.continue_other();
                self.kill_trees();
                return self.await_second(KILL_TIMEOUT_MS);
            }
            if let (true, Some(requests)) = (is_asked, &self.requests) {
                let _ = sys::read(requests.number(), &mut [0; 128]);
            }
            if other_has_ended {
                self.other = None;
                while !self.is_second && matches!(sys::wait_for_child(false), Ok(Some(_))) {}
            }
            if self.table.is_closed() {
                if let (false, Some(second)) = (self.is_second, &self.other) {
                    let _ = sys::signal(second, SIGKILL);
                }
                return self.await_second(EXIT_MS);
            }
            if !self.is_second && self.other.is_none() && self.start_second() {
                continue;
            }
            // The owner has started another guard after the first process had ended, and that guard is complete.
            let is_replaced = self.is_second && self.other.is_none() && self.table.has_later_guard(self.number);
            if is_replaced {
                return;
            }
            let now = sys::now();
            if now < next_check {
                continue;
            }
            next_check = now + CHECK_INTERVAL_MS;
            self.continue_other();
            if self.is_second || self.other.is_none() {
                self.remember_orphans();
            }
            if self.is_second && self.other.is_some() {
                continue;
            }
            if self.table.has_cgroups_to_remove() {
                self.remove_empty_cgroups();
            }
            // Close the table if no tree was registered during this interval and none exists.
            let registered = self.table.registrations();
            if registered == registrations && self.table.close() {
                next_check = now;
            }
            registrations = registered;
        }
    }

    /// Continues the other process, in case it has been stopped.
    fn continue_other(&self) {
        if let Some(other) = &self.other {
            let _ = sys::signal(other, SIGCONT);
        }
    }

    /// Waits until the second process has ended, and reaps it. Otherwise it could stay a zombie, because the first
    /// process of a container may reap no process.
    fn await_second(&self, milliseconds: u64) {
        if let (false, Some(second)) = (self.is_second, &self.other)
            && sys::wait_for_end(second.number(), milliseconds)
        {
            let _ = sys::wait_for_child(false);
        }
    }

    /// Remembers the children of each tree's subreaper.
    fn remember_orphans(&mut self) {
        let mut trees = self.table.count();
        let mut before = core::mem::take(&mut self.orphans);
        for slot in 0..SLOTS {
            if trees == 0 {
                break;
            }
            let state = self.table.state(slot);
            trees -= u64::from(state != SlotState::Free);
            let subreaper = self.table.subreaper(slot);
            if subreaper == 0 || !matches!(state, SlotState::Subreaper | SlotState::Used) {
                continue;
            }
            let helper = self.table.descendants(slot, 0).filter(|_| state == SlotState::Subreaper);
            let processes = match helper.filter(|helper| !helper.has_ended()) {
                Some(helper) => helper.children(MAX_ORPHANS),
                // The tree has lost its subreaper.
                None => match before.iter().position(|orphans| orphans.subreaper == subreaper) {
                    Some(index) => before.swap_remove(index).processes,
                    None => continue,
                },
            };
            self.orphans.push(Orphans { subreaper, processes });
        }
    }

    /// Adds the remembered orphans of a slot's tree to the tree.
    fn with_orphans(&self, slot: usize, mut tree: Members) -> Members {
        let subreaper = self.table.subreaper(slot);
        let orphans = self.orphans.iter().filter(|orphans| subreaper != 0 && orphans.subreaper == subreaper);
        orphans.flat_map(|orphans| &orphans.processes).for_each(|process| tree.add(*process));
        tree
    }

    /// Removes the empty cgroups among those that the owner left to the guard.
    fn remove_empty_cgroups(&self) {
        let table = self.table;
        for slot in (0..SLOTS).filter(|&slot| table.state(slot) == SlotState::AwaitsRemoval) {
            if table.cgroup(slot).is_none_or(|path| cgroup::remove(&path).is_ok()) {
                table.cgroup_removed(slot);
            }
        }
    }

    /// The parent that the kernel has given to the owner's children.
    fn parent_of_orphans(&self) -> i32 {
        // Read before the check: if the first process has not ended by then, this is its parent.
        let parent_of_parent = Stat::read(sys::getppid()).map_or(0, |parent| parent.parent);
        match &self.other {
            Some(first) if self.is_second && !sys::wait_for_end(first.number(), 0) => parent_of_parent,
            _ => sys::getppid(),
        }
    }

    /// Kills all trees. Both processes do so, because a process of a tree may stop or kill one of them meanwhile.
    fn kill_trees(&self) {
        let (table, parent) = (self.table, self.parent_of_orphans());
        let used = |state| (0..SLOTS).filter(move |&slot| table.state(slot) == state);
        let groups: Vec<CString> = used(SlotState::Used).filter_map(|slot| table.cgroup(slot)).collect();
        let open = |path: &CString| sys::open(sys::CWD, path, sys::DIRECTORY).ok();
        let dirs: Vec<sys::Fd> = groups.iter().filter_map(open).collect();
        dirs.iter().for_each(|dir| cgroup::kill(dir.number()));
        let without_cgroup = used(SlotState::Used).filter(|&slot| table.cgroup(slot).is_none());
        let mut below: Vec<Descendants> =
            used(SlotState::Subreaper).filter_map(|slot| table.descendants(slot, parent)).collect();
        // A tree that cannot be killed must not delay the others.
        below.retain(|tree| !tree.kill_each(SHORT_KILL_TIMEOUT_MS));
        // A process of a tree, or a supervisor of the owner, may have killed the tree's subreaper.
        let without_subreaper =
            used(SlotState::Subreaper).filter_map(|slot| Some(self.with_orphans(slot, table.program(slot)?)));
        let mut trees: Vec<Members> = without_cgroup
            .filter_map(|slot| Some(self.with_orphans(slot, table.tree(slot, parent)?)))
            .chain(without_subreaper)
            .collect();
        if !trees.is_empty() {
            members::kill_trees(&mut trees, KILL_TIMEOUT_MS, |_, _| ());
        }
        let deadline = sys::now() + KILL_TIMEOUT_MS;
        for tree in &below {
            if !tree.kill_each(deadline.saturating_sub(sys::now())) {
                let _ = sys::signal(&tree.helper().1, SIGKILL);
            }
        }
        for dir in &dirs {
            cgroup::kill_until_empty(dir.number(), KILL_TIMEOUT_MS);
        }
        let mut remaining = groups;
        let deadline = sys::now() + KILL_TIMEOUT_MS;
        loop {
            remaining.retain(|path| cgroup::remove(path).is_err());
            if remaining.is_empty() || sys::now() >= deadline {
                break;
            }
            sys::sleep(2);
        }
        // Remove the cgroups that the owner had left to the guard. If a released process still runs in one of them,
        // that cgroup stays.
        if !self.is_second || self.other.is_none() {
            self.remove_empty_cgroups();
        }
    }
}
