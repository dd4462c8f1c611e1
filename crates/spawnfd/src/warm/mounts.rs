// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that paths lead to. They are compared again after a mount or unmount, which inotify does not report.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::host::inherited::Place;
use crate::host::numbers::Known;
use crate::host::own_proc;

/// The paths of all entries, and the mount table in which they are looked up.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    table: Option<Table>,
    /// The number of changes that poll(2) has reported. `compared`: the number at the last comparison of the paths.
    pub(super) changes: u64,
    compared: u64,
    entries: HashMap<u64, Named>,
}

/// A mount table, which reports its changes by poll(2) (proc_pid_mountinfo(5)), and the namespace and root that it is
/// valid for.
#[derive(Debug)]
struct Table {
    file: Known,
    namespace: Option<CString>,
    root: Option<Place>,
}

/// The files that the paths of one entry lead to.
#[derive(Debug, Default)]
struct Named {
    /// The process has its own mounts, which were copied from these.
    has_own_mounts: bool,
    /// Device and inode; `None`: no file.
    paths: HashMap<PathBuf, Option<(u64, u64)>>,
}

impl Mounts {
    /// Opens the calling thread's mount table, if none is open yet. Processes that the thread parks inherit this
    /// table.
    pub(super) fn look_from_here(&mut self) {
        if self.table.is_none() {
            self.table = Table::of_calling_thread();
        }
    }

    /// The table, for poll(2). The descriptor is not checked. `None`: there is none.
    pub(super) fn table(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().map(|table| table.file.as_fd())
    }

    /// The events to ask poll(2) for. A mount table is always readable and never writable; hardly any file that an
    /// application puts at its number is the same.
    pub(super) fn asked() -> PollFlags {
        PollFlags::IN | PollFlags::OUT | PollFlags::PRI
    }

    /// Takes in the events of the mount table. poll(2) reports each change once.
    ///
    /// # Errors
    /// The descriptor refers to another file.
    pub(super) fn heard(&mut self, answer: PollFlags) -> Result<(), &'static str> {
        if answer == PollFlags::IN {
            return Ok(());
        }
        if self.table.as_ref().is_some_and(|table| table.file.get().is_none()) {
            return Err("descriptor table");
        }
        self.changes += u64::from(answer.contains(PollFlags::PRI));
        Ok(())
    }

    /// Records the file that a path of this entry leads to.
    pub(super) fn note(&mut self, entry: u64, path: &Path) {
        let paths = &mut self.entries.entry(entry).or_default().paths;
        if !paths.contains_key(path) {
            paths.insert(path.to_owned(), identity(path));
        }
    }

    /// Records that this entry has a copy of the current mounts.
    pub(super) fn note_own(&mut self, entry: u64) {
        self.entries.entry(entry).or_default().has_own_mounts = true;
    }

    /// The entries with a path that now leads to another file, or with their own copy of mounts that may be out of
    /// date.
    ///
    /// # Errors
    /// The calling thread has another mount namespace or root.
    pub(super) fn changed(&mut self) -> Result<HashSet<u64>, &'static str> {
        let Some(table) = self.table.as_ref().filter(|_| self.compared != self.changes) else {
            return Ok(HashSet::new());
        };
        if own_proc::namespaces(["mnt"]).map_err(|_| "/proc")? != [table.namespace.clone()] {
            return Err("namespaces");
        }
        if Place::of(c"/") != table.root {
            return Err("root");
        }
        self.compared = self.changes;
        let changed = self.entries.iter().filter(|(_, named)| named.has_changed());
        Ok(changed.map(|(&entry, _)| entry).collect())
    }

    pub(super) fn forget(&mut self, gone: &HashSet<u64>) {
        self.entries.retain(|entry, _| !gone.contains(entry));
    }
}

impl Named {
    fn has_changed(&self) -> bool {
        self.has_own_mounts || self.paths.iter().any(|(path, was)| identity(path) != *was)
    }
}

impl Table {
    fn of_calling_thread() -> Option<Table> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(CWD, "/proc/thread-self/mountinfo", flags, Mode::empty()).ok()?;
        let [namespace] = own_proc::namespaces(["mnt"]).ok()?;
        Some(Table { file: Known::new(file), namespace, root: Place::of(c"/") })
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
