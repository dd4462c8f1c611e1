// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pid namespace for one tree.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use spawnfd_guard::descendants::Descendants;
use spawnfd_guard::sys;
use spawnfd_sys::{Errno, call};

use super::{EXIT_MS, failed, guard};
use crate::child::Child;
use crate::command::{Command, Namespaces};
use crate::error::{Error, Result, Stage, errno};
use crate::host::descriptors::above_standard;

/// A pid namespace and its first process.
#[derive(Debug)]
pub(super) struct PidNamespace {
    pub(super) members: Descendants,
    /// The namespace's first process. Dropping this handle reaps the process if it has ended; otherwise the reaper
    /// thread reaps it when it ends.
    init: Child,
    /// True if the pid namespace has a user namespace of its own.
    user: bool,
    /// An eventfd. After this process has written to it, the namespace's first process outlives this process.
    release_event: OwnedFd,
}

impl PidNamespace {
    /// Creates the namespace. If this process may not create a pid namespace, creates it in a new user namespace.
    pub(super) fn create() -> Result<PidNamespace> {
        let release_event =
            eventfd(0, EventfdFlags::CLOEXEC).map(above_standard).map_err(|e| failed(errno(e), "eventfd2()"))?;
        let [_, uid, _, _, gid, _] = call::ids();
        let first = |command: &mut Command<'_>| {
            command.arg("init").namespaces(Namespaces::PID);
        };
        let (started, user) = match guard::start(&release_event, first) {
            Err(error) if is_clone_error(&error) && error.errno() == Errno::EPERM => {
                let in_user = |command: &mut Command<'_>| {
                    first(command);
                    command.user_namespace(uid, gid);
                };
                (guard::start(&release_event, in_user), true)
            }
            started => (started, false),
        };
        let init = started.map_err(|error| match is_clone_error(&error) {
            true if user => failed(error.errno(), "clone(CLONE_NEWUSER | CLONE_NEWPID)"),
            true => failed(error.errno(), "clone(CLONE_NEWPID)"),
            false => error,
        })?;
        let pidfd = sys::Fd::duplicate(init.as_fd().as_raw_fd())
            .map_err(|e| failed(Errno::from_raw(e.0), "fcntl(F_DUPFD_CLOEXEC)"))?;
        Ok(PidNamespace { members: Descendants::new(init.id() as i32, pidfd), init, user, release_event })
    }

    /// The means to join the namespace: the pidfd of its first process, and whether to join its user namespace too.
    pub(super) fn join_target(&self) -> (BorrowedFd<'_>, bool) {
        (self.init.as_fd(), self.user)
    }

    /// Lets the namespace outlive this process, until the namespace has no other process than its first.
    pub(super) fn release(&self) {
        // This write cannot fail, because the eventfd's counter starts at 0.
        let _ = rustix::io::write(&self.release_event, &1u64.to_ne_bytes());
    }

    /// Waits at most 100 ms for the first process to end, so that the drop of `init` reaps it. The first process ends
    /// once the namespace is empty. Only an unreaped program can delay that.
    pub(super) fn wait_for_init(&self) {
        sys::wait_for_end(self.members.helper().1.number(), EXIT_MS);
    }
}

/// Whether the kernel, or a seccomp filter, has refused to create the first process.
fn is_clone_error(error: &Error) -> bool {
    error.stage() == Stage::Clone
}
