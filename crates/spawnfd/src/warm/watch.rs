// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches the files that parked processes have loaded. A start finds out with one system call whether a file, or a
//! mount on its path, has changed. inotify does not report mounts, so the library compares the files to which paths lead
//! after each mount or unmount.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::caller::FileId;
use super::entry_point::ModuleNames;
use crate::cold_reason::ColdReason;
use crate::host::descriptors::CheckedFd;
use crate::host::own_proc;

/// The inotify events of a file. A process writes, renames, unlinks or replaces the file, or changes its mode or owner.
fn file_events() -> WatchFlags {
    WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF
}

/// The inotify events of a directory. A process creates or removes a name in it, or moves or removes the directory.
fn directory_events() -> WatchFlags {
    let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM;
    names | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR
}

/// The inotify events of a file's ancestor directory. A process moves or removes the directory itself. Names in the
/// directory do not matter.
fn ancestor_events() -> WatchFlags {
    WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR | WatchFlags::MASK_ADD
}

/// The subdirectory that ld.so searches first: libraries for newer processors.
const HWCAPS: &str = "glibc-hwcaps";
/// `HWCAPS`, and the other subdirectories that ld.so searches in glibc 2.36 and older. ld.so also
/// searches nested subdirectories with these names (dl-hwcaps.c of x86-64 and AArch64).
const VARIANTS: [&str; 8] = [HWCAPS, "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "atomics", "aarch64"];
/// The deepest nesting of these subdirectories, for one architecture.
const MAX_DEPTH: usize = 4;

/// The longest time by which a file's ctime can precede the change that it records. Reasons are the kernel's clock
/// tick, and rounding by file systems.
const GRANULARITY: Duration = Duration::from_millis(20);
/// The same bound for a file system that stores time stamps in whole seconds or steps of two
/// seconds.
const COARSE_GRANULARITY: Duration = Duration::from_secs(2);

/// The time just before a parked process was executed, by two clocks. Files have time stamps of the wall clock, which
/// a user can set back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExecTime {
    wall: SystemTime,
    monotonic: Instant,
}

impl ExecTime {
    pub(super) fn now() -> ExecTime {
        ExecTime { wall: SystemTime::now(), monotonic: Instant::now() }
    }

    /// Whether the inode at `path` may have changed after this time. Also `true` if the inode cannot be read.
    fn precedes_change_of(&self, path: &Path) -> bool {
        let Ok(found) = std::fs::metadata(path) else { return true };
        let nanoseconds = u32::try_from(found.ctime_nsec()).unwrap_or(0);
        let granularity = if nanoseconds == 0 { COARSE_GRANULARITY } else { GRANULARITY };
        let ctime = Duration::new(u64::try_from(found.ctime()).unwrap_or(0), nanoseconds);
        let wall = self.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Use a saturating addition, because a FUSE file system may report any ctime.
        ctime.saturating_add(granularity) >= wall
    }

    /// Whether a user has set the wall clock back since exec. If so, ctimes prove nothing.
    fn wall_clock_was_set_back(&self) -> bool {
        // Allow half of the granularity, because the clock tick uses the other half.
        self.wall + self.monotonic.elapsed() > SystemTime::now() + GRANULARITY / 2
    }
}

/// The watched files and directories of all entries.
#[derive(Debug)]
pub(super) struct FileWatch {
    inotify: CheckedFd,
    pub(super) mounts: Mounts,
    watched: HashMap<i32, Watched>,
    buffer: Vec<std::mem::MaybeUninit<u8>>,
}

/// One watched file or directory.
#[derive(Debug)]
struct Watched {
    /// The entries whose processes use this file or directory.
    entries: HashSet<u64>,
    names: Names,
    /// From this time on, inotify reports every change that concerns these entries. A new entry or name resets this
    /// time.
    reported_since: Instant,
}

/// The values that the steps of one call of [`FileWatch::add`] share.
struct WatchRequest<'a> {
    inotify: &'a OwnedFd,
    entry: u64,
    before_exec: ExecTime,
    /// True if a watched file may have changed between `before_exec` and the time from which inotify
    /// reports changes.
    may_have_changed: bool,
}

/// The names in a directory that a process depends on.
#[derive(Debug, Default)]
struct Names {
    all: bool,
    libraries: bool,
    named: HashSet<Vec<u8>>,
    modules: ModuleNames,
}

impl Names {
    fn single(name: &OsStr) -> Names {
        Names { named: HashSet::from([name.as_bytes().to_vec()]), ..Names::default() }
    }

    /// Adds names; returns whether any of them is new.
    fn extend(&mut self, more: Names) -> bool {
        let size = |names: &Names| (names.all, names.libraries, names.named.len(), names.modules.len());
        let before = size(self);
        self.all |= more.all;
        self.libraries |= more.libraries;
        self.named.extend(more.named);
        self.modules.extend(more.modules);
        before != size(self)
    }

    fn contain(&self, name: &[u8]) -> bool {
        // Ignore __pycache__, which CPython itself creates beside its modules.
        (self.all && name != b"__pycache__")
            || (self.libraries && is_library(name))
            || self.named.contains(name)
            || self.modules.contain(name)
    }
}

/// The nearest existing directory of a path, and the missing name in it.
fn nearest(path: &Path) -> Option<(&Path, &OsStr)> {
    path.ancestors().find_map(|at| Some((at.parent().filter(|above| above.is_dir())?, at.file_name()?)))
}

impl FileWatch {
    /// # Errors
    /// The errors of inotify_init1(2).
    pub(super) fn new() -> rustix::io::Result<FileWatch> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let inotify = CheckedFd::new(inotify);
        let buffer = vec![std::mem::MaybeUninit::uninit(); 4096];
        Ok(FileWatch { inotify, mounts: Mounts::default(), watched: HashMap::new(), buffer })
    }

    /// Watches the files and directories that a process of `entry` has loaded, and the directories of libraries. For
    /// a missing file, watches for its creation. In `first_path`, watches for the creation of these modules.
    /// `sandboxed` is true if the process has its own mounts.
    ///
    /// Returns whether a file or directory may have changed since `before_exec` without an event
    /// from inotify. The watches stay even then, and cover the whole next attempt to park. So a
    /// change that does not matter to the entry costs only one attempt.
    ///
    /// # Errors
    /// The errors of inotify_add_watch(2). ENOENT means that there is no mount table.
    pub(super) fn add(
        &mut self,
        entry: u64,
        files: &[Vec<u8>],
        first_path: Option<(&Path, &ModuleNames)>,
        sandboxed: bool,
        before_exec: ExecTime,
    ) -> rustix::io::Result<bool> {
        if self.mounts.table().is_none() {
            return Err(rustix::io::Errno::NOENT);
        }
        let Some(inotify) = self.inotify.get() else { return Err(rustix::io::Errno::BADF) };
        let inotify = &inotify.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
        let request = &mut WatchRequest { inotify, entry, before_exec, may_have_changed: false };
        let cache = b"/etc/ld.so.cache".to_vec();
        let (mut seen, mut seen_ancestors, mut library_directories) = (HashSet::new(), HashSet::new(), HashSet::new());
        for file in files.iter().chain([&cache]) {
            let path = Path::new(OsStr::from_bytes(file));
            // Watch the symbolic links on the path.
            for link in path.ancestors().take_while(|at| seen.insert(*at)).filter(|at| at.is_symlink()) {
                if let (Some(directory), Some(name)) = (link.parent(), link.file_name()) {
                    self.watch(request, directory, directory_events(), Names::single(name))?;
                }
            }
            if let Some(directory) = path.ancestors().skip(1).find(|at| at.is_dir())
                && seen_ancestors.insert(directory.to_owned())
            {
                self.watch_ancestors(request, directory, &mut seen_ancestors)?;
            }
            if is_library(file)
                && let Some(directory) = path.parent().filter(|at| at.is_dir())
                && library_directories.insert(directory.to_owned())
            {
                self.watch_library_directory(request, directory)?;
            }
            if path.is_dir() {
                self.watch(request, path, directory_events(), Names { all: true, ..Names::default() })?;
            } else if path.exists() {
                self.watch(request, path, file_events(), Names::default())?;
            } else {
                // An interpreter also reports files that it has not found. The object reports the path of an optional
                // library with two slashes.
                let is_optional = file.windows(2).any(|two| two == b"//");
                request.may_have_changed |=
                    file.ends_with(b" (deleted)") || is_library(file) && !is_optional && *file != cache;
                if let Some((directory, name)) = nearest(path) {
                    self.watch(request, directory, directory_events(), Names::single(name))?;
                }
            }
        }
        if let Some((directory, modules)) = first_path {
            self.watch_ancestors(request, directory, &mut seen_ancestors)?;
            self.watch(request, directory, directory_events(), Names { modules: modules.clone(), ..Names::default() })?;
        }
        if sandboxed {
            self.mounts.record_own_mounts(entry);
        }
        // Count the mounts up to now: some may have happened during this call.
        let _ = self.poll_events();
        Ok(request.may_have_changed || before_exec.wall_clock_was_set_back())
    }

    /// Watches the ancestors of a directory's real path, in case one is renamed and another directory takes its name.
    fn watch_ancestors(
        &mut self,
        request: &mut WatchRequest<'_>,
        directory: &Path,
        seen_ancestors: &mut HashSet<PathBuf>,
    ) -> rustix::io::Result<()> {
        let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        seen_ancestors.insert(real.clone());
        for (number, at) in real.ancestors().enumerate() {
            if number > 0 && !seen_ancestors.insert(at.to_owned()) {
                break;
            }
            match self.watch(request, at, ancestor_events(), Names::default()) {
                // A watch needs read permission, but a directory on the path may grant only search permission.
                Ok(()) | Err(rustix::io::Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Watches a directory in which ld.so searches for libraries, and its subdirectories that ld.so searches first.
    fn watch_library_directory(&mut self, request: &mut WatchRequest<'_>, directory: &Path) -> rustix::io::Result<()> {
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
                Names { libraries: true, named: VARIANTS.map(Vec::from).into(), ..Names::default() }
            };
            self.watch(request, &at, directory_events(), names)?;
            let within: Vec<PathBuf> = if is_hwcaps {
                std::fs::read_dir(&at).into_iter().flatten().flatten().map(|one| one.path()).collect()
            } else {
                VARIANTS.map(|name| at.join(name)).into()
            };
            // ld.so uses each name at most once in a path. The depth is bounded because symbolic links may form a
            // loop.
            let within = within.into_iter().filter(|at| depth < MAX_DEPTH && at.is_dir());
            found.extend(within.map(|at| (at, depth + 1)));
        }
        Ok(())
    }

    fn watch(
        &mut self,
        request: &mut WatchRequest<'_>,
        path: &Path,
        flags: WatchFlags,
        names: Names,
    ) -> rustix::io::Result<()> {
        let watch = match add_watch(request.inotify, path, flags) {
            // The file existed a moment ago, so it has just been removed or replaced.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                request.may_have_changed = true;
                return Ok(());
            }
            watch => watch?,
        };
        let fresh = || Watched { entries: HashSet::new(), names: Names::default(), reported_since: Instant::now() };
        let watched = self.watched.entry(watch).or_insert_with(fresh);
        let is_new_entry = watched.entries.insert(request.entry);
        if watched.names.extend(names) || is_new_entry {
            watched.reported_since = Instant::now();
        }
        // Inotify reports only changes after this call. The ctime shows earlier changes.
        request.may_have_changed |=
            watched.reported_since > request.before_exec.monotonic && request.before_exec.precedes_change_of(path);
        self.mounts.record_path(request.entry, path);
        Ok(())
    }

    /// Whether inotify has events. Also records the events of the mount table.
    fn poll_events(&mut self) -> Result<bool, ColdReason> {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let inotify = PollFd::new(self.inotify.get().ok_or(ColdReason::DescriptorTable)?, PollFlags::IN);
        let Some(table) = self.mounts.table() else { return Ok(true) };
        let mut both = [inotify, PollFd::from_borrowed_fd(table, Mounts::poll_flags())];
        poll(&mut both, Some(&AT_ONCE)).map_err(|_| ColdReason::Inotify)?;
        let [inotify_events, mount_events] = both.map(|one| one.revents());
        self.mounts.record_events(mount_events)?;
        Ok(!inotify_events.is_empty())
    }

    /// Returns the entries with changes since they were added, and stops watching them.
    ///
    /// # Errors
    /// The calling thread cannot read the events.
    pub(super) fn take_changed(&mut self) -> Result<HashSet<u64>, ColdReason> {
        let has_events = self.poll_events()?;
        let mut changed = self.mounts.take_changed()?;
        let mut reader = has_events.then(|| Reader::new(self.inotify.as_fd(), &mut self.buffer));
        while let Some(Ok(event)) = reader.as_mut().map(Reader::next) {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend(self.watched.values().flat_map(|watched| &watched.entries));
                continue;
            }
            let Some(Watched { entries, names, .. }) = self.watched.get(&event.wd()) else { continue };
            // An event without a name concerns the watched file or directory itself.
            if event.file_name().is_none_or(|name| names.contain(name.to_bytes())) {
                changed.extend(entries);
            }
        }
        if !changed.is_empty() {
            self.forget(&changed);
        }
        Ok(changed)
    }

    /// Stops watching for these entries.
    pub(super) fn forget(&mut self, removed: &HashSet<u64>) {
        self.mounts.forget(removed);
        let inotify = self.inotify.get();
        self.watched.retain(|&watch, Watched { entries, .. }| {
            entries.retain(|entry| !removed.contains(entry));
            if entries.is_empty() {
                // The call fails with EINVAL if the file is gone, because the kernel has removed its watch.
                let _ = inotify.map(|inotify| remove_watch(inotify, watch));
            }
            !entries.is_empty()
        });
    }
}

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
    fn table(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().map(|table| table.file.as_fd())
    }

    /// The events that the library asks poll(2) for. A mount table is always readable and never
    /// writable. If the application has put another file at the descriptor number, poll(2) almost
    /// certainly reports other events.
    fn poll_flags() -> PollFlags {
        PollFlags::IN | PollFlags::OUT | PollFlags::PRI
    }

    /// Counts a change of the mount table if poll(2) reports one. poll(2) reports each change once.
    ///
    /// # Errors
    /// The descriptor refers to another file.
    fn record_events(&mut self, events: PollFlags) -> Result<(), ColdReason> {
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
    fn record_path(&mut self, entry: u64, path: &Path) {
        let paths = &mut self.entries.entry(entry).or_default().paths;
        if !paths.contains_key(path) {
            paths.insert(path.to_owned(), identity(path));
        }
    }

    /// Records that this entry's processes have a copy of the current mount namespace.
    fn record_own_mounts(&mut self, entry: u64) {
        self.entries.entry(entry).or_default().has_own_mounts = true;
    }

    /// After a change of the mount table, returns the entries that the change may concern. These
    /// are the entries with a path that now leads to another file. They are also all entries whose
    /// processes have their own mount namespace, because their mounts may be out of date.
    ///
    /// # Errors
    /// The calling thread has another mount namespace or root.
    fn take_changed(&mut self) -> Result<HashSet<u64>, ColdReason> {
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

    fn forget(&mut self, removed: &HashSet<u64>) {
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

/// Whether a file is a library, by its name.
fn is_library(name: &[u8]) -> bool {
    name.windows(3).any(|part| part == b".so")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(wall: SystemTime) -> ExecTime {
        ExecTime { wall, monotonic: Instant::now() }
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
    fn detects_a_wall_clock_that_was_set_back() {
        let now = SystemTime::now();
        assert!(moment(now + Duration::from_millis(500)).wall_clock_was_set_back());
        assert!(!moment(now).wall_clock_was_set_back());
        assert!(!moment(now - Duration::from_secs(3600)).wall_clock_was_set_back());
    }
}
