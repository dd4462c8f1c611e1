// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own descriptors: their numbers, and checks that they still refer to the same files.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl};
use spawnfd_sys::{abi, call};

/// Moves a descriptor to a number above 2.
///
/// If the application has closed descriptor 0, 1 or 2, a new descriptor of the library gets that number. A child would
/// use the descriptor as a standard stream. If the application then opened a stream at that number, the library would
/// later close that stream.
///
/// The descriptor keeps its number if no other number is free.
pub(crate) fn above_standard(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() > 2 {
        return fd;
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, 3).unwrap_or(fd)
}

/// Whether descriptors 0, 1 and 2 are all open. If one is closed, the library's background threads
/// open no descriptors: a new descriptor might get that number, which the application may be about
/// to use.
#[cfg(feature = "warm")]
pub(crate) fn standard_streams_are_open() -> bool {
    (0..=2).all(|number| call::descriptor_flags(number).is_ok())
}

/// A descriptor of the library, with the identity of its file.
///
/// Applications close and replace descriptors that are not theirs. A thread can also have a descriptor table of its
/// own, in which the same number refers to another file. So the library checks the identity before each use.
#[derive(Debug)]
pub struct CheckedFd {
    /// `None` only during a drop that must not close the number, because the number belongs to the application.
    fd: Option<OwnedFd>,
    identity: (u64, u64),
    /// True if the library opened the descriptor with O_PATH. A descriptor of the same file without O_PATH belongs to
    /// the application.
    is_path: bool,
}

impl CheckedFd {
    /// Records a descriptor that was just created. If fstat(2) fails, the application has already closed the
    /// descriptor, and its number is free.
    pub fn new(fd: OwnedFd) -> CheckedFd {
        let fd = above_standard(fd);
        let identity = call::identify(fd.as_raw_fd()).unwrap_or_default();
        CheckedFd { fd: Some(fd), identity, is_path: false }
    }

    /// Records a descriptor that was just opened with O_PATH. If the application later opens the same file at this
    /// number without O_PATH, the library does not close that descriptor.
    pub(crate) fn new_path_fd(fd: OwnedFd) -> CheckedFd {
        let mut checked = CheckedFd::new(fd);
        checked.is_path = true;
        checked
    }

    /// Records a new duplicate, which the application cannot have replaced yet.
    pub(crate) fn from_duplicate(copy: OwnedFd, original: &CheckedFd) -> CheckedFd {
        CheckedFd { fd: Some(above_standard(copy)), identity: original.identity, is_path: original.is_path }
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

impl AsFd for CheckedFd {
    /// Returns the descriptor without a check that it refers to the same file. The caller makes this
    /// check itself.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl From<CheckedFd> for OwnedFd {
    /// Returns the descriptor without checking that it still refers to the same file.
    fn from(mut checked: CheckedFd) -> OwnedFd {
        checked.fd.take().expect("it is there until it is dropped")
    }
}

impl Drop for CheckedFd {
    /// Closes the descriptor if its number still refers to the same file. Otherwise the number belongs to the
    /// application.
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
