// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches the files that parked processes have loaded. A start finds out with one system call whether a file, or a
//! mount on its path, has changed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};

use super::mounts::Mounts;
use crate::host::numbers::Known;

/// Events of a file: it is written, replaced, renamed or unlinked, or its mode or owner changes.
fn of_file() -> WatchFlags {
    WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF
}

/// Events of a directory: a name in it is created or removed, or the directory itself is moved or removed.
fn of_directory() -> WatchFlags {
    let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM;
    names | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR
}

/// Events of a directory on the path of a file: the directory itself is moved or removed. Names in it do not matter.
fn of_way() -> WatchFlags {
    WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR | WatchFlags::MASK_ADD
}

/// The subdirectory that ld.so searches first: libraries for newer processors.
const HWCAPS: &str = "glibc-hwcaps";
/// `HWCAPS`, and until glibc 2.36 the other subdirectories that ld.so searches, nested in any way that fits the
/// processor (dl-hwcaps.c of x86-64 and AArch64).
const VARIANTS: [&str; 8] = [HWCAPS, "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "atomics", "aarch64"];
/// The deepest nesting of these subdirectories, for one architecture.
const DEPTH: usize = 4;

/// The most that the ctime of a change can be earlier than the change: the kernel's clock tick and the rounding by
/// file systems.
const GRANULARITY: Duration = Duration::from_millis(20);
/// The same for a file system that stores whole seconds or multiples of two seconds.
const COARSE_GRANULARITY: Duration = Duration::from_secs(2);

/// The time before a parked process was executed, by two clocks. Files carry time stamps of the wall clock, which can
/// be set back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    wall: SystemTime,
    steady: Instant,
}

impl Moment {
    pub(super) fn now() -> Moment {
        Moment { wall: SystemTime::now(), steady: Instant::now() }
    }

    /// Whether the inode at `path` may have changed since. An inode that cannot be read may have.
    fn precedes_change_of(&self, path: &Path) -> bool {
        let Ok(found) = std::fs::metadata(path) else { return true };
        let nanoseconds = u32::try_from(found.ctime_nsec()).unwrap_or(0);
        let granularity = if nanoseconds == 0 { COARSE_GRANULARITY } else { GRANULARITY };
        let ctime = Duration::new(u64::try_from(found.ctime()).unwrap_or(0), nanoseconds);
        let wall = self.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // FUSE may report any time.
        ctime.saturating_add(granularity) >= wall
    }

    /// Whether the wall clock has been set back since: then ctimes prove nothing.
    fn wall_clock_was_set_back(&self) -> bool {
        // The other half of the granularity is for the clock tick.
        self.wall + self.steady.elapsed() > SystemTime::now() + GRANULARITY / 2
    }
}

/// The files and directories of all entries, and the entries that each concerns.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Known,
    pub(super) mounts: Mounts,
    watched: HashMap<i32, Watched>,
    buffer: Vec<std::mem::MaybeUninit<u8>>,
}

/// One watched file or directory.
#[derive(Debug)]
struct Watched {
    /// The entries that it concerns.
    entries: HashSet<u64>,
    names: Names,
    /// From this time on, inotify reports every change that concerns these entries. A new entry or name resets it.
    since: Instant,
}

/// One call of [`Watch::add`].
struct Addition<'a> {
    inotify: &'a OwnedFd,
    entry: u64,
    /// Just before the parked process was executed.
    begun: Moment,
    /// Something may have changed between that time and the time from which inotify reports changes.
    may_have_changed: bool,
}

/// The names in a directory that matter.
#[derive(Debug, Default)]
struct Names {
    all: bool,
    libraries: bool,
    these: HashSet<Vec<u8>>,
}

impl Names {
    fn one(name: &OsStr) -> Names {
        Names { these: HashSet::from([name.as_bytes().to_vec()]), ..Names::default() }
    }

    /// Adds names; returns whether any of them is new.
    fn extend(&mut self, more: Names) -> bool {
        let size = |names: &Names| (names.all, names.libraries, names.these.len());
        let before = size(self);
        self.all |= more.all;
        self.libraries |= more.libraries;
        self.these.extend(more.these);
        before != size(self)
    }

    fn matter(&self, name: &[u8]) -> bool {
        // CPython itself creates __pycache__ beside its modules.
        (self.all && name != b"__pycache__") || (self.libraries && is_library(name)) || self.these.contains(name)
    }
}

/// The nearest existing directory of a path, and the missing name in it.
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

    /// Watches the files and directories that a process of `entry` has loaded, and the directories of libraries. For
    /// a missing file, watches for its creation. `sandboxed`: the process has its own mounts.
    ///
    /// Returns whether any of this may have changed since `begun` without an event from inotify. The watches stay in
    /// place then: they cover the next attempt to park from its start, so changes that do not matter to the entry
    /// cost only one attempt.
    ///
    /// # Errors
    /// As inotify_add_watch(2). ENOENT: there is no mount table.
    pub(super) fn add(
        &mut self,
        entry: u64,
        files: &[Vec<u8>],
        sandboxed: bool,
        begun: Moment,
    ) -> rustix::io::Result<bool> {
        if self.mounts.table().is_none() {
            return Err(rustix::io::Errno::NOENT);
        }
        let Some(inotify) = self.inotify.get() else { return Err(rustix::io::Errno::BADF) };
        let inotify = &inotify.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
        let to = &mut Addition { inotify, entry, begun, may_have_changed: false };
        let cache = b"/etc/ld.so.cache".to_vec();
        let (mut seen, mut ways, mut searched) = (HashSet::new(), HashSet::new(), HashSet::new());
        for file in files.iter().chain([&cache]) {
            let path = Path::new(OsStr::from_bytes(file));
            // A symbolic link on the path may be changed.
            for link in path.ancestors().take_while(|at| seen.insert(*at)).filter(|at| at.is_symlink()) {
                if let (Some(directory), Some(name)) = (link.parent(), link.file_name()) {
                    self.watch(to, directory, of_directory(), Names::one(name))?;
                }
            }
            if let Some(directory) = path.ancestors().skip(1).find(|at| at.is_dir())
                && ways.insert(directory.to_owned())
            {
                self.watch_way(to, directory, &mut ways)?;
            }
            if is_library(file)
                && let Some(directory) = path.parent().filter(|at| at.is_dir())
                && searched.insert(directory.to_owned())
            {
                self.watch_searched(to, directory)?;
            }
            if path.is_dir() {
                self.watch(to, path, of_directory(), Names { all: true, ..Names::default() })?;
            } else if path.exists() {
                self.watch(to, path, of_file(), Names::default())?;
            } else {
                // An interpreter also reports files that it has searched for in vain. The path of an optional library
                // has two slashes.
                let need_not = file.windows(2).any(|two| two == b"//");
                to.may_have_changed |= file.ends_with(b" (deleted)") || is_library(file) && !need_not && *file != cache;
                if let Some((directory, name)) = nearest(path) {
                    self.watch(to, directory, of_directory(), Names::one(name))?;
                }
            }
        }
        if sandboxed {
            self.mounts.note_own(entry);
        }
        // Take in mounts up to now: they may have happened during this call.
        let _ = self.look();
        Ok(to.may_have_changed || begun.wall_clock_was_set_back())
    }

    /// Watches the ancestors of a directory's real path. One of them may be renamed, and another directory may take
    /// its place.
    fn watch_way(
        &mut self,
        to: &mut Addition<'_>,
        directory: &Path,
        ways: &mut HashSet<PathBuf>,
    ) -> rustix::io::Result<()> {
        let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        ways.insert(real.clone());
        for (number, at) in real.ancestors().enumerate() {
            if number > 0 && !ways.insert(at.to_owned()) {
                break;
            }
            match self.watch(to, at, of_way(), Names::default()) {
                // The directory may be searchable but not readable.
                Ok(()) | Err(rustix::io::Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Watches a directory in which ld.so searches for libraries, and its subdirectories that ld.so searches first.
    fn watch_searched(&mut self, to: &mut Addition<'_>, directory: &Path) -> rustix::io::Result<()> {
        let is_variant = |at: &Path| {
            VARIANTS.iter().any(|name| at.ends_with(name)) || at.parent().is_some_and(|above| above.ends_with(HWCAPS))
        };
        let top = directory.ancestors().find(|at| !is_variant(at)).unwrap_or(directory);
        let mut found = vec![(top.to_owned(), 0)];
        while let Some((at, depth)) = found.pop() {
            let is_hwcaps = at.ends_with(HWCAPS);
            let names = if is_hwcaps {
                Names { all: true, ..Names::default() }
            } else {
                Names { all: false, libraries: true, these: VARIANTS.map(Vec::from).into() }
            };
            self.watch(to, &at, of_directory(), names)?;
            let within: Vec<PathBuf> = if is_hwcaps {
                std::fs::read_dir(&at).into_iter().flatten().flatten().map(|one| one.path()).collect()
            } else {
                VARIANTS.map(|name| at.join(name)).into()
            };
            // ld.so uses each name at most once in a path. The depth is bounded because links may form a circle.
            let within = within.into_iter().filter(|at| depth < DEPTH && at.is_dir());
            found.extend(within.map(|at| (at, depth + 1)));
        }
        Ok(())
    }

    fn watch(&mut self, to: &mut Addition<'_>, path: &Path, flags: WatchFlags, names: Names) -> rustix::io::Result<()> {
        let watch = match add_watch(to.inotify, path, flags) {
            // The file existed a moment ago.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                to.may_have_changed = true;
                return Ok(());
            }
            watch => watch?,
        };
        let fresh = || Watched { entries: HashSet::new(), names: Names::default(), since: Instant::now() };
        let watched = self.watched.entry(watch).or_insert_with(fresh);
        let is_new_entry = watched.entries.insert(to.entry);
        if watched.names.extend(names) || is_new_entry {
            watched.since = Instant::now();
        }
        // Inotify reports later changes only. The ctime shows the earlier ones.
        to.may_have_changed |= watched.since > to.begun.steady && to.begun.precedes_change_of(path);
        self.mounts.note(to.entry, path);
        Ok(())
    }

    /// Whether inotify has events. Also takes in the events of the mount table.
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

    /// Returns the entries with changes since they were added, and stops watching them.
    ///
    /// # Errors
    /// The calling thread cannot find out.
    pub(super) fn changed(&mut self) -> Result<HashSet<u64>, &'static str> {
        let told = self.look()?;
        let mut changed = self.mounts.changed()?;
        let mut reader = told.then(|| Reader::new(self.inotify.as_fd(), &mut self.buffer));
        while let Some(Ok(event)) = reader.as_mut().map(Reader::next) {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend(self.watched.values().flat_map(|watched| &watched.entries));
                continue;
            }
            let Some(Watched { entries, names, .. }) = self.watched.get(&event.wd()) else { continue };
            // An event without a name concerns the watched file or directory itself.
            if event.file_name().is_none_or(|name| names.matter(name.to_bytes())) {
                changed.extend(entries);
            }
        }
        if !changed.is_empty() {
            self.forget(&changed);
        }
        Ok(changed)
    }

    /// Stops watching for these entries.
    pub(super) fn forget(&mut self, gone: &HashSet<u64>) {
        self.mounts.forget(gone);
        let inotify = self.inotify.get();
        self.watched.retain(|&watch, Watched { entries, .. }| {
            entries.retain(|entry| !gone.contains(entry));
            if entries.is_empty() {
                // EINVAL: the file is gone, and the kernel has removed its watch.
                let _ = inotify.map(|inotify| remove_watch(inotify, watch));
            }
            !entries.is_empty()
        });
    }
}

/// Whether a file is a library, by its name.
fn is_library(name: &[u8]) -> bool {
    name.windows(3).any(|part| part == b".so")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(wall: SystemTime) -> Moment {
        Moment { wall, steady: Instant::now() }
    }

    #[test]
    fn a_ctime_that_is_equal_or_within_the_granularity_counts_as_changed() {
        let directory = spawnfd_tests::scratch();
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("write");
        let found = std::fs::metadata(&file).expect("stat");
        let ctime = Duration::new(found.ctime() as u64, found.ctime_nsec() as u32);
        let ctime = SystemTime::UNIX_EPOCH + ctime;
        for (after, may_have_changed) in [(0, true), (20, true), (2001, false)] {
            let moment = moment(ctime + Duration::from_millis(after));
            assert_eq!(moment.precedes_change_of(&file), may_have_changed, "{after} ms");
        }
        assert!(moment(ctime).precedes_change_of(&directory.path().join("absent")));
    }

    #[test]
    fn a_wall_clock_that_was_set_back_is_noticed() {
        let now = SystemTime::now();
        assert!(moment(now + Duration::from_millis(500)).wall_clock_was_set_back());
        assert!(!moment(now).wall_clock_was_set_back());
        assert!(!moment(now - Duration::from_secs(3600)).wall_clock_was_set_back());
    }
}
