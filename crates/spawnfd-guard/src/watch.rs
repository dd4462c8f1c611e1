// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the guard does: it sleeps until its owner has died, and then ends the owner's trees.

use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::members::Members;
use crate::table::{SLOTS, State, Table};
use crate::{cgroup, members, sys};

/// How often the guard looks whether it is still wanted. It stays at least so long, and less than twice so long, after the last tree.
pub const IDLE_MS: u64 = 500;

/// How long the guard tries to end what does not end.
const PATIENCE_MS: u64 = 10_000;

/// Guards the trees of a table until there are none, or the process behind `owner` has died and they have been ended.
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
        // The owner may have closed it.
        if table.is_closed() || now == uses && table.close() {
            return;
        }
        uses = now;
    }
}

/// Removes the cgroups left to the guard that have become empty.
fn clean(table: &Table) {
    for slot in (0..SLOTS).filter(|&slot| table.state(slot) == State::Cleaning) {
        if table.cgroup(slot).is_none_or(|path| cgroup::remove(&path).is_ok()) {
            table.cleaned(slot);
        }
    }
}

/// Ends all trees.
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
    // Somebody who was let go of may be in these; then they stay.
    clean(table);
}
