// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree whose program has a subreaper of its own as parent.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use spawnfd_guard::descendants::Descendants;
use spawnfd_guard::process::{ProcessIdentity, is_proc_foreign};
use spawnfd_guard::sys;
use spawnfd_guard::table::SlotState;
use spawnfd_sys::Errno;

use super::guard::{Registration, capabilities_to_restore, register};
use super::{EXIT_MS, failed, image};
use crate::child::Subreaper;
use crate::error::Result;

/// The subreaper of a tree, and the processes below it.
#[derive(Debug)]
pub(super) struct SubreaperTree {
    pub(super) subreaper: Arc<Subreaper>,
    /// `None` until the first use after the start.
    descendants: Option<Descendants>,
    /// The program's pid and pidfd.
    pub(super) program: Option<(i32, sys::Fd)>,
}

impl SubreaperTree {
    /// Prepares a tree and registers it with a guard. The subreaper starts together with the program.
    pub(super) fn prepare() -> Result<(SubreaperTree, Registration)> {
        if is_proc_foreign() {
            let message = "tier subreaper needs the /proc of this process's pid namespace";
            return Err(failed(Errno::EOPNOTSUPP, "/proc/self").saying(message));
        }
        let capabilities = capabilities_to_restore()?;
        let registration = register(b"", SlotState::Subreaper)?;
        let created =
            image::template().and_then(|template| Subreaper::new(template, capabilities, registration.registration()));
        match created {
            Ok(subreaper) => {
                Ok((SubreaperTree { subreaper: Arc::new(subreaper), descendants: None, program: None }, registration))
            }
            Err(error) => {
                registration.release();
                Err(error)
            }
        }
    }

    /// Records the program, which has just started. Returns the subreaper's pid and identity. `None`: the program has no
    /// subreaper, or its pidfd cannot be copied.
    pub(super) fn program_started(&mut self, pid: i32, pidfd: Option<sys::Fd>) -> Option<(i32, ProcessIdentity)> {
        let own = pidfd.as_ref().and_then(|pidfd| pidfd.try_clone().ok());
        self.program = Some(pid).zip(pidfd);
        let descendants = self.descendants()?;
        own.into_iter().for_each(|own| descendants.set_program(pid, own));
        let (pid, pidfd) = descendants.helper();
        Some((*pid, ProcessIdentity::of(pidfd, *pid)?))
    }

    /// The subreaper and the processes below it. `None` until the program starts.
    fn descendants(&mut self) -> Option<&mut Descendants> {
        if self.descendants.is_none() {
            let (helper, pidfd) = self.subreaper.helper()?;
            self.descendants = Some(Descendants::new(helper, sys::Fd::duplicate(pidfd.as_raw_fd()).ok()?));
        }
        self.descendants.as_mut()
    }

    /// Whether no subreaper has started.
    pub(super) fn has_no_subreaper(&self) -> bool {
        self.descendants.is_none()
    }

    /// The tree's processes. `None`: the tree has ended, or has not started. A tree that has lost its subreaper has not
    /// ended.
    pub(super) fn remaining(&mut self) -> Option<&Descendants> {
        let subreaper = self.subreaper.clone();
        // A process of the tree may kill the subreaper at any moment, so `is_lost` comes last.
        let may_remain =
            |descendants: &&Descendants| !subreaper.was_last() && (!descendants.has_ended() || subreaper.is_lost());
        self.descendants().map(|descendants| &*descendants).filter(may_remain)
    }

    /// Waits at most 100 ms for the subreaper to end, so that the drop of its handle reaps it. It ends once it has no
    /// children.
    pub(super) fn wait_for_end(&mut self) {
        if let Some(descendants) = self.descendants() {
            sys::wait_for_end(descendants.helper().1.number(), EXIT_MS);
        }
    }
}
