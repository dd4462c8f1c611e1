// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard's loop: it sleeps until its owner has died, and then kills the owner's trees.

use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::descendants::Descendants;
use crate::members::Members;
use crate::table::{SLOTS, SlotState, TreeTable};
use crate::{cgroup, members, sys};

/// The interval at which the guard checks whether the table is unused. The guard exits one to two intervals after the
/// last tree.
pub const CHECK_INTERVAL_MS: u64 = 500;

/// The time after which the guard stops trying to kill trees, or to remove cgroups.
const KILL_TIMEOUT_MS: u64 = 10_000;

/// The time that a tree with a subreaper has to end before the guard goes on to the next tree.
const SHORT_KILL_TIMEOUT_MS: u64 = 50;

/// Guards the trees of a table until the table is empty, or until the owner has died and the guard has killed the
/// trees.
pub fn watch(table: &TreeTable, owner: i32) {
    let mut registrations = table.registrations();
    loop {
        if sys::wait_for_end(owner, CHECK_INTERVAL_MS) {
            return kill_trees(table);
        }
        if table.has_cgroups_to_remove() {
            remove_empty_cgroups(table);
        }
        let now = table.registrations();
        // Exit if the owner has closed the table, or if no tree was registered during this interval and none exists.
        if table.is_closed() || now == registrations && table.close() {
            return;
        }
        registrations = now;
    }
}

/// Removes the empty cgroups among those that the owner left to the guard.
fn remove_empty_cgroups(table: &TreeTable) {
    for slot in (0..SLOTS).filter(|&slot| table.state(slot) == SlotState::AwaitsRemoval) {
        if table.cgroup(slot).is_none_or(|path| cgroup::remove(&path).is_ok()) {
            table.cgroup_removed(slot);
        }
    }
}

/// Kills all trees.
fn kill_trees(table: &TreeTable) {
    let used = |state| (0..SLOTS).filter(move |&slot| table.state(slot) == state);
    let groups: Vec<CString> = used(SlotState::Used).filter_map(|slot| table.cgroup(slot)).collect();
    let open = |path: &CString| sys::open(sys::CWD, path, sys::DIRECTORY).ok();
    let dirs: Vec<sys::Fd> = groups.iter().filter_map(open).collect();
    dirs.iter().for_each(|dir| cgroup::kill(dir.number()));
    let without_cgroup = used(SlotState::Used).filter(|&slot| table.cgroup(slot).is_none());
    let mut below: Vec<Descendants> = used(SlotState::Subreaper).filter_map(|slot| table.descendants(slot)).collect();
    // A tree that cannot be killed must not delay the others.
    below.retain(|tree| !tree.kill_each(SHORT_KILL_TIMEOUT_MS));
    // A process of a tree may have killed the tree's subreaper.
    let without_subreaper = used(SlotState::Subreaper).filter_map(|slot| table.program(slot));
    let mut trees: Vec<Members> = without_cgroup.filter_map(|slot| table.tree(slot)).chain(without_subreaper).collect();
    if !trees.is_empty() {
        members::kill_trees(&mut trees, KILL_TIMEOUT_MS, |_, _| ());
    }
    let deadline = sys::now() + KILL_TIMEOUT_MS;
    for tree in &below {
        if !tree.kill_each(deadline.saturating_sub(sys::now())) {
            let _ = sys::signal(&tree.helper().1, 9);
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
    // Remove the cgroups that the owner had left to the guard. If a released process still runs in one of them, that
    // cgroup stays.
    remove_empty_cgroups(table);
}
