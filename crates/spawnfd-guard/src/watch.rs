// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard's loop: it sleeps until its owner has died, and then kills the owner's trees.

use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::members::Members;
use crate::table::{SLOTS, State, Table};
use crate::{cgroup, members, sys};

/// The interval at which the guard checks for unused tables. It exits one to two intervals after the last tree.
pub const IDLE_MS: u64 = 500;

/// How long the guard tries to kill trees and remove cgroups.
const PATIENCE_MS: u64 = 10_000;

/// Guards the trees of a table until the table is empty, or until the owner has died and the guard has killed the
/// trees.
pub fn watch(table: &Table, owner: i32) {
    let mut uses = table.uses();
    loop {
        if sys::wait_for_end(owner, IDLE_MS) {
            return end(table);
        }
        if table.has_cleaning() {
            clean(table);
        }
        let now = table.uses();
        // The owner may have closed the table.
        if table.is_closed() || now == uses && table.close() {
            return;
        }
        uses = now;
    }
}

/// Removes those cgroups that the owner left to the guard and that have become empty.
fn clean(table: &Table) {
    for slot in (0..SLOTS).filter(|&slot| table.state(slot) == State::Cleaning) {
        if table.cgroup(slot).is_none_or(|path| cgroup::remove(&path).is_ok()) {
            table.cleaned(slot);
        }
    }
}

/// Kills all trees.
fn end(table: &Table) {
    let used = |state| (0..SLOTS).filter(move |&slot| table.state(slot) == state);
    let groups: Vec<CString> = used(State::Used).filter_map(|slot| table.cgroup(slot)).collect();
    let dirs: Vec<sys::Fd> = groups.iter().filter_map(|path| sys::open(sys::CWD, path, sys::DIRECTORY).ok()).collect();
    dirs.iter().for_each(|dir| cgroup::kill(dir.number()));
    let without = used(State::Used).filter(|&slot| table.cgroup(slot).is_none());
    let mut trees: Vec<Members> = without.filter_map(|slot| table.tree(slot)).collect();
    if !trees.is_empty() {
        members::end(&mut trees, PATIENCE_MS);
    }
    for dir in &dirs {
        cgroup::end(dir.number(), PATIENCE_MS);
    }
    let mut left = groups;
    let deadline = sys::now() + PATIENCE_MS;
    loop {
        left.retain(|path| cgroup::remove(path).is_err());
        if left.is_empty() || sys::now() >= deadline {
            break;
        }
        sys::sleep(2);
    }
    // A released process may still run in one of these groups; then the group stays.
    clean(table);
}
