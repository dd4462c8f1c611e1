// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracks the child's descriptor table from action to action, before there is a child.
//!
//! In the kernel series, the child's table starts with the caller's descriptors that actions name. A child of the core
//! gets these descriptors by actions of its own. So the translation must know the file behind each number.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use spawnfd_sys::{abi, call};

/// The file behind a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum File {
    /// The file of this descriptor of the caller.
    Caller(i32),
    /// A file that an action has opened.
    Opened,
}

/// A descriptor of the child.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) file: File,
    /// The core's child has the descriptor at this number too. Otherwise the caller has it at this number.
    pub(super) placed: bool,
    /// Exec closes the descriptor.
    pub(super) closes_at_exec: bool,
}

/// The child's descriptor table.
#[derive(Debug)]
pub(super) struct ChildTable {
    /// The flags of the caller's descriptors that a run names.
    callers: BTreeMap<i32, u32>,
    /// The table starts with all descriptors of the caller.
    inherits: bool,
    /// The table starts with 0, 1 and 2.
    has_streams: bool,
    /// The numbers that actions have changed; `None`: closed.
    entries: BTreeMap<i32, Option<Entry>>,
    /// Ranges that an action has closed.
    closed: Vec<RangeInclusive<i32>>,
    /// Ranges in which an action has set close-on-exec.
    at_exec: Vec<RangeInclusive<i32>>,
}

impl ChildTable {
    /// Creates the table of a run that names these descriptors. The call must precede the library's own descriptors of
    /// the run, because the run may name a number at which the library then opens one.
    pub(super) fn new(inherits: bool, has_streams: bool, named: impl Iterator<Item = i32>) -> ChildTable {
        let callers = named.filter_map(|number| Some((number, call::descriptor_flags(number).ok()?))).collect();
        ChildTable { callers, inherits, has_streams, entries: BTreeMap::new(), closed: Vec::new(), at_exec: Vec::new() }
    }

    /// The descriptor at a number; `None` if it is closed.
    pub(super) fn get(&self, number: i32) -> Option<Entry> {
        if let Some(entry) = self.entries.get(&number) {
            return *entry;
        }
        let is_in = |ranges: &[RangeInclusive<i32>]| ranges.iter().any(|range| range.contains(&number));
        if is_in(&self.closed) {
            return None;
        }
        let flags = self.callers.get(&number)?;
        let placed = self.inherits || self.has_streams && number <= 2;
        let closes_at_exec = !placed || flags & abi::FD_CLOEXEC != 0 || is_in(&self.at_exec);
        Some(Entry { file: File::Caller(number), placed, closes_at_exec })
    }

    /// Puts a descriptor at a number, in place of an earlier one.
    pub(super) fn set(&mut self, number: i32, file: File, closes_at_exec: bool) {
        self.entries.insert(number, Some(Entry { file, placed: true, closes_at_exec }));
    }

    pub(super) fn close(&mut self, number: i32) {
        self.entries.insert(number, None);
    }

    pub(super) fn close_range(&mut self, range: RangeInclusive<i32>) {
        self.entries.retain(|number, _| !range.contains(number));
        self.closed.push(range);
    }

    /// Sets close-on-exec on all descriptors in a range.
    pub(super) fn close_range_at_exec(&mut self, range: RangeInclusive<i32>) {
        for (_, entry) in self.entries.range_mut(range.clone()) {
            if let Some(entry) = entry {
                entry.closes_at_exec = true;
            }
        }
        self.at_exec.push(range);
    }

    /// The ranges to close before exec, because the core knows no close-on-exec for the descriptors of a child.
    pub(super) fn closed_at_exec(&self) -> Vec<RangeInclusive<i32>> {
        let closes = |entry: &Option<Entry>| entry.is_some_and(|entry| entry.placed && entry.closes_at_exec);
        let mut closed: Vec<_> =
            self.entries.iter().filter(|(_, entry)| closes(entry)).map(|(&number, _)| number..=number).collect();
        for range in &self.at_exec {
            // A child that does not inherit has no other descriptors above 2.
            let last = if self.inherits { *range.end() } else { 2.min(*range.end()) };
            let mut first = *range.start();
            for (&number, _) in self.entries.range(first..).take_while(|(number, _)| **number <= last) {
                if first < number {
                    closed.push(first..=number - 1);
                }
                first = number.saturating_add(1);
            }
            if first <= last {
                closed.push(first..=last);
            }
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_set_after_a_range_stay_open_at_exec() {
        let mut table = ChildTable::new(true, true, [0].into_iter());
        table.set(3, File::Opened, false);
        table.set(5, File::Opened, true);
        table.close_range_at_exec(3..=9);
        table.set(7, File::Opened, false);
        assert_eq!(table.closed_at_exec(), [3..=3, 5..=5, 4..=4, 6..=6, 8..=9]);
        table.close_range(0..=i32::MAX);
        assert!(table.get(7).is_none() && table.get(0).is_none());
        table.set(0, File::Opened, false);
        assert!(table.get(0).is_some_and(|entry| entry.placed && !entry.closes_at_exec));
    }

    #[test]
    fn a_child_that_does_not_inherit_closes_only_streams_and_its_own_descriptors() {
        let mut table = ChildTable::new(false, true, [].into_iter());
        table.close_range_at_exec(1..=i32::MAX);
        table.set(4, File::Opened, true);
        assert_eq!(table.closed_at_exec(), [4..=4, 1..=2]);
    }
}
