// SPDX-License-Identifier: MIT OR Apache-2.0
//! Immutable views of files: contents that stay as they were, whatever happens to the file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::MutexGuard;

use rustix::fs::{CWD, Mode, OFlags, SeekFrom, fstatfs, ioctl_ficlone, openat, seek, sendfile};
use rustix::io::pread;
use spawnfd_child::Identity;
use spawnfd_sys::Errno;

use crate::error::from_io;
use crate::error::{Error, Result, Stage, errno};
use crate::host::memfd;
use crate::host::numbers::{Known, above_standard};
use crate::host::per_process::PerProcess;
use crate::template::{identify, is_recent};

/// How a snapshot keeps its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// Shares the file's extents in an unnamed file (btrfs, XFS); opened for reading only.
    Reflink,
    /// A copy in memory, sealed against write, grow, shrink, and further seals.
    Memfd,
}

/// A file's contents as they were. The descriptor is the caller's own; it can be read, mapped and executed. It stands at the beginning; those
/// that a cache gives of one version share where they stand, so let them be read by pread(2).
#[derive(Debug)]
pub struct Snapshot {
    fd: Known,
    kind: Kind,
    source: Identity,
}

impl Snapshot {
    /// How it is kept.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the file was.
    pub fn source(&self) -> &Identity {
        &self.source
    }

    /// Its descriptor, compared: for hosts that close numbers which are not theirs.
    ///
    /// # Errors
    /// EBADF: the application has put something else there.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let lost =
            || failed(Errno::EBADF, format!("fstat({}): another file than the snapshot", self.as_fd().as_raw_fd()));
        self.fd.get().map(AsFd::as_fd).ok_or_else(lost)
    }

    /// The same, by another descriptor.
    ///
    /// # Errors
    /// As [`descriptor`](Snapshot::descriptor), and EMFILE.
    fn duplicate(&self) -> Result<Snapshot> {
        let copy = self.descriptor()?.try_clone_to_owned();
        let copy = copy.map_err(|e| failed(from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"))?;
        Ok(Snapshot { fd: Known::of_copy(copy, &self.fd), ..*self })
    }
}

impl AsFd for Snapshot {
    /// Not compared: see [`descriptor`](Snapshot::descriptor).
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
/// A file that changes while it is copied is copied again. Where timestamps are coarse (before Linux 6.13, and on file systems without
/// fine ones) two changes within one tick look like one, and a copy from between them can go unnoticed.
///
/// # Errors
/// EINVAL: no regular file, or one that does not say how long it is (/proc). ESTALE: the file kept changing while it was copied. EFBIG: longer than RLIMIT_FSIZE, where it is copied.
/// EACCES: it is to be copied, and vm.memfd_noexec is 2: what cannot be executed is no snapshot. ENOMEM, ENOSPC, EMFILE. EBADF: not open for reading.
pub fn take(file: impl AsFd) -> Result<Snapshot> {
    let file = file.as_fd();
    // Twice in a row is bad luck, more often is a file being written.
    for _ in 0..4 {
        let source = identify(&file).map_err(|errno| failed(errno, "statx(fd)"))?;
        if !source.is_regular() {
            return Err(failed(Errno::EINVAL, "snapshot(fd): no regular file"));
        }
        // As in /proc.
        if source.size == 0 && pread(file, &mut [0u8], 0).map_err(|e| failed(errno(e), "pread(fd)"))? > 0 {
            return Err(failed(Errno::EINVAL, "snapshot(fd): a file that does not say how long it is"));
        }
        let (fd, kind) = match reflink(file) {
            Some(fd) => (fd, Kind::Reflink),
            None => (copy(file, source.size)?, Kind::Memfd),
        };
        if identify(&file) == Ok(source) {
            return Ok(Snapshot { fd: Known::new(fd), kind, source });
        }
    }
    Err(failed(Errno::ESTALE, "snapshot(fd): the file keeps changing"))
}

/// Takes a snapshot of the file at `path`.
///
/// # Errors
/// As open(2) and [`take`]; one that is no regular file is not waited for.
pub fn open(path: impl AsRef<Path>) -> Result<Snapshot> {
    take(opened(path.as_ref())?)
}

fn opened(path: &Path) -> Result<OwnedFd> {
    // Whoever opens a FIFO waits for its other end.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    openat(CWD, path, flags, Mode::empty()).map(above_standard).map_err(|e| failed(errno(e), format!("open({path:?})")))
}

/// Shares the extents in an unnamed file beside the original. `None` where that cannot be: another kind of file system, a
/// directory the caller may not write to.
fn reflink(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    /// Magic numbers of statfs(2): btrfs, XFS, bcachefs, OCFS2.
    const REFLINKING: [i64; 4] = [0x9123_683e, 0x5846_5342, 0xca45_1a4e, 0x7461_636f];
    if !REFLINKING.contains(&fstatfs(file).ok()?.f_type) {
        return None;
    }
    let path = std::fs::read_link(format!("/proc/thread-self/fd/{}", file.as_raw_fd())).ok()?;
    let directory = path.parent().filter(|directory| directory.is_absolute())?;
    let copy = openat(CWD, directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from(0o500)).ok()?;
    ioctl_ficlone(&copy, file).ok()?;
    // Nobody keeps it open for writing: executing it would be ETXTBSY.
    read_only(&copy).ok()
}

/// A description of its own, which stands at the beginning.
fn read_only(file: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Copies into a sealed memfd, inside the kernel.
fn copy(file: BorrowedFd<'_>, size: u64) -> Result<OwnedFd> {
    let memfd = memfd::create("spawnfd-snapshot", true).map_err(|errno| failed(errno, "memfd_create()"))?;
    // A sendfile beyond RLIMIT_FSIZE says how much it has copied, and sends the signal all the same.
    let set_length = |length| memfd::set_length(&memfd, length).map_err(|errno| failed(errno, "ftruncate()"));
    set_length(size)?;
    let mut offset = 0;
    while offset < size {
        let left = usize::try_from(size - offset).unwrap_or(usize::MAX);
        match sendfile(&memfd, file, Some(&mut offset), left) {
            // Cut short meanwhile: the caller sees the change. Or shorter than it says, as in /sys.
            Ok(0) => {
                set_length(offset)?;
                break;
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(failed(errno(e), "sendfile()")),
        }
    }
    memfd::seal(&memfd, false).map_err(|errno| failed(errno, "fcntl(F_ADD_SEALS)"))?;
    // Without /proc it stays one that could be written, but for the seals.
    let read_only = read_only(&memfd).or_else(|_| seek(&memfd, SeekFrom::Start(0)).map(|_| memfd));
    read_only.map_err(|e| failed(errno(e), "lseek()"))
}

/// Snapshots by the version of the file they are of: device, inode, ctime, mtime, size. The least recently used leaves first.
///
/// A hit costs two fstats and a dup. A file that has changed within the granularity of timestamps is not kept.
#[derive(Debug)]
pub struct SnapshotCache {
    capacity: usize,
    state: PerProcess<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Most recently used last. 64 entries are searched faster than hashed.
    entries: Vec<Snapshot>,
    stats: SnapshotStats,
}

/// What a snapshot cache has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Found.
    pub hits: u64,
    /// Taken.
    pub misses: u64,
    /// Dropped as the file had changed.
    pub stale: u64,
    /// Dropped for room.
    pub evicted: u64,
    /// Held now.
    pub entries: usize,
}

impl SnapshotCache {
    /// How many snapshots a cache holds by default.
    pub const DEFAULT_CAPACITY: usize = 64;

    /// Makes an empty cache for `capacity` snapshots (at least one).
    pub fn new(capacity: usize) -> SnapshotCache {
        SnapshotCache { capacity: capacity.max(1), state: PerProcess::for_reuse(State::default()) }
    }

    /// A snapshot of the file at `path`; the descriptor is the caller's own.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Snapshot> {
        self.get(opened(path.as_ref())?)
    }

    /// A snapshot of an open file.
    ///
    /// # Errors
    /// As [`take`].
    pub fn get(&self, file: impl AsFd) -> Result<Snapshot> {
        let now = identify(&file).map_err(|errno| failed(errno, "statx(fd)"))?;
        let mut state = self.lock();
        if let Some(place) = state.entries.iter().position(|entry| same_file(&entry.source, &now)) {
            let entry = state.entries.remove(place);
            if !same_version(&entry.source, &now) {
                state.stats.stale += 1;
            } else {
                let ours = entry.duplicate();
                // Closed by the application, it is taken anew.
                if !ours.as_ref().is_err_and(|error| error.errno() == Errno::EBADF) {
                    state.entries.push(entry);
                    state.stats.hits += 1;
                    return ours;
                }
            }
        }
        state.stats.misses += 1;
        drop(state);
        // Another change could leave the same timestamps: such a version cannot be told from the next one.
        let doubtful = is_recent(&now);
        let snapshot = take(file)?;
        if doubtful || snapshot.source != now {
            return Ok(snapshot);
        }
        let kept = snapshot.duplicate()?;
        let mut state = self.lock();
        state.entries.retain(|entry| !same_file(&entry.source, &snapshot.source));
        if state.entries.len() >= self.capacity {
            state.entries.remove(0);
            state.stats.evicted += 1;
        }
        state.entries.push(kept);
        Ok(snapshot)
    }

    /// Drops all snapshots; descriptors given out stay good.
    pub fn clear(&self) {
        self.lock().entries.clear();
    }

    /// The counters, and how many snapshots are held.
    pub fn stats(&self) -> SnapshotStats {
        let state = self.lock();
        SnapshotStats { entries: state.entries.len(), ..state.stats }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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

/// Mode and owner are no part of the contents; a change of them shows in ctime all the same.
fn same_version(one: &Identity, other: &Identity) -> bool {
    (one.ctime, one.mtime, one.size) == (other.ctime, other.mtime, other.size)
}
