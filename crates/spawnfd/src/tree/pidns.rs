// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pid namespace for one tree.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use spawnfd_guard::namespace::Namespace;
use spawnfd_guard::sys;
use spawnfd_sys::{Errno, call};

use super::{failed, guard};
use crate::child::Child;
use crate::command::{Command, Namespaces};
use crate::error::{Error, Result, Stage, errno};
use crate::host::numbers::above_standard;

/// How long to wait for the first process once its namespace is empty.
const END_MS: u64 = 100;

/// A pid namespace and its first process.
#[derive(Debug)]
pub(super) struct Pidns {
    pub(super) inside: Namespace,
    /// The first process. Dropping this reaps it, or the reaper does when it ends.
    init: Child,
    /// The pid namespace has a user namespace of its own.
    user: bool,
    /// An eventfd: a write to it lets the first process outlive this one.
    let_go: OwnedFd,
}

impl Pidns {
    /// Creates the namespace: directly if this process may, else in a new user namespace.
    pub(super) fn make() -> Result<Pidns> {
        let let_go =
            eventfd(0, EventfdFlags::CLOEXEC).map(above_standard).map_err(|e| failed(errno(e), "eventfd2()"))?;
        let [_, uid, _, _, gid, _] = call::ids();
        let first = |command: &mut Command<'_>| {
            command.arg("init").namespaces(Namespaces::PID);
        };
        let (started, user) = match guard::start(&let_go, first) {
            Err(error) if is_about_namespaces(&error) && error.errno() == Errno::EPERM => {
                let in_user = |command: &mut Command<'_>| {
                    first(command);
                    command.user_namespace(uid, gid);
                };
                (guard::start(&let_go, in_user), true)
            }
            started => (started, false),
        };
        let init = started.map_err(|error| match is_about_namespaces(&error) {
            true if user => failed(error.errno(), "clone(CLONE_NEWUSER | CLONE_NEWPID)"),
            true => failed(error.errno(), "clone(CLONE_NEWPID)"),
            false => error,
        })?;
        let pidfd = sys::Fd::duplicate(init.as_fd().as_raw_fd())
            .map_err(|e| failed(Errno::from_raw(e.0), "fcntl(F_DUPFD_CLOEXEC)"))?;
        Ok(Pidns { inside: Namespace::new(init.id() as i32, pidfd), init, user, let_go })
    }

    /// The means to enter the namespace: the first process's pidfd, and whether there is a user namespace, too.
    pub(super) fn door(&self) -> (BorrowedFd<'_>, bool) {
        (self.init.as_fd(), self.user)
    }

    /// Lets the namespace outlive this process, until it is empty.
    pub(super) fn let_go(&self) {
        // This cannot fail: the counter starts at 0.
        let _ = rustix::io::write(&self.let_go, &1u64.to_ne_bytes());
    }

    /// Waits at most 100 ms for the first process to end, so that this process reaps it. It has no process left to
    /// wait for, except a program that has not been reaped.
    pub(super) fn expect_end(&self) {
        sys::wait_for_end(self.inside.init().number(), END_MS);
    }
}

/// Whether the kernel, or a seccomp filter, has refused to create the first process.
fn is_about_namespaces(error: &Error) -> bool {
    error.stage() == Stage::Clone
}
