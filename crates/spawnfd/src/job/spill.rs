// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spill files: a spill file has the whole output of a job whose output is too large to keep in memory.
//!
//! The library creates the file when memory cannot keep all output any longer. The file begins with the output's
//! first byte. The file is an ordinary file with a name, because callers pass its path to other programs.
//!
//! A file must not remain after its owner has died, so the file itself shows whether other processes may remove it.
//! While the result exists, the owner has the file locked. (The kernel releases an flock(2) lock however the owner
//! ends.) The file also has the sticky bit, which has no meaning for a file on Linux. The next job that spills to the
//! directory removes files that have the sticky bit and no lock. To keep a file, the library clears its sticky bit. A
//! pid in the name would be wrong in another pid namespace that shares the directory.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use spawnfd_sys::{Errno, call};

use super::kept::KeptOutput;
use super::order::ArrivalOrder;
use super::sweep::{self, PREFIX, TEMPORARY_BIT};
use crate::error::{Error, Result, Stage, errno};
use crate::host::descriptors::CheckedFd;
use crate::option::Kind;

options! {
    /// An option of a run: also write all output to a file, once the output exceeds what is kept in memory.
    ///
    /// The engine's thread writes the spill files of all non-blocking runs. If the disk does not respond, all these runs
    /// and their timeouts are delayed. By default the file has at most 100 MiB.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::job::Spill;
    /// use spawnfd::{Command, Run};
    /// let run = Run::new().keep(100, 100).spill(Spill::new(1 << 20));
    /// let output = Command::new("seq").arg("1000").run_with(&run)?;
    /// let file = output.spill.as_ref().unwrap().file.as_ref().unwrap();
    /// assert_eq!(std::fs::metadata(file.path())?.len(), 3893);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use = "it has no effect until a run uses it"]
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Spill "spill.";

    /// The largest size of the file. The file does not get later output.
    max_bytes: u64 = 100 << 20, (bytes: u64) => bytes; Kind::Bytes, Output, [Run, Start, Command];
    /// The directory of the file: by default $TMPDIR, or else `/tmp`.
    dir: Option<PathBuf> = None, (dir: impl Into<PathBuf>) => Some(dir.into());
        Kind::Path, Output, [Run, Start, Command];
    /// Whether the file stays when the result is dropped.
    persist: bool = false; Kind::Flag, Output, [Run, Start, Command];
}

impl Spill {
    /// A file of at most `max_bytes`, in $TMPDIR or in `/tmp`. If the output is longer, the file has its beginning. The
    /// library removes the file when the result is dropped.
    pub fn new(max_bytes: u64) -> Spill {
        Spill { max_bytes, ..Spill::default() }
    }
}

/// How writing the file ended.
///
/// # Examples
/// ```
/// use spawnfd::error::Errno;
/// use spawnfd::job::{Spill, SpillEnd};
/// use spawnfd::{Command, Run};
/// let run = Run::new().keep(100, 100).spill(Spill::new(1 << 20).dir("/nonexistent"));
/// let output = Command::new("seq").arg("1000").run_with(&run)?;
/// assert_eq!(output.spill.as_ref().unwrap().end, SpillEnd::Failed(Errno::ENOENT));
/// assert!(output.ok(), "the program does not notice");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum SpillEnd {
    /// The file has all output.
    Whole,
    /// The file has reached its largest size, and the output is longer.
    Capped,
    /// There is no file: it could not be created, or another process has removed it (ENOENT). Or the file is
    /// incomplete: the disk is full, a limit is reached, or permission is missing.
    Failed(#[cfg_attr(feature = "serde", serde(with = "super::stored::errno"))] Errno),
}

/// The outcome of a [`Spill`].
///
/// # Examples
/// ```
/// use spawnfd::job::{Spill, SpillEnd};
/// use spawnfd::{Command, Run};
/// let run = Run::new().keep(100, 100).spill(Spill::new(2000)); // at most 2,000 bytes
/// let output = Command::new("seq").arg("1000").run_with(&run)?;
/// let spilled = output.spill.as_ref().unwrap();
/// assert_eq!((spilled.bytes, spilled.end), (2000, SpillEnd::Capped));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Spilled {
    /// The file, with both streams' bytes in order of arrival, from the first byte on; `None` if there is no file.
    #[cfg_attr(feature = "serde", serde(with = "super::stored::spill_file"))]
    pub file: Option<SpillFile>,
    /// The length of the file.
    pub bytes: u64,
    /// Why the library stopped writing.
    pub end: SpillEnd,
}

/// A handle of a spill file. The process that created the file removes it when the last handle is dropped. The
/// handles share one descriptor.
///
/// # Examples
/// ```
/// use spawnfd::job::Spill;
/// use spawnfd::{Command, Run};
/// let run = Run::new().keep(100, 100).spill(Spill::new(1 << 20));
/// let output = Command::new("seq").arg("1000").run_with(&run)?;
/// let file = output.spill.and_then(|spilled| spilled.file).unwrap();
/// let path = file.path().to_owned();
/// file.persist()?; // without this call, the drop removes the file
/// drop(file);
/// assert_eq!(std::fs::read(&path)?.len(), 3893);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping the last handle removes the file, unless it persists"]
#[derive(Clone, Debug)]
pub struct SpillFile(Arc<NamedFile>);

#[derive(Debug)]
struct NamedFile {
    path: PathBuf,
    /// The file, open for writing and locked. `None`: the file belongs to another process.
    file: Option<CheckedFd>,
    /// The process that removes the file. A copy of this handle in a forked process must not remove it.
    owner: u32,
    persisted: AtomicBool,
}

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

impl SpillFile {
    fn create(dir: &Path) -> std::result::Result<SpillFile, Errno> {
        sweep::sweep_once(dir);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut attempts = 0;
        let (path, file) = loop {
            // `RandomState` has random keys. A forked process has a copy of its parent's keys and may generate the
            // same names, so try several.
            let path = dir.join(format!("{PREFIX}{:016x}", RandomState::new().build_hasher().finish()));
            match rustix::fs::open(&path, flags, PRIVATE) {
                Ok(file) => break (path, CheckedFd::new(file)),
                Err(rustix::io::Errno::EXIST) if attempts < 64 => attempts += 1,
                Err(e) => return Err(errno(e)),
            }
        };
        // Lock the file before setting the sticky bit, so that another process never takes it for abandoned. If the
        // file system has no locks, the bit is not set, and no sweep removes the file.
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let _ = fchmod(&file, if locked { PRIVATE | TEMPORARY_BIT } else { PRIVATE });
        let named = NamedFile { path, file: Some(file), owner: std::process::id(), persisted: AtomicBool::new(false) };
        Ok(SpillFile(Arc::new(named)))
    }

    /// Creates the handle of a file that another process has created and will remove.
    #[cfg(feature = "serde")]
    pub(super) fn of_other_process(path: PathBuf) -> SpillFile {
        SpillFile(Arc::new(NamedFile { path, file: None, owner: 0, persisted: AtomicBool::new(true) }))
    }

    /// Whether the path still names this file.
    fn is_at_path(&self) -> bool {
        self.0.file.as_ref().is_some_and(|file| sweep::names(&self.0.path, file.identity()))
    }

    /// The path of the file. Its mode is 0600.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Keeps the file when the last handle is dropped.
    ///
    /// # Errors
    /// The file system refuses to clear the mode bit, so a later sweep would remove the file. EBADF: the application
    /// has reused the descriptor number of the file.
    pub fn persist(&self) -> Result<()> {
        let Some(file) = &self.0.file else { return Ok(()) };
        file.get()
            .ok_or(Errno::EBADF)
            .and_then(|file| fchmod(file, PRIVATE).map_err(errno))
            .map_err(|errno| Error::new(Stage::Capture, errno, format!("fchmod({:?}, 0600)", self.path())))?;
        self.0.persisted.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        let ours = !*self.persisted.get_mut() && std::process::id() == self.owner;
        if let Some(file) = self.file.as_ref().filter(|_| ours) {
            sweep::remove(&self.path, file.identity());
        }
    }
}

/// The spill file of one job and its state.
#[derive(Debug)]
pub(super) struct SpillWriter {
    dir: PathBuf,
    max_bytes: u64,
    persist: bool,
    state: SpillState,
}

#[derive(Debug)]
enum SpillState {
    /// Memory still holds all output. No file exists yet.
    Waiting,
    Writing(SpillFile, u64),
    Ended(Spilled),
}

/// Returns the directory, or /tmp if its path is empty.
fn or_tmp(dir: PathBuf) -> PathBuf {
    if dir.as_os_str().is_empty() { PathBuf::from("/tmp") } else { dir }
}

impl SpillWriter {
    pub(super) fn new(spill: &Spill) -> SpillWriter {
        // Resolve the directory now, in the caller's working directory and environment.
        let dir = spill.dir.clone().unwrap_or_else(|| or_tmp(std::env::temp_dir()));
        // `absolute` fails for an empty path. Such a path stays, and `append` then creates no file.
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        SpillWriter { dir, max_bytes: spill.max_bytes, persist: spill.persist, state: SpillState::Waiting }
    }

    /// Takes bytes that are about to be added to `streams`. `kept`: the streams still keep all output in memory after
    /// these bytes are added. `order`: the order in which the bytes of `streams` arrived, if memory still holds all
    /// output.
    pub(super) fn append(&mut self, bytes: &[u8], kept: bool, streams: &[KeptOutput; 2], order: Option<&ArrivalOrder>) {
        if let SpillState::Waiting = self.state {
            if kept {
                return;
            }
            let there = Some(&self.dir).filter(|dir| !dir.as_os_str().is_empty()).ok_or(Errno::ENOENT);
            match there.and_then(|dir| SpillFile::create(dir)) {
                Ok(file) => self.state = SpillState::Writing(file, 0),
                Err(errno) => {
                    self.state = SpillState::Ended(Spilled { file: None, bytes: 0, end: SpillEnd::Failed(errno) });
                }
            }
            let mut parts = streams.each_ref().map(KeptOutput::parts);
            for (stream, length) in order.into_iter().flat_map(ArrivalOrder::runs) {
                self.write_run(&mut parts[stream.index()], length as usize);
            }
        }
        self.write(bytes);
    }

    /// Writes the first `length` bytes of the concatenated parts to the file, and removes these bytes from the parts.
    fn write_run(&mut self, parts: &mut [&[u8]; 3], mut length: usize) {
        for part in parts {
            let (now, later) = part.split_at(length.min(part.len()));
            self.write(now);
            *part = later;
            length -= now.len();
        }
    }

    /// Appends to the file, unless writing has ended.
    fn write(&mut self, bytes: &[u8]) {
        let SpillState::Writing(file, length) = &mut self.state else { return };
        let Some(open) = &file.0.file else { return };
        let space = self.max_bytes - *length;
        let capped = bytes.len() as u64 > space;
        let mut left = if capped { &bytes[..space as usize] } else { bytes };
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

    /// Returns the outcome, or `None` if no file was needed.
    pub(super) fn finish(self) -> Option<Spilled> {
        let mut spilled = match self.state {
            SpillState::Waiting => return None,
            SpillState::Writing(file, bytes) => Spilled { file: Some(file), bytes, end: SpillEnd::Whole },
            SpillState::Ended(spilled) => spilled,
        };
        if spilled.file.as_ref().is_some_and(|file| !file.is_at_path()) {
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
