// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files to which paths lead. The library compares them after each mount or unmount, because inotify does not
//! report mounts.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::cold_reason::ColdReason;
use crate::host::descriptors::CheckedFd;
use crate::host::inherited::FileId;
use crate::host::own_proc;

/// The paths of all entries, and the mount table by which the kernel resolves them.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    table: Option<MountTable>,
    /// The number of mount table changes that poll(2) has reported.
    pub(super) changes: u64,
    /// The value of `changes` at the last comparison of the paths.
    compared: u64,
    entries: HashMap<u64, EntryPaths>,
}

/// A mount table, with the mount namespace and root for which it is valid. The table reports its changes by poll(2)
/// (proc_pid_mountinfo(5)).
#[derive(Debug)]
struct MountTable {
    file: CheckedFd,
    namespace: Option<CString>,
    root: Option<FileId>,
}

/// The files that the paths of one entry lead to.
#[derive(Debug, Default)]
struct EntryPaths {
    /// True if the parked process has its own mount namespace, a copy of this process's mount namespace.
    has_own_mounts: bool,
    /// The device and inode to which each path leads. `None` if the path leads to no file.
    paths: HashMap<PathBuf, Option<(u64, u64)>>,
}

impl Mounts {
    /// Opens the calling thread's mount table, if none is open yet. Processes that the thread parks inherit its mount
    /// namespace.
    pub(super) fn open_table(&mut self) {
        if self.table.is_none() {
            self.table = MountTable::of_calling_thread();
        }
    }

    /// The mount table's descriptor for poll(2), or `None` if no table is open. The application may
    /// have replaced the descriptor.
    pub(super) fn table(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().map(|table| table.file.as_fd())
    }

    /// The events that the library asks poll(2) for. A mount table is always readable and never
    /// writable. If the application has put another file at the descriptor number, poll(2) almost
    /// certainly reports other events.
    pub(super) fn poll_flags() -> PollFlags {
        PollFlags::IN | PollFlags::OUT | PollFlags::PRI
    }

    /// Counts a change of the mount table if poll(2) reports one. poll(2) reports each change once.
    ///
    /// # Errors
    /// The descriptor refers to another file.
    pub(super) fn record_events(&mut self, events: PollFlags) -> Result<(), ColdReason> {
        if events == PollFlags::IN {
            return Ok(());
        }
        if self.table.as_ref().is_some_and(|table| table.file.get().is_none()) {
            return Err(ColdReason::DescriptorTable);
        }
        self.changes += u64::from(events.contains(PollFlags::PRI));
        Ok(())
    }

    /// Records the file to which a path of this entry leads.
    pub(super) fn record_path(&mut self, entry: u64, path: &Path) {
        let paths = &mut self.entries.entry(entry).or_default().paths;
        if !paths.contains_key(path) {
            paths.insert(path.to_owned(), identity(path));
        }
    }

    /// Records that this entry's processes have a copy of the current mount namespace.
    pub(super) fn record_own_mounts(&mut self, entry: u64) {
        self.entries.entry(entry).or_default().has_own_mounts = true;
    }

    /// After a change of the mount table, returns the entries that the change may concern. These
    /// are the entries with a path that now leads to another file. They are also all entries whose
    /// processes have their own mount namespace, because their mounts may be out of date.
    ///
    /// # Errors
    /// The calling thread has another mount namespace or root.
    pub(super) fn take_changed(&mut self) -> Result<HashSet<u64>, ColdReason> {
        let Some(table) = self.table.as_ref().filter(|_| self.compared != self.changes) else {
            return Ok(HashSet::new());
        };
        if own_proc::namespaces(["mnt"]).map_err(|_| ColdReason::Proc)? != [table.namespace.clone()] {
            return Err(ColdReason::Namespaces);
        }
        if FileId::of(c"/") != table.root {
            return Err(ColdReason::Root);
        }
        self.compared = self.changes;
        let changed = self.entries.iter().filter(|(_, paths)| paths.has_changed());
        Ok(changed.map(|(&entry, _)| entry).collect())
    }

    pub(super) fn forget(&mut self, removed: &HashSet<u64>) {
        self.entries.retain(|entry, _| !removed.contains(entry));
    }
}

impl EntryPaths {
    fn has_changed(&self) -> bool {
        self.has_own_mounts || self.paths.iter().any(|(path, recorded)| identity(path) != *recorded)
    }
}

impl MountTable {
    fn of_calling_thread() -> Option<MountTable> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(CWD, "/proc/thread-self/mountinfo", flags, Mode::empty()).ok()?;
        let [namespace] = own_proc::namespaces(["mnt"]).ok()?;
        Some(MountTable { file: CheckedFd::new(file), namespace, root: FileId::of(c"/") })
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
