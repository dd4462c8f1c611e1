// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole output of a job in a file, for what is too much to keep in memory.
//!
//! The file is made with the first byte that is not kept, and begins with the output's first byte. It is an ordinary file with a
//! name, as it is to be handed to other programs by its path. So that the name does not outlive its owner it says by itself
//! whether it may go: while the result lives the file is locked (flock, which ends with the owner however it ends), and it has
//! the sticky bit, which on Linux means nothing for a file. One that is marked and not locked is swept by the next job that
//! spills there; one to be kept loses the mark. A pid in the name would lie to another pid namespace that shares the directory.

use std::fs::symlink_metadata;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use spawnfd_sys::{Errno, call};

use super::kept::Kept;
use super::record::Stream;
use super::sweep;
use crate::error::{Error, Result, Stage, errno};
use crate::host::numbers::Known;

/// That all output goes into a file, too, once it is more than is kept.
///
/// Of a run that does not block it is written by the thread that serves all of those: on a disk that does not answer they all wait, and so
/// do their timeouts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spill {
    /// The file's greatest length in bytes; it then holds the beginning of the output.
    pub max_bytes: u64,
    /// Where to make the file; `None`: in $TMPDIR, else `/tmp`.
    pub dir: Option<PathBuf>,
    /// The file stays when the result is dropped, as if [`persist`](SpillFile::persist) had been called.
    pub persist: bool,
}

impl Spill {
    /// Into a file in $TMPDIR of at most `max_bytes`, removed with the result.
    pub fn new(max_bytes: u64) -> Spill {
        Spill { max_bytes, dir: None, persist: false }
    }

    /// Makes the file in this directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Spill {
        self.dir = Some(dir.into());
        self
    }

    /// Leaves the file when the result is dropped.
    pub fn persist(mut self) -> Spill {
        self.persist = true;
        self
    }
}

/// How writing the file ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpillEnd {
    /// It holds all output.
    Whole,
    /// It has the greatest length allowed, and the output was longer.
    Capped,
    /// It could not be made, or somebody has taken it away (ENOENT): then there is none; or not be written to its end: a full disk, a limit,
    /// no permission.
    Failed(Errno),
}

/// What became of a [`Spill`].
#[derive(Clone, Debug)]
pub struct Spilled {
    /// The file, with both streams' bytes in order of arrival, from the first one on; `None` if there is none.
    pub file: Option<SpillFile>,
    /// Its length.
    pub bytes: u64,
    /// Why it is not longer.
    pub end: SpillEnd,
}

/// A file that goes with the last handle to it, in the process that made it. Takes one descriptor.
#[derive(Clone, Debug)]
pub struct SpillFile(Arc<NamedFile>);

#[derive(Debug)]
struct NamedFile {
    path: PathBuf,
    /// Open for writing, and locked; `None`: another process's.
    file: Option<Known>,
    /// The process that removes it: a fork's copy of this must not.
    owner: u32,
    stays: AtomicBool,
}

/// What the files' names begin with.
pub(super) const PREFIX: &str = "spawnfd-spill-";

/// Its file goes when its result, or the owner, is gone.
pub(super) const MARK: Mode = Mode::SVTX;

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

impl SpillFile {
    fn create(dir: &Path) -> std::result::Result<SpillFile, Errno> {
        sweep::once(dir);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut attempts = 0;
        let (path, file) = loop {
            // Random keys; in a fork's copy the parent's, hence the attempts.
            let path = dir.join(format!("{PREFIX}{:016x}", RandomState::new().build_hasher().finish()));
            match rustix::fs::open(&path, flags, PRIVATE) {
                Ok(file) => break (path, Known::new(file)),
                Err(rustix::io::Errno::EXIST) if attempts < 64 => attempts += 1,
                Err(e) => return Err(errno(e)),
            }
        };
        // Locked before it is marked, so that at no moment it looks abandoned. Without locks here it is never swept.
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let _ = fchmod(&file, if locked { PRIVATE | MARK } else { PRIVATE });
        let held = NamedFile { path, file: Some(file), owner: std::process::id(), stays: AtomicBool::new(false) };
        Ok(SpillFile(Arc::new(held)))
    }

    /// Names a file that another process made, and removes.
    #[doc(hidden)]
    pub fn of_another(path: PathBuf) -> SpillFile {
        SpillFile(Arc::new(NamedFile { path, file: None, owner: 0, stays: AtomicBool::new(true) }))
    }

    /// Whether it can be found by its path.
    fn is_there(&self) -> bool {
        let identity = self.0.file.as_ref().map(Known::identity);
        symlink_metadata(&self.0.path).is_ok_and(|named| Some((named.dev(), named.ino())) == identity)
    }

    /// Where the file is. Its mode is 0600.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Leaves the file where it is when the last handle is dropped.
    ///
    /// # Errors
    /// The file system refuses the change of mode by which a later sweep knows. EBADF: the application has put something else at its number.
    pub fn persist(&self) -> Result<()> {
        let Some(file) = &self.0.file else { return Ok(()) };
        file.get()
            .ok_or(Errno::EBADF)
            .and_then(|file| fchmod(file, PRIVATE).map_err(errno))
            .map_err(|errno| Error::new(Stage::Capture, errno, format!("fchmod({:?}, 0600)", self.path())))?;
        self.0.stays.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        let ours = !*self.stays.get_mut() && std::process::id() == self.owner;
        if let Some(file) = self.file.as_ref().filter(|_| ours) {
            sweep::remove(&self.path, file.identity());
        }
    }
}

/// The spilling of one job.
#[derive(Debug)]
pub(super) struct Spilling {
    dir: PathBuf,
    max_bytes: u64,
    persist: bool,
    state: SpillState,
}

#[derive(Debug)]
enum SpillState {
    /// All is kept so far.
    Waiting(Order),
    Writing(SpillFile, u64),
    Ended(Spilled),
}

/// In which order the kept bytes of both streams came: run lengths, of standard output first and then in turn.
#[derive(Debug)]
struct Order {
    runs: Vec<usize>,
    turn: Stream,
    run: usize,
}

impl Order {
    fn note(&mut self, stream: Stream, length: usize) {
        if stream != self.turn && length > 0 {
            self.runs.push(std::mem::take(&mut self.run));
            self.turn = stream;
        }
        self.run += length;
    }
}

/// Where files are made that nobody says a place for: what $TMPDIR names, unless that is empty.
fn temporary(dir: PathBuf) -> PathBuf {
    if dir.as_os_str().is_empty() { PathBuf::from("/tmp") } else { dir }
}

impl Spilling {
    pub(super) fn new(spill: &Spill) -> Spilling {
        // Settled here, where the caller's working directory and environment are.
        let dir = spill.dir.clone().unwrap_or_else(|| temporary(std::env::temp_dir()));
        // Of an empty one there is no such thing, and nothing is made there.
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        let order = Order { runs: Vec::new(), turn: Stream::Stdout, run: 0 };
        Spilling { dir, max_bytes: spill.max_bytes, persist: spill.persist, state: SpillState::Waiting(order) }
    }

    /// Takes what is about to be added to `streams`; `kept`: with this they still keep everything.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8], kept: bool, streams: &[Kept; 2]) {
        if let SpillState::Waiting(order) = &mut self.state {
            if kept {
                order.note(stream, bytes.len());
                return;
            }
            let runs = std::mem::take(&mut order.runs).into_iter().chain([order.run]);
            let there = Some(&self.dir).filter(|dir| !dir.as_os_str().is_empty()).ok_or(Errno::ENOENT);
            match there.and_then(|dir| SpillFile::create(dir)) {
                Ok(file) => self.state = SpillState::Writing(file, 0),
                Err(errno) => {
                    self.state = SpillState::Ended(Spilled { file: None, bytes: 0, end: SpillEnd::Failed(errno) });
                }
            }
            let mut parts = streams.each_ref().map(Kept::parts);
            for (run, stream) in runs.zip(Stream::ALL.into_iter().cycle()) {
                self.write_run(&mut parts[stream.index()], run);
            }
        }
        self.write(bytes);
    }

    /// Writes the first `length` bytes of all parts together, and takes them off.
    fn write_run(&mut self, parts: &mut [&[u8]; 3], mut length: usize) {
        for part in parts {
            let (now, later) = part.split_at(length.min(part.len()));
            self.write(now);
            *part = later;
            length -= now.len();
        }
    }

    /// Appends to the file, unless that has ended.
    fn write(&mut self, bytes: &[u8]) {
        let SpillState::Writing(file, length) = &mut self.state else { return };
        let Some(open) = &file.0.file else { return };
        let room = self.max_bytes - *length;
        let capped = bytes.len() as u64 > room;
        let mut left = if capped { &bytes[..room as usize] } else { bytes };
        let mut end = capped.then_some(SpillEnd::Capped);
        while !left.is_empty() {
            let there = open.get().ok_or(Errno::EBADF);
            match there.and_then(|open| call::write_without_signal(open.as_raw_fd(), left)) {
                Ok(written) => {
                    *length += written as u64;
                    left = &left[written..];
                }
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    end = Some(SpillEnd::Failed(errno));
                    break;
                }
            }
        }
        if let Some(end) = end {
            self.state = SpillState::Ended(Spilled { file: Some(file.clone()), bytes: *length, end });
        }
    }

    /// What became of it; `None` if there was no need of a file.
    pub(super) fn finish(self) -> Option<Spilled> {
        let mut spilled = match self.state {
            SpillState::Waiting(_) => return None,
            SpillState::Writing(file, bytes) => Spilled { file: Some(file), bytes, end: SpillEnd::Whole },
            SpillState::Ended(spilled) => spilled,
        };
        if spilled.file.as_ref().is_some_and(|file| !file.is_there()) {
            spilled = Spilled { file: None, bytes: 0, end: SpillEnd::Failed(Errno::ENOENT) };
        }
        if let (true, Some(file)) = (self.persist, &spilled.file)
            && let Err(error) = file.persist()
        {
            spilled.end = SpillEnd::Failed(error.errno());
        }
        Some(spilled)
    }
}

#[cfg(test)]
mod tests;
