// SPDX-License-Identifier: MIT OR Apache-2.0
//! What shows whether Landlock confines a thread more than the one that parks.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use spawnfd_child::{Room, leave_marker};
use spawnfd_sys::{Errno, fork_generation, wait_pidfd};

use crate::authority;
use crate::launch::features;
use crate::numbers::Known;

/// A child that has ended, and that nobody has waited for: it keeps the credentials it was born with. A parked process, which has the
/// same, does not let itself be looked into. It is there as long as something is parked.
#[derive(Debug)]
pub(super) struct Marker {
    generation: u64,
    pidfd: Known,
    inside: PathBuf,
}

impl Marker {
    /// That of the calling thread, whose there is or may have been one.
    ///
    /// # Errors
    /// As clone(2).
    pub(super) fn of(last: &mut Weak<Marker>) -> Result<Arc<Marker>, Errno> {
        if let Some(marker) = last.upgrade() {
            return Ok(marker);
        }
        let generation = fork_generation()?;
        let born = leave_marker(&mut Room::new()?, features::clone3()).map_err(|refused| refused.0)?;
        let pidfd = Known::new(OwnedFd::from(born.pidfd))?;
        let marker = Arc::new(Marker { generation, pidfd, inside: authority::inside(born.pid) });
        *last = Arc::downgrade(&marker);
        Ok(marker)
    }

    /// Whether the calling thread is confined by Landlock no more than the one that parks.
    ///
    /// # Errors
    /// Why that is not shown.
    pub(super) fn reach(&self) -> Result<(), &'static str> {
        authority::reach(&self.inside)
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let (Ok(generation), Some(pidfd)) = (fork_generation(), self.pidfd.get())
            && generation == self.generation
        {
            let _ = wait_pidfd(pidfd.as_raw_fd(), true);
        }
    }
}
