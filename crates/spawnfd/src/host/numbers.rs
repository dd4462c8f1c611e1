// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which numbers the library's own descriptors have.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl};
use spawnfd_sys::{abi, call};

/// Moves a descriptor away from 0, 1 and 2, where it lands when the application has those closed. There a child would take it for its
/// own stream; and the application that puts a stream of its own there would find it closed with ours.
///
/// It stays where it is when no other number is left.
pub(crate) fn above_standard(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() > 2 {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, 3).unwrap_or(fd)
}

/// Whether one of 0, 1 and 2 is closed: what is opened now may come to stand there, where the application may be about to put a stream.
/// A thread of ours that has time waits for a better moment.
pub(crate) fn standard_is_open() -> bool {
    (0..=2).all(|number| call::descriptor_flags(number).is_ok())
}

/// A descriptor of the library's, by number and by what it refers to: applications close and replace numbers that are not theirs, and
/// a thread can have a table of its own, in which a number means something else.
#[derive(Debug)]
pub struct Known {
    /// Taken as it is dropped, where it is not to be closed.
    fd: Option<OwnedFd>,
    identity: (u64, u64),
    /// Opened with O_PATH: one of the same file that is not, is the application's.
    is_path: bool,
}

impl Known {
    /// One that has just been made. Where fstat(2) fails the application has closed it since, and nothing is at its number.
    pub fn new(fd: OwnedFd) -> Known {
        let fd = above_standard(fd);
        let identity = call::identify(fd.as_raw_fd()).unwrap_or_default();
        Known { fd: Some(fd), identity, is_path: false }
    }

    /// One that has just been opened with O_PATH, of a file that the application may open, too.
    pub(crate) fn of_path(fd: OwnedFd) -> Known {
        let mut known = Known::new(fd);
        known.is_path = true;
        known
    }

    /// Another number for the same file, at which nothing else has come to stand yet.
    pub(crate) fn of_copy(copy: OwnedFd, original: &Known) -> Known {
        Known { fd: Some(above_standard(copy)), identity: original.identity, is_path: original.is_path }
    }

    /// The descriptor, if for the calling thread its number still means what it meant.
    pub fn get(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|fd| call::identify(fd.as_raw_fd()) == Ok(self.identity))
    }

    /// Device and inode of what it refers to.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

impl AsFd for Known {
    /// Whatever its number means now, for who finds that out without us.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl From<Known> for OwnedFd {
    /// Whatever its number means now, likewise.
    fn from(mut known: Known) -> OwnedFd {
        known.fd.take().expect("it is there until it is dropped")
    }
}

impl Drop for Known {
    /// Closes what is still ours; a number that has come to mean something else is the application's.
    fn drop(&mut self) {
        let is_path = |fd: &OwnedFd| fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::PATH));
        if !self.get().is_some_and(|fd| !self.is_path || is_path(fd)) {
            let _ = self.fd.take().map(IntoRawFd::into_raw_fd);
        }
    }
}

/// The first number that no descriptor can have.
pub(crate) fn descriptor_limit() -> Option<RawFd> {
    call::limit(abi::RLIMIT_NOFILE).ok().and_then(|limit| RawFd::try_from(limit.rlim_cur).ok())
}
