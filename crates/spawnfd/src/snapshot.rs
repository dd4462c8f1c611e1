// SPDX-License-Identifier: MIT OR Apache-2.0
//! Immutable copies of files: the contents stay the same whatever happens to the file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::MutexGuard;

use rustix::fs::{CWD, Mode, OFlags, SeekFrom, fstatfs, ioctl_ficlone, openat, seek, sendfile};
use rustix::io::pread;
use spawnfd_child::Identity;
use spawnfd_sys::Errno;

use crate::error::from_io;
use crate::error::{Error, Result, Stage, errno};
use crate::host::descriptors::{CheckedFd, above_standard};
use crate::host::memfd;
use crate::host::per_process::PerProcess;
use crate::template::{identify, is_recent};

named! {
    /// How a snapshot keeps its contents.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::snapshot::{self, Kind};
    /// match snapshot::open("/bin/echo")?.kind() {
    ///     Kind::Reflink => println!("the copy shares the file's blocks on disk"),
    ///     kind => println!("the copy is in memory ({kind})"),
    /// }
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    #[non_exhaustive]
    pub enum Kind {
        /// An unnamed file that shares the original's extents (btrfs, XFS), opened for reading only.
        Reflink = "reflink",
        /// A copy in memory, sealed against write, grow, shrink, and further seals.
        Memfd = "memfd",
    }
}

/// A file's contents at one time. The descriptor belongs to the caller, who can read, map and
/// execute it. Its file offset is 0. All snapshots that a `SnapshotCache` returns for one version
/// of a file share their offset, so read them with pread(2).
///
/// # Examples
/// ```
/// use spawnfd::{Template, snapshot};
/// // The program stays the same, even if a package upgrade replaces the file.
/// let template = Template::from_descriptor(snapshot::open("/bin/echo")?)?;
/// assert_eq!(template.command().arg("word").run()?.stdout_text(), "word\n");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "dropping the snapshot closes it"]
#[derive(Debug)]
pub struct Snapshot {
    fd: CheckedFd,
    kind: Kind,
    source: Identity,
}

impl Snapshot {
    /// How the snapshot keeps its contents.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The identity of the original file at the time of the snapshot.
    pub fn source(&self) -> &Identity {
        &self.source
    }

    /// The descriptor, after a check that its number still refers to the snapshot. Use this in a host in which other
    /// code may close the library's descriptors.
    ///
    /// # Errors
    /// EBADF: the application has put another file at the number.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let closed =
            || failed(Errno::EBADF, format!("fstat({}): another file than the snapshot", self.as_fd().as_raw_fd()));
        self.fd.get().map(AsFd::as_fd).ok_or_else(closed)
    }

    /// Returns the same snapshot with a duplicate of the descriptor.
    ///
    /// # Errors
    /// The errors of [`descriptor`](Snapshot::descriptor), and EMFILE.
    fn duplicate(&self) -> Result<Snapshot> {
        let copy = self.descriptor()?.try_clone_to_owned();
        let copy = copy.map_err(|e| failed(from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"))?;
        Ok(Snapshot { fd: CheckedFd::from_duplicate(copy, &self.fd), ..*self })
    }
}

impl AsFd for Snapshot {
    /// Returns the descriptor without a check; see [`descriptor`](Snapshot::descriptor).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Snapshot> for OwnedFd {
    fn from(snapshot: Snapshot) -> OwnedFd {
        snapshot.fd.into()
    }
}

fn failed(errno: Errno, call: impl Into<String>) -> Error {
    Error::new(Stage::Snapshot, errno, call)
}

/// Takes a snapshot of an open regular file (opened for reading).
///
/// If the file changes during the copy, it is copied again. With coarse timestamps (before Linux 6.13, and on file
/// systems without fine ones), two changes within one clock tick look like one. If one change comes just before the
/// copy and another during the copy, the second can go unnoticed.
///
/// # Errors
/// - EINVAL: not a regular file, or one that does not report its size (/proc).
/// - ESTALE: the file changed during each attempt to copy it.
/// - EFBIG: the copy would exceed RLIMIT_FSIZE.
/// - EACCES: a copy is needed but vm.memfd_noexec is 2, so it could not be executed.
/// - EBADF: the descriptor is not open for reading.
/// - ENOMEM, ENOSPC, EMFILE.
pub fn take(file: impl AsFd) -> Result<Snapshot> {
    let file = file.as_fd();
    // One or two attempts may fail because the file changes by chance. If it changes in all four, a program keeps
    // writing it.
    for _ in 0..4 {
        let source = identify(&file).map_err(|errno| failed(errno, "statx(fd)"))?;
        if !source.is_regular() {
            return Err(Error::refused(Stage::Snapshot, Errno::EINVAL, "snapshot(fd): not a regular file"));
        }
        // Files in /proc report size 0.
        if source.size == 0 && pread(file, &mut [0u8], 0).map_err(|e| failed(errno(e), "pread(fd)"))? > 0 {
            return Err(Error::refused(
                Stage::Snapshot,
                Errno::EINVAL,
                "snapshot(fd): the file reports size 0 but has contents",
            ));
        }
        let (fd, kind) = match reflink(file) {
            Some(fd) => (fd, Kind::Reflink),
            None => (copy(file, source.size)?, Kind::Memfd),
        };
        if identify(&file) == Ok(source) {
            return Ok(Snapshot { fd: CheckedFd::new(fd), kind, source });
        }
    }
    Err(failed(Errno::ESTALE, "snapshot(fd): the file keeps changing"))
}

/// Takes a snapshot of the file at `path`.
///
/// # Errors
/// The errors of open(2) and [`take`]. The call does not block on a FIFO or another special file.
pub fn open(path: impl AsRef<Path>) -> Result<Snapshot> {
    take(open_for_reading(path.as_ref())?)
}

fn open_for_reading(path: &Path) -> Result<OwnedFd> {
    // Without O_NONBLOCK, opening a FIFO blocks until its other end is open.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    openat(CWD, path, flags, Mode::empty()).map(above_standard).map_err(|e| failed(errno(e), format!("open({path:?})")))
}

/// Creates an unnamed file in the same directory that shares the file's extents. `None` if that is
/// impossible: the file system has no reflinks, or the caller may not write to the directory.
fn reflink(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    /// The magic numbers that statfs(2) returns for btrfs, XFS, bcachefs and OCFS2.
    const REFLINK_FILE_SYSTEMS: [i64; 4] = [0x9123_683e, 0x5846_5342, 0xca45_1a4e, 0x7461_636f];
    if !REFLINK_FILE_SYSTEMS.contains(&fstatfs(file).ok()?.f_type) {
        return None;
    }
    let path = std::fs::read_link(format!("/proc/thread-self/fd/{}", file.as_raw_fd())).ok()?;
    let directory = path.parent().filter(|directory| directory.is_absolute())?;
    let copy = openat(CWD, directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from(0o500)).ok()?;
    ioctl_ficlone(&copy, file).ok()?;
    // Reopen the file for reading only, because exec of a file that is open for writing fails with
    // ETXTBSY.
    read_only(&copy).ok()
}

/// Opens a new read-only file description, positioned at the beginning.
fn read_only(file: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Copies the file into a sealed memfd, inside the kernel.
fn copy(file: BorrowedFd<'_>, size: u64) -> Result<OwnedFd> {
    let memfd = memfd::create("spawnfd-snapshot", true).map_err(|errno| failed(errno, "memfd_create()"))?;
    // Set the length first: a sendfile beyond RLIMIT_FSIZE sends SIGXFSZ even if it reports a partial copy.
    let set_length = |length| memfd::set_length(&memfd, length).map_err(|errno| failed(errno, "ftruncate()"));
    set_length(size)?;
    let mut offset = 0;
    while offset < size {
        let remaining = usize::try_from(size - offset).unwrap_or(usize::MAX);
        match sendfile(&memfd, file, Some(&mut offset), remaining) {
            // The copy ended early. Either another process truncated the file during the copy,
            // which `take` detects. Or the file is shorter than its reported size, as in /sys.
            Ok(0) => {
                set_length(offset)?;
                break;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(failed(errno(e), "sendfile()")),
        }
    }
    memfd::seal(&memfd, false).map_err(|errno| failed(errno, "fcntl(F_ADD_SEALS)"))?;
    // Without /proc the descriptor stays open for writing, but the seals prevent writes.
    let read_only = read_only(&memfd).or_else(|_| seek(&memfd, SeekFrom::Start(0)).map(|_| memfd));
    read_only.map_err(|e| failed(errno(e), "lseek()"))
}

/// A bounded set of snapshots by the file's version: device, inode, ctime, mtime, size. The cache drops the least
/// recently used snapshot first.
///
/// A hit costs two fstats and a dup. The cache does not keep a file that changed within the granularity of
/// timestamps.
///
/// # Examples
/// ```
/// use spawnfd::snapshot::SnapshotCache;
/// let cache = SnapshotCache::new(16);
/// for _ in 0..2 {
///     cache.open("/bin/echo")?; // the second call copies nothing
/// }
/// assert_eq!(cache.stats().hits, 1);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Debug)]
pub struct SnapshotCache {
    capacity: usize,
    state: PerProcess<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    /// The snapshots, the most recently used last. A linear search of 64 entries is faster than
    /// hashing.
    entries: Vec<Snapshot>,
    stats: SnapshotStats,
}

/// The counters of a snapshot cache.
///
/// # Examples
/// ```
/// let cache = spawnfd::snapshot::SnapshotCache::new(1);
/// for program in ["/bin/echo", "/bin/true"] {
///     cache.open(program)?;
/// }
/// let stats = cache.stats();
/// assert_eq!((stats.misses, stats.evicted, stats.entries), (2, 1, 1));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "the counters are the only effect of the call"]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Snapshots found in the cache.
    pub hits: u64,
    /// Snapshots taken because the cache did not have them.
    pub misses: u64,
    /// Snapshots dropped because the file had changed.
    pub stale: u64,
    /// Snapshots dropped because the cache was full.
    pub evicted: u64,
    /// Snapshots in the cache now.
    pub entries: usize,
}

impl SnapshotCache {
    /// The default capacity of a cache.
    pub const DEFAULT_CAPACITY: usize = 64;

    /// Creates an empty cache for `capacity` snapshots (at least one).
    pub fn new(capacity: usize) -> SnapshotCache {
        SnapshotCache { capacity: capacity.max(1), state: PerProcess::for_reuse(CacheState::default()) }
    }

    /// Returns a snapshot of the file at `path`. The descriptor is the caller's own.
    ///
    /// # Errors
    /// The errors of [`open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Snapshot> {
        self.get(open_for_reading(path.as_ref())?)
    }

    /// Returns a snapshot of an open file.
    ///
    /// # Errors
    /// The errors of [`take`].
    pub fn get(&self, file: impl AsFd) -> Result<Snapshot> {
        let now = identify(&file).map_err(|errno| failed(errno, "statx(fd)"))?;
        let mut state = self.lock();
        if let Some(index) = state.entries.iter().position(|entry| same_file(&entry.source, &now)) {
            let entry = state.entries.remove(index);
            if !same_version(&entry.source, &now) {
                state.stats.stale += 1;
            } else {
                let copy_of_entry = entry.duplicate();
                // If the application has closed the descriptor, take a new snapshot.
                if !copy_of_entry.as_ref().is_err_and(|error| error.errno() == Errno::EBADF) {
                    state.entries.push(entry);
                    state.stats.hits += 1;
                    return copy_of_entry;
                }
            }
        }
        state.stats.misses += 1;
        drop(state);
        // Do not cache a version that has just changed: another change could leave the same timestamps.
        let changed_recently = is_recent(&now);
        let snapshot = take(file)?;
        if changed_recently || snapshot.source != now {
            return Ok(snapshot);
        }
        let cached = snapshot.duplicate()?;
        let mut state = self.lock();
        state.entries.retain(|entry| !same_file(&entry.source, &snapshot.source));
        if state.entries.len() >= self.capacity {
            drop(state.entries.remove(0));
            state.stats.evicted += 1;
        }
        state.entries.push(cached);
        Ok(snapshot)
    }

    /// Drops all snapshots. Descriptors that callers already have stay valid.
    pub fn clear(&self) {
        self.lock().entries.clear();
    }

    /// The counters, and the number of snapshots in the cache.
    pub fn stats(&self) -> SnapshotStats {
        let state = self.lock();
        SnapshotStats { entries: state.entries.len(), ..state.stats }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock()
    }
}

impl Default for SnapshotCache {
    fn default() -> SnapshotCache {
        SnapshotCache::new(SnapshotCache::DEFAULT_CAPACITY)
    }
}

fn same_file(one: &Identity, other: &Identity) -> bool {
    (one.device, one.inode) == (other.device, other.inode)
}

/// Whether both identities are of one version of the file. A change of mode or owner also changes
/// ctime, so the function does not compare them separately.
fn same_version(one: &Identity, other: &Identity) -> bool {
    (one.ctime, one.mtime, one.size) == (other.ctime, other.mtime, other.size)
}
