// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of the library's own descriptors.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl};
use spawnfd_sys::{abi, call};

/// Moves a descriptor to a number above 2.
///
/// If the application has closed 0, 1 or 2, a new descriptor gets that number. A child would use that descriptor as
/// its own stream. If the application then opened its own stream there, the library would close it.
///
/// The descriptor keeps its number if no other is free.
pub(crate) fn above_standard(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() > 2 {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, 3).unwrap_or(fd)
}

/// Whether 0, 1 and 2 are all open. If one is closed, a new descriptor may get its number, which the application
/// may be about to use. A thread of the library that can wait tries again later.
pub(crate) fn standard_is_open() -> bool {
    (0..=2).all(|number| call::descriptor_flags(number).is_ok())
}

/// A descriptor of the library, with its number and the identity of its file.
///
/// Applications close and replace numbers that are not theirs. Also, a thread can have its own descriptor table, in
/// which the number refers to another file.
#[derive(Debug)]
pub struct Known {
    /// `None` while a number that must not be closed is dropped.
    fd: Option<OwnedFd>,
    identity: (u64, u64),
    /// The descriptor was opened with O_PATH. A descriptor of the same file without O_PATH belongs to the
    /// application.
    is_path: bool,
}

impl Known {
    /// Records a descriptor that was just created. If fstat(2) fails, the application has closed it since, and the
    /// number is free.
    pub fn new(fd: OwnedFd) -> Known {
        let fd = above_standard(fd);
        let identity = call::identify(fd.as_raw_fd()).unwrap_or_default();
        Known { fd: Some(fd), identity, is_path: false }
    }

    /// Records a descriptor that was just opened with O_PATH. The application may open the same file.
    pub(crate) fn of_path(fd: OwnedFd) -> Known {
        let mut known = Known::new(fd);
        known.is_path = true;
        known
    }

    /// Records a new duplicate, which the application cannot have replaced yet.
    pub(crate) fn of_copy(copy: OwnedFd, original: &Known) -> Known {
        Known { fd: Some(above_standard(copy)), identity: original.identity, is_path: original.is_path }
    }

    /// The descriptor, if its number still refers to the same file in the calling thread's table.
    pub fn get(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|fd| call::identify(fd.as_raw_fd()) == Ok(self.identity))
    }

    /// Device and inode of the file.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

impl AsFd for Known {
    /// The number unchecked, for callers that check it themselves.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl From<Known> for OwnedFd {
    /// The number unchecked.
    fn from(mut known: Known) -> OwnedFd {
        known.fd.take().expect("it is there until it is dropped")
    }
}

impl Drop for Known {
    /// Closes the descriptor if its number still refers to the same file. Otherwise the number is the
    /// application's.
    fn drop(&mut self) {
        let is_path = |fd: &OwnedFd| fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::PATH));
        if !self.get().is_some_and(|fd| !self.is_path || is_path(fd)) {
            let _ = self.fd.take().map(IntoRawFd::into_raw_fd);
        }
    }
}

/// The lowest number that no descriptor can have.
pub(crate) fn descriptor_limit() -> Option<RawFd> {
    call::limit(abi::RLIMIT_NOFILE).ok().and_then(|limit| RawFd::try_from(limit.rlim_cur).ok())
}
