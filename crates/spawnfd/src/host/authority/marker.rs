// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that show the Landlock domain of the thread that left them.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use spawnfd_child::{Room, leave_marker};
use spawnfd_sys::{Errno, call, wait_pidfd};

use crate::host::features;
use crate::host::numbers::Known;

/// Looks inside a process, at its `ns/user` in /proc, which the calling thread may if Landlock confines it no more than that one. That it is
/// not *less* confined does not follow.
///
/// Asks for no more than ptrace's right to read, which Yama does not restrict.
///
/// # Errors
/// Why it may not: there is no such process; without CAP_SYS_PTRACE, because this one is not dumpable (it has changed its ids),
/// or the calling thread has capabilities permitted that are not effective, or several user or group ids; or Landlock.
///
/// # References
/// proc_pid_ns(5); security/landlock/task.c, hook_ptrace_access_check(). An ended process that nobody has waited for will do:
/// it keeps its credentials.
fn reach(inside: &Path) -> Result<(), &'static str> {
    const PR_GET_DUMPABLE: u32 = 3;
    match std::fs::read_link(inside) {
        // With nothing in it: so some kernels refuse (seen in Debian's 5.10.262).
        Ok(name) if !name.as_os_str().is_empty() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err("marker"),
        _ if call::prctl(PR_GET_DUMPABLE, 0, 0) != Ok(1) => Err("not dumpable"),
        _ if call::capabilities().is_ok_and(|[effective, permitted, _]| effective != permitted) => Err("capabilities"),
        _ if has_several(call::ids()) => Err("several ids"),
        _ => Err("landlock"),
    }
}

/// A child of the thread that makes it, which has ended, and shows to others that thread's Landlock domain until this is dropped.
#[derive(Debug)]
pub(crate) struct Marker {
    pidfd: Known,
    inside: PathBuf,
}

impl Marker {
    /// # Errors
    /// As clone(2).
    pub(crate) fn leave() -> Result<Marker, Errno> {
        let marker =
            leave_marker(&mut Room::new()?, features::of_calling_thread().has_clone3()).map_err(|refused| refused.0)?;
        let pidfd = Known::new(OwnedFd::from(marker.pidfd));
        Ok(Marker { pidfd, inside: format!("/proc/{}/ns/user", marker.pid).into() })
    }

    /// Whether Landlock confines the calling thread no more than the thread that left the marker; see [`reach`].
    ///
    /// # Errors
    /// As for [`reach`].
    pub(crate) fn reach(&self) -> Result<(), &'static str> {
        let pidfd = self.pidfd.get().ok_or("marker")?;
        // If the host has reaped the marker, another process may have its pid.
        call::pidfd_send_signal(features::killed(), pidfd.as_raw_fd(), 0).map_err(|_| "marker")?;
        reach(&self.inside)
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

fn has_several([user, effective_user, saved_user, group, effective_group, saved_group]: [u32; 6]) -> bool {
    [effective_user, saved_user] != [user; 2] || [effective_group, saved_group] != [group; 2]
}
