// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that show the Landlock domain of the thread that left them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use spawnfd_child::{Room, leave_marker};
use spawnfd_sys::{Errno, call, wait_pidfd};

use crate::host::features;
use crate::host::numbers::Known;

/// A child of the thread that makes it. It has ended, and shows that thread's Landlock domain until this is dropped.
#[derive(Debug)]
pub(crate) struct Marker {
    pidfd: Known,
    /// The path by which the child is looked into.
    namespace: PathBuf,
}

impl Marker {
    /// # Errors
    /// As clone(2).
    pub(crate) fn leave() -> Result<Marker, Errno> {
        let clone3 = features::of_calling_thread().has_clone3();
        let marker = leave_marker(&mut Room::new()?, clone3).map_err(|refused| refused.0)?;
        let pidfd = Known::new(OwnedFd::from(marker.pidfd));
        Ok(Marker { pidfd, namespace: format!("/proc/{}/ns/user", marker.pid).into() })
    }

    /// Whether the calling thread may look into the marker, which Landlock permits if it confines the thread no more than the marker.
    ///
    /// It may not either if this process is not dumpable (it has changed its ids), or if the thread has several user or group ids, or
    /// capabilities permitted that are not effective, unless it has CAP_SYS_PTRACE. Yama does not restrict ptrace's right to read.
    ///
    /// # References
    /// proc_pid_ns(5); security/landlock/task.c, hook_ptrace_access_check(). A child that has ended keeps its credentials until it is
    /// reaped.
    pub(crate) fn is_visible(&self) -> bool {
        // If the host has reaped the marker, another process may have its pid.
        let is_own = |pidfd: &OwnedFd| call::pidfd_send_signal(features::killed(), pidfd.as_raw_fd(), 0).is_ok();
        // Some kernels refuse by an empty name (seen in Debian's 5.10.262).
        self.pidfd.get().is_some_and(is_own)
            && std::fs::read_link(&self.namespace).is_ok_and(|name| !name.as_os_str().is_empty())
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.get() {
            // ECHILD in a fork's copy.
            let _ = wait_pidfd(pidfd.as_raw_fd(), true);
        }
    }
}
