// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last version of each builder's record, in the memory of the process that opened the builders.
//!
//! The library does not learn when a builder is closed. So from time to time it forgets the versions of builders that
//! the process does not have open.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use crate::record::Version;

/// The number of versions up to which the library does not look for closed builders.
const FEW: usize = 1024;

/// The last version of each builder.
#[derive(Default)]
pub(super) struct Versions {
    last: BTreeMap<(u64, u64), Last>,
    /// The number of versions after the last search for closed builders.
    remaining: usize,
}

struct Last {
    version: Version,
    /// The last search has not found the builder.
    is_missing: bool,
}

impl Versions {
    pub(super) const fn new() -> Versions {
        Versions { last: BTreeMap::new(), remaining: 0 }
    }

    /// Keeps the version of a write. The write has replaced the earlier version of this builder.
    pub(super) fn keep(&mut self, version: Version) {
        // The growth by a factor bounds the memory and the mean cost of an open.
        if self.last.len() >= FEW.max(2 * self.remaining) {
            self.forget_closed();
        }
        self.last.insert(version.file, Last { version, is_missing: false });
    }

    /// Whether this version is the last one of its builder.
    pub(super) fn is_last(&self, version: Version) -> bool {
        self.last.get(&version.file).is_some_and(|last| last.version == version)
    }

    /// Forgets each builder that two searches in a row have not found. One search can miss a builder that another
    /// thread moves to a lower number during the search.
    fn forget_closed(&mut self) {
        // Without /proc, the versions stay.
        if let Ok(open) = open_files() {
            self.last.retain(|file, last| {
                let was_missing = std::mem::replace(&mut last.is_missing, !open.contains(file));
                !(was_missing && last.is_missing)
            });
        }
        self.remaining = self.last.len();
    }
}

/// The device and the inode of each file that the process has open.
fn open_files() -> std::io::Result<BTreeSet<(u64, u64)>> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir("/proc/thread-self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|number| *number >= 0) else { continue };
        // SAFETY: the number is not -1. If another thread has closed it, the call fails.
        if let Ok(stat) = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) }) {
            files.insert((stat.st_dev, stat.st_ino));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use crate::record::{self, Kind};

    fn written(versions: &mut Versions, body: &[u8]) -> (OwnedFd, Version) {
        let file = record::create(Kind::Builder).unwrap();
        let version = record::write(file.as_fd(), Kind::Builder, body).unwrap();
        versions.keep(version);
        (file, version)
    }

    #[test]
    fn only_the_version_of_the_last_write_is_the_last() {
        let mut versions = Versions::new();
        let (file, first) = written(&mut versions, b"first");
        let (_other, other) = written(&mut versions, b"first");
        assert!(versions.is_last(first) && versions.is_last(other));
        let second = record::write(file.as_fd(), Kind::Builder, b"second").unwrap();
        assert!(versions.is_last(first) && !versions.is_last(second), "the write is not kept yet");
        versions.keep(second);
        assert!(!versions.is_last(first) && versions.is_last(second) && versions.is_last(other));
        assert!(!Versions::new().is_last(second));
    }

    #[test]
    fn closed_builders_are_forgotten_and_open_ones_are_not() {
        let mut versions = Versions::new();
        let (_file, open) = written(&mut versions, b"open");
        let (_, closed) = written(&mut versions, b"closed");
        for _ in 0..10 * FEW {
            drop(written(&mut versions, b""));
            assert!(versions.last.len() <= 3 * FEW, "{} versions", versions.last.len());
        }
        assert!(versions.is_last(open) && !versions.is_last(closed));
    }
}
