// SPDX-License-Identifier: MIT OR Apache-2.0
//! Zombie child processes that keep a thread's Landlock domain, so that the library can compare it later.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use spawnfd_child::{ChildMemory, leave_marker};
use spawnfd_sys::{Errno, call, wait_pidfd};

use crate::host::descriptors::CheckedFd;
use crate::host::features;

/// A zombie child. It keeps the Landlock domain of the thread that created it. Dropping this value reaps the child.
#[derive(Debug)]
pub(crate) struct Marker {
    pidfd: CheckedFd,
    /// The path of the child's namespace link in /proc, which `is_visible` reads.
    namespace: PathBuf,
}

impl Marker {
    /// Creates a zombie child of the calling thread.
    ///
    /// # Errors
    /// The errors of clone(2).
    pub(crate) fn create() -> Result<Marker, Errno> {
        let clone3 = features::of_calling_thread().has_clone3();
        let marker = leave_marker(&mut ChildMemory::new()?, clone3)?;
        let pidfd = CheckedFd::new(OwnedFd::from(marker.pidfd));
        Ok(Marker { pidfd, namespace: format!("/proc/{}/ns/user", marker.pid).into() })
    }

    /// Whether the calling thread may read the marker's namespace link. Landlock permits this if it confines the
    /// thread no more than the marker.
    ///
    /// The kernel also refuses the read in these cases: this process is not dumpable (it has changed its ids); the
    /// thread's user ids, or its group ids, are not all equal; the thread has permitted capabilities that are not
    /// effective. CAP_SYS_PTRACE overrides all these refusals. Yama does not restrict ptrace's read access.
    ///
    /// # References
    /// proc_pid_ns(5); security/landlock/task.c, hook_ptrace_access_check(). A child that has ended keeps its
    /// credentials until it is reaped.
    pub(crate) fn is_visible(&self) -> bool {
        // If the host has reaped the marker, another process may have its pid.
        let is_own = |pidfd: &OwnedFd| call::pidfd_send_signal(features::killed(), pidfd.as_raw_fd(), 0).is_ok();
        // Some kernels return an empty link instead of an error (seen in Debian's 5.10.262).
        self.pidfd.get().is_some_and(is_own)
            && std::fs::read_link(&self.namespace).is_ok_and(|name| !name.as_os_str().is_empty())
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.get() {
            // In a forked copy of this process the wait fails with ECHILD.
            let _ = wait_pidfd(pidfd.as_raw_fd(), true);
        }
    }
}
