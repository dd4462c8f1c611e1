// SPDX-License-Identifier: MIT OR Apache-2.0
//! What parked processes were made of: watched, so that a start asks with one system call whether any of it has changed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};

use crate::numbers::Known;

/// A file: written to, replaced, renamed, unlinked, its mode or owner changed.
fn of_file() -> WatchFlags {
    WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF
}

/// A directory: a name in it comes or goes, or it goes itself.
fn of_directory() -> WatchFlags {
    let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM;
    names | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR
}

/// The files and directories of all entries, and whom each concerns.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Known,
    /// Entries by watch; for a directory that is watched for its libraries alone, `true`.
    watched: HashMap<i32, (HashSet<u64>, bool)>,
    buffer: Vec<std::mem::MaybeUninit<u8>>,
}

impl Watch {
    /// # Errors
    /// As inotify_init1(2).
    pub(super) fn new() -> rustix::io::Result<Watch> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let inotify = Known::new(inotify).map_err(|errno| rustix::io::Errno::from_raw_os_error(errno.raw()))?;
        Ok(Watch { inotify, watched: HashMap::new(), buffer: vec![std::mem::MaybeUninit::uninit(); 4096] })
    }

    /// Watches what `entry` was made of: files, directories, and, for libraries, where they lie.
    ///
    /// # Errors
    /// As inotify_add_watch(2). What is not there (any more) is passed over: then it cannot be what is used.
    pub(super) fn add(&mut self, entry: u64, files: &[Vec<u8>]) -> rustix::io::Result<()> {
        let Some(inotify) = self.inotify.get() else { return Err(rustix::io::Errno::BADF) };
        let inotify = &inotify.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
        let cache = b"/etc/ld.so.cache".to_vec();
        for file in files.iter().chain([&cache]) {
            let path = Path::new(OsStr::from_bytes(file));
            let is_directory = path.is_dir();
            let flags = if is_directory { of_directory() } else { of_file() };
            self.note(add_watch(inotify, path, flags), entry, false)?;
            if !is_directory
                && is_library(file)
                && let Some(directory) = path.parent()
            {
                self.note(add_watch(inotify, directory, of_directory()), entry, true)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, watch: rustix::io::Result<i32>, entry: u64, libraries: bool) -> rustix::io::Result<()> {
        match watch {
            Ok(watch) => {
                let (entries, only_libraries) = self.watched.entry(watch).or_insert((HashSet::new(), libraries));
                entries.insert(entry);
                *only_libraries &= libraries;
                Ok(())
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Entries of which something has changed since they were added. They are not watched any more.
    ///
    /// # Errors
    /// It cannot be told here.
    pub(super) fn changed(&mut self) -> Result<HashSet<u64>, &'static str> {
        let mut changed = HashSet::new();
        let inotify = self.inotify.get().ok_or("descriptor table")?;
        let mut reader = Reader::new(inotify, &mut self.buffer);
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend(self.watched.values().flat_map(|(entries, _)| entries));
                continue;
            }
            let Some((entries, only_libraries)) = self.watched.get(&event.wd()) else { continue };
            let itself = event.file_name().is_none();
            if itself || !only_libraries || event.file_name().is_some_and(|name| is_library(name.to_bytes())) {
                changed.extend(entries);
            }
        }
        if !changed.is_empty() {
            self.forget(&changed);
        }
        Ok(changed)
    }

    /// Watches for these entries no more.
    pub(super) fn forget(&mut self, gone: &HashSet<u64>) {
        let inotify = self.inotify.get();
        self.watched.retain(|&watch, (entries, _)| {
            entries.retain(|entry| !gone.contains(entry));
            if entries.is_empty() {
                // EINVAL: the file is gone, and its watch with it.
                let _ = inotify.map(|inotify| remove_watch(inotify, watch));
            }
            !entries.is_empty()
        });
    }
}

/// Whether a file is a library, by its name.
pub(super) fn is_library(name: &[u8]) -> bool {
    name.windows(3).any(|part| part == b".so")
}
