// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals to a child that another task waits for.

use std::os::fd::AsRawFd;
use std::sync::Weak;

use spawnfd_sys::{Errno, call};

use crate::host::descriptors::CheckedFd;
use crate::host::features;

/// Sends signals to a child. It does not keep the child's pidfd open.
#[derive(Clone, Debug)]
pub struct Signaller(Weak<CheckedFd>);

impl Signaller {
    pub(super) fn new(pidfd: Weak<CheckedFd>) -> Signaller {
        Signaller(pidfd)
    }

    /// Sends a signal by the pidfd. Succeeds without effect if the process has ended.
    ///
    /// # Errors
    /// The errors of [`Child::signal`](crate::Child::signal).
    pub fn signal(&self, signal: i32) -> std::result::Result<(), Errno> {
        let Some(pidfd) = self.0.upgrade() else { return Ok(()) };
        let Some(own) = pidfd.get() else { return Err(Errno::EBADF) };
        match call::pidfd_send_signal(features::killed_calls(), own.as_raw_fd(), signal) {
            Ok(_) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
