// SPDX-License-Identifier: MIT OR Apache-2.0
//! What paths name: looked at anew when something has been mounted or unmounted, of which inotify tells nothing.

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

/// The paths of all entries, and the mount table by which they are looked up.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    table: Option<Table>,
    /// How often it was seen to have changed; and up to which time paths have been compared.
    pub(super) changes: u64,
    compared: u64,
    entries: HashMap<u64, Named>,
}

/// A mount table, which says by poll(2) that it has changed (proc_pid_mountinfo(5)), and from where it counts.
#[derive(Debug)]
struct Table {
    file: Known,
    namespace: Option<CString>,
    root: Option<Place>,
}

/// What the paths of one entry name.
#[derive(Debug, Default)]
struct Named {
    /// It sits among mounts of its own, which were made of these.
    has_own_mounts: bool,
    /// Device and inode; `None`: nothing.
    paths: HashMap<PathBuf, Option<(u64, u64)>>,
}

impl Mounts {
    /// Takes the calling thread's mount table, which it hands down to what it parks, if there is none yet.
    pub(super) fn look_from_here(&mut self) {
        if self.table.is_none() {
            self.table = Table::of_calling_thread();
        }
    }

    /// The table, for poll(2): whatever its number means now. `None`: it is not known.
    pub(super) fn table(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().map(|table| table.file.as_fd())
    }

    /// What to ask poll(2) for. A mount table is always ready to be read and never to be written; hardly anything that an application
    /// puts in its place is just so.
    pub(super) fn asked() -> PollFlags {
        PollFlags::IN | PollFlags::OUT | PollFlags::PRI
    }

    /// Takes in what poll(2) has said of it, which it says once.
    ///
    /// # Errors
    /// The number means something else.
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

    /// Notes what a path of this entry names.
    pub(super) fn note(&mut self, entry: u64, path: &Path) {
        let paths = &mut self.entries.entry(entry).or_default().paths;
        if !paths.contains_key(path) {
            paths.insert(path.to_owned(), identity(path));
        }
    }

    /// Notes that this entry has a copy of the mounts as they are.
    pub(super) fn note_own(&mut self, entry: u64) {
        self.entries.entry(entry).or_default().has_own_mounts = true;
    }

    /// Entries of which a path has come to name something else, or whose own mounts may not be what they would be now.
    ///
    /// # Errors
    /// The calling thread looks paths up elsewhere.
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
