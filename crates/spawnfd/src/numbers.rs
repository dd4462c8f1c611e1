// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which numbers the library's own descriptors have.

use std::os::fd::{AsRawFd, OwnedFd};

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
