// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that a template has recorded. If the file changed just before its recording, another change could leave the
//! same timestamps, so this module also compares the contents.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::time::{ClockId, clock_gettime};
use spawnfd_child::Identity;
use spawnfd_sys::{Errno, call};

use super::change;
use crate::error::{self, Error, ErrorKind, Result, Stage, errno, of_path, shown_c};
use crate::host::descriptors::CheckedFd;
use crate::host::features;
use crate::host::memfd;

/// A file as it was when a template recorded it.
#[derive(Debug)]
pub(crate) struct RecordedFile {
    pub(crate) path: CString,
    pub(crate) identity: Identity,
    /// Keeps the inode in use, so that its number cannot be reused for another file.
    pub(crate) file: CheckedFd,
    racily_clean: Option<RacilyClean>,
}

/// The contents of a file that changed so shortly before its recording that another change could leave the same
/// timestamps.
///
/// Git calls such an index entry racily clean, and compares contents. This library compares contents until a change
/// would give the file later timestamps.
#[derive(Debug)]
struct RacilyClean {
    must_compare: AtomicBool,
    /// A random key for this recording. An attacker does not know the key, so the attacker cannot prepare contents
    /// with the same hash. Other contents have the same hash with a probability of 2^-64.
    key: RandomState,
    hash: u64,
}

impl RecordedFile {
    /// Opens and records the file that `path` names. Follows symbolic links, as exec does.
    pub(crate) fn open(path: &CStr) -> Result<RecordedFile> {
        let failed = |errno| {
            let message = of_path("program", path, errno)
                .unwrap_or_else(|| format!("cannot open {}: {}", shown_c(path), error::reason(errno)));
            Error::new(Stage::Template, errno, format!("open({path:?})")).saying(message)
        };
        let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|e| failed(errno(e)))?;
        RecordedFile::of(path.to_owned(), CheckedFd::new_path_fd(file))
    }

    /// Records an open file. `path` may be empty.
    pub(crate) fn of(path: CString, file: CheckedFd) -> Result<RecordedFile> {
        let identity =
            identify(&file).map_err(|errno| Error::new(Stage::Template, errno, format!("statx({path:?})")))?;
        let mut recorded = RecordedFile { path, identity, file, racily_clean: None };
        // Exec accepts only regular files. Reading another kind of file could block forever, or consume the file's
        // data.
        if identity.is_regular() && is_recent(&identity) && !memfd::is_immutable(&recorded.file) {
            let key = RandomState::new();
            match recorded.hash(&key) {
                Ok(hash) => {
                    recorded.racily_clean = Some(RacilyClean { must_compare: true.into(), key, hash });
                    // The hashed contents may be newer than the recorded identity, so identify the file again.
                    let now = identify(&recorded.file);
                    if now != Ok(recorded.identity) {
                        let call = format!("statx({:?})", recorded.path);
                        let message = format!("{} changed while the template was created", recorded.shown());
                        return Err(Error::new(Stage::Template, Errno::ESTALE, call).saying(message));
                    }
                }
                // The file is executable but not readable, so wait until timestamps show a change.
                Err(_) => std::thread::sleep(granularity(&identity)),
            }
        }
        Ok(recorded)
    }

    /// Checks that the contents are still the recorded ones, as long as timestamps might not show a change.
    ///
    /// The child checks the timestamps.
    pub(crate) fn check_contents(&self) -> Result<()> {
        let racily_clean = self.racily_clean.as_ref().filter(|recorded| recorded.must_compare.load(Ordering::Acquire));
        let Some(recorded) = racily_clean else { return Ok(()) };
        let is_settled = !is_recent(&self.identity);
        let failed = |errno| {
            let message = match errno {
                Errno::ESTALE => self.described_change(),
                errno => format!("cannot compare {} with its template: {}", self.shown(), error::reason(errno)),
            };
            Error::new(Stage::Revalidate, errno, format!("compare({:?})", self.path)).saying(message)
        };
        let hash = self.hash(&recorded.key).map_err(|error| match failed(error::from_io(&error)) {
            // An error such as EMFILE says nothing about the file, so do not report the file as changed.
            exhausted if exhausted.kind() == ErrorKind::Exhausted => exhausted,
            _ => failed(Errno::ESTALE),
        })?;
        if hash != recorded.hash {
            return Err(failed(Errno::ESTALE));
        }
        if is_settled {
            recorded.must_compare.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Opens the file for reading through its descriptor. Without /proc, or if the application has put another file
    /// at the descriptor's number, opens the path instead. The file must still be the recorded one.
    pub(crate) fn reopen(&self) -> std::io::Result<File> {
        // O_NONBLOCK keeps this call from blocking on a FIFO. A FIFO may have replaced the file at
        // the path, or the application may have put one at the descriptor's number.
        let open = |path: &Path| File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
        let only = |file: File, is_recorded: bool| match is_recorded {
            true => Ok(file),
            false => Err(std::io::Error::from_raw_os_error(Errno::ESTALE.raw())),
        };
        let by_path = || {
            let file = open(OsStr::from_bytes(self.path.as_bytes()).as_ref())?;
            let is_recorded = identify(&file) == Ok(self.identity);
            only(file, is_recorded)
        };
        let Some(number) = self.file.get() else { return by_path() };
        match open(format!("/proc/thread-self/fd/{}", number.as_raw_fd()).as_ref()) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !self.path.is_empty() => by_path(),
            opened => {
                let file = opened?;
                let is_recorded = call::identify(file.as_raw_fd()) == Ok(self.file.identity());
                only(file, is_recorded)
            }
        }
    }

    /// The path for a message.
    pub(super) fn shown(&self) -> String {
        if self.path.is_empty() { "the program's file".to_owned() } else { shown_c(&self.path) }
    }

    /// The sentence for contents that are not the recorded ones.
    fn described_change(&self) -> String {
        let now = match self.path.is_empty() {
            true => identify(&self.file),
            false => Identity::of(features::killed_calls(), spawnfd_sys::abi::AT_FDCWD, &self.path),
        };
        if now == Ok(self.identity) {
            // The contents changed again so soon that the timestamps are the same.
            return format!("{} changed since the template was created (its contents)", self.shown());
        }
        change::describe(&self.shown(), &self.identity, now)
    }

    /// Hashes the contents, in chunks of equal size: std does not promise that other chunks give the same hash.
    fn hash(&self, key: &RandomState) -> std::io::Result<u64> {
        const CHUNK: usize = 64 << 10;
        let mut file = self.reopen()?;
        let mut hasher = key.build_hasher();
        let mut chunk = Vec::with_capacity(CHUNK);
        while file.by_ref().take(CHUNK as u64).read_to_end(&mut chunk)? > 0 {
            hasher.write(&chunk);
            chunk.clear();
        }
        Ok(hasher.finish())
    }
}

/// Whether the file changed so recently that another change could leave the same timestamps.
pub(crate) fn is_recent(identity: &Identity) -> bool {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let age = |(seconds, nanoseconds): (i64, u32)| {
        let whole = now.tv_sec.saturating_sub(seconds).saturating_mul(1_000_000_000);
        whole.saturating_add(now.tv_nsec - i64::from(nanoseconds))
    };
    let granularity = granularity(identity).as_nanos() as i64;
    // If the modification time is ahead of the clock, a process has set it explicitly. The next change of the file
    // gives the file another modification time.
    age(identity.ctime) < granularity || (-granularity..granularity).contains(&age(identity.mtime))
}

/// Returns how far apart two changes must be to get different timestamps. These are two ticks of
/// the slowest kernel clock (100 Hz), or the two seconds of FAT if no fraction of a second is
/// stored.
fn granularity(identity: &Identity) -> Duration {
    if identity.ctime.1 == 0 { Duration::from_secs(2) } else { Duration::from_millis(20) }
}

pub(crate) fn identify(file: &impl AsFd) -> std::result::Result<Identity, Errno> {
    Identity::of(features::killed_calls(), file.as_fd().as_raw_fd(), c"")
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_modification_time_in_the_future_is_not_recent() {
        let file = File::from(memfd_create("spawnfd-test", MemfdFlags::CLOEXEC).unwrap());
        for ahead in [3600, 1 << 33] {
            file.set_modified(SystemTime::now() + Duration::from_secs(ahead)).unwrap();
            let start = Instant::now();
            while is_recent(&identify(&file).unwrap()) {
                assert!(start.elapsed() < Duration::from_secs(20), "{ahead} s ahead");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
