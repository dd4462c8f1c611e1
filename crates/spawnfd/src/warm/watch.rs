// SPDX-License-Identifier: MIT OR Apache-2.0
//! What parked processes were made of: watched, so that a start asks with one system call whether any of it has changed, or the mounts by
//! which it is found.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};

use super::mounts::Mounts;
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

/// A directory on the way: it is renamed or goes, whatever comes and goes in it.
fn of_way() -> WatchFlags {
    WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR | WatchFlags::MASK_ADD
}

/// Where ld.so looks first in a directory: for what is made for better processors.
const HWCAPS: &str = "glibc-hwcaps";
/// That, and, until glibc 2.36, of these any that fit one within the other (dl-hwcaps.c of x86-64 and AArch64).
const VARIANTS: [&str; 8] = [HWCAPS, "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "atomics", "aarch64"];
/// How many may stand within one another: of those of one architecture.
const DEPTH: usize = 4;

/// The files and directories of all entries, and whom each concerns.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Known,
    mounts: Mounts,
    watched: HashMap<i32, Watched>,
    buffer: Vec<std::mem::MaybeUninit<u8>>,
}

/// One file or directory.
#[derive(Debug, Default)]
struct Watched {
    /// Whom it concerns.
    entries: HashSet<u64>,
    names: Names,
}

/// Which names in a directory matter.
#[derive(Debug, Default)]
struct Names {
    all: bool,
    libraries: bool,
    these: HashSet<Vec<u8>>,
}

impl Names {
    fn matter(&self, name: &[u8]) -> bool {
        // What CPython writes beside its modules by itself.
        (self.all && name != b"__pycache__") || (self.libraries && is_library(name)) || self.these.contains(name)
    }
}

/// The nearest directory of a path that is there, and what is missing in it.
fn nearest(path: &Path) -> Option<(&Path, &OsStr)> {
    path.ancestors().find_map(|at| Some((at.parent().filter(|above| above.is_dir())?, at.file_name()?)))
}

impl Watch {
    /// # Errors
    /// As inotify_init1(2).
    pub(super) fn new() -> rustix::io::Result<Watch> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let inotify = Known::new(inotify);
        let buffer = vec![std::mem::MaybeUninit::uninit(); 4096];
        Ok(Watch { inotify, mounts: Mounts::default(), watched: HashMap::new(), buffer })
    }

    /// Has the calling thread's mounts be those that count: it is the one that parks. Later it may be any.
    pub(super) fn look_from_here(&mut self) {
        self.mounts.look_from_here();
    }

    /// How often the mount table has changed, as far as is known.
    pub(super) fn remounts(&self) -> u64 {
        self.mounts.changes()
    }

    /// Watches what `entry` was made of: files, directories, and, for libraries, where they lie. Of what is not there: that it comes.
    /// `sandboxed`: it sits among mounts of its own.
    ///
    /// # Errors
    /// As inotify_add_watch(2). ENOENT: there is no mount table.
    pub(super) fn add(&mut self, entry: u64, files: &[Vec<u8>], sandboxed: bool) -> rustix::io::Result<()> {
        if self.mounts.table().is_none() {
            return Err(rustix::io::Errno::NOENT);
        }
        let Some(inotify) = self.inotify.get() else { return Err(rustix::io::Errno::BADF) };
        let inotify = &inotify.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
        let cache = b"/etc/ld.so.cache".to_vec();
        let (mut seen, mut ways, mut searched) = (HashSet::new(), HashSet::new(), HashSet::new());
        for file in files.iter().chain([&cache]) {
            let path = Path::new(OsStr::from_bytes(file));
            // A link on the way may come to lead elsewhere.
            for link in path.ancestors().take_while(|at| seen.insert(*at)).filter(|at| at.is_symlink()) {
                if let (Some(directory), Some(name)) = (link.parent(), link.file_name()) {
                    let names = self.watch(inotify, directory, of_directory(), entry)?;
                    names.these.insert(name.as_bytes().to_vec());
                }
            }
            if let Some(directory) = path.ancestors().skip(1).find(|at| at.is_dir())
                && ways.insert(directory.to_owned())
            {
                self.watch_way(inotify, directory, entry, &mut ways)?;
            }
            if is_library(file)
                && let Some(directory) = path.parent().filter(|at| at.is_dir())
                && searched.insert(directory.to_owned())
            {
                self.watch_searched(inotify, directory, entry)?;
            }
            if path.is_dir() {
                self.watch(inotify, path, of_directory(), entry)?.all = true;
            } else if path.exists() {
                self.watch(inotify, path, of_file(), entry)?;
            } else if let Some((directory, name)) = nearest(path) {
                self.watch(inotify, directory, of_directory(), entry)?.these.insert(name.as_bytes().to_vec());
            }
        }
        if sandboxed {
            self.mounts.note_own(entry);
        }
        // What has been mounted until now may have come between.
        let _ = self.look();
        Ok(())
    }

    /// Watches where a directory lies, however it is reached: it may be renamed, or one above it, and another come to stand there.
    fn watch_way(
        &mut self,
        inotify: &OwnedFd,
        directory: &Path,
        entry: u64,
        ways: &mut HashSet<PathBuf>,
    ) -> rustix::io::Result<()> {
        let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        ways.insert(real.clone());
        for (number, at) in real.ancestors().enumerate() {
            if number > 0 && !ways.insert(at.to_owned()) {
                break;
            }
            match self.watch(inotify, at, of_way(), entry) {
                // It may be passed through, and not be read.
                Ok(_) | Err(rustix::io::Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Watches a directory in which ld.so looks for libraries, and those in it where it looks first.
    fn watch_searched(&mut self, inotify: &OwnedFd, directory: &Path, entry: u64) -> rustix::io::Result<()> {
        let is_variant = |at: &Path| {
            VARIANTS.iter().any(|name| at.ends_with(name)) || at.parent().is_some_and(|above| above.ends_with(HWCAPS))
        };
        let top = directory.ancestors().find(|at| !is_variant(at)).unwrap_or(directory);
        let mut found = vec![(top.to_owned(), 0)];
        while let Some((at, depth)) = found.pop() {
            let names = self.watch(inotify, &at, of_directory(), entry)?;
            let within: Vec<PathBuf> = if at.ends_with(HWCAPS) {
                names.all = true;
                std::fs::read_dir(&at).into_iter().flatten().flatten().map(|one| one.path()).collect()
            } else {
                names.libraries = true;
                names.these.extend(VARIANTS.map(Vec::from));
                VARIANTS.map(|name| at.join(name)).into()
            };
            // Each stands once in what ld.so makes of them; a link may lead round in a circle.
            let within = within.into_iter().filter(|at| depth < DEPTH && at.is_dir());
            found.extend(within.map(|at| (at, depth + 1)));
        }
        Ok(())
    }

    fn watch(
        &mut self,
        inotify: &OwnedFd,
        path: &Path,
        flags: WatchFlags,
        entry: u64,
    ) -> rustix::io::Result<&mut Names> {
        let watch = add_watch(inotify, path, flags)?;
        let watched = self.watched.entry(watch).or_default();
        watched.entries.insert(entry);
        self.mounts.note(entry, path);
        Ok(&mut watched.names)
    }

    /// Whether inotify has something to say; takes in whether the mount table has.
    fn look(&mut self) -> Result<bool, &'static str> {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let inotify = PollFd::new(self.inotify.get().ok_or("descriptor table")?, PollFlags::IN);
        let Some(table) = self.mounts.table() else { return Ok(true) };
        let mut both = [inotify, PollFd::from_borrowed_fd(table, Mounts::asked())];
        poll(&mut both, Some(&AT_ONCE)).map_err(|_| "inotify")?;
        let [told, answer] = both.map(|one| one.revents());
        self.mounts.heard(answer)?;
        Ok(!told.is_empty())
    }

    /// Entries of which something has changed since they were added. They are not watched any more.
    ///
    /// # Errors
    /// It cannot be told here.
    pub(super) fn changed(&mut self) -> Result<HashSet<u64>, &'static str> {
        let told = self.look()?;
        let mut changed = self.mounts.changed()?;
        let mut reader = told.then(|| Reader::new(self.inotify.as_fd(), &mut self.buffer));
        while let Some(Ok(event)) = reader.as_mut().map(Reader::next) {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend(self.watched.values().flat_map(|watched| &watched.entries));
                continue;
            }
            let Some(Watched { entries, names }) = self.watched.get(&event.wd()) else { continue };
            // Without a name it is the file itself, or the directory.
            if event.file_name().is_none_or(|name| names.matter(name.to_bytes())) {
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
        self.mounts.forget(gone);
        let inotify = self.inotify.get();
        self.watched.retain(|&watch, Watched { entries, .. }| {
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
