// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's sockets.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spawnfd_sys::{Call, Errno};

use crate::error::errno;
use crate::host::features;

/// Creates a pair of connected sockets for messages. A seccomp filter may kill the process for this call; then the
/// function returns EPERM.
pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    features::killed().refuse(Call::Socketpair)?;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(errno)
}
