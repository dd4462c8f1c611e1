// SPDX-License-Identifier: MIT OR Apache-2.0
//! Occupies the numbers of closed standard streams, so that no descriptor of the core gets one of them.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fstat, open};

use crate::arguments::borrow;

/// Descriptors at the numbers 0, 1 and 2, as far as these were closed. Dropping the value closes the descriptors.
///
/// Without placeholders, a descriptor that the core keeps could get one of these numbers. The application would then
/// overwrite that descriptor when it reopens its streams.
pub struct Placeholders {
    /// The placeholders, with their device and inode.
    files: Vec<(OwnedFd, (u64, u64))>,
    lock: Option<SequenceLock>,
}

/// A lock that a thread holds while it has placeholders. Without the lock, another thread would mistake the
/// placeholders for open standard streams.
///
/// No thread waits for this lock, because in a forked child the lock may belong to a thread that exists only in the
/// parent.
struct SequenceLock(u64);

/// The lock's sequence count: odd while a thread holds the lock, and larger after each use.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);

impl SequenceLock {
    fn acquire(sequence: u64) -> Option<SequenceLock> {
        SEQUENCE.compare_exchange(sequence, sequence + 1, Ordering::SeqCst, Ordering::SeqCst).ok().map(SequenceLock)
    }
}

impl Drop for SequenceLock {
    fn drop(&mut self) {
        SEQUENCE.store(self.0 + 2, Ordering::SeqCst);
    }
}

pub fn is_open(fd: i32) -> bool {
    rustix::io::fcntl_getfd(borrow(fd)).is_ok()
}

impl Placeholders {
    /// Opens placeholders for the closed numbers; usually no number is closed. `None` if another thread has
    /// placeholders, or an open fails.
    pub fn open() -> Option<Placeholders> {
        let sequence = SEQUENCE.load(Ordering::SeqCst);
        if sequence % 2 == 1 {
            return None;
        }
        if (0..3).all(is_open) {
            // If the count has changed, the open numbers may have been another thread's placeholders.
            let unchanged = SEQUENCE.load(Ordering::SeqCst) == sequence;
            return unchanged.then(|| Placeholders { files: Vec::new(), lock: None });
        }
        let lock = SequenceLock::acquire(sequence)?;
        let mut files = Vec::new();
        loop {
            let file = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
            if file.as_raw_fd() > 2 {
                return Some(Placeholders { files, lock: Some(lock) });
            }
            let identity = identity(&file)?;
            files.push((file, identity));
        }
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        for (file, opened) in self.files.drain(..) {
            // The application may have opened a stream at this number after that. Do not close that stream.
            if identity(&file) != Some(opened) {
                std::mem::forget(file);
            }
        }
        drop(self.lock.take());
    }
}

fn identity(file: impl AsFd) -> Option<(u64, u64)> {
    fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}
