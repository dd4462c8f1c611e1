// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a translation: a command of the core, and the meaning of its errors in the kernel series.

use spawnfd::Command;
use spawnfd::error::{ErrorKind, Stage};
use spawnfd_sys::Errno;
use spawnfd_sys::spawn_abi::*;

use super::action::Action;

/// A failed run: the errno, and the value of `spawn_args.failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) failed: i32,
    pub(super) errno: Errno,
}

impl From<Errno> for Failure {
    /// A failure before there is a child.
    fn from(errno: Errno) -> Failure {
        Failure { failed: SPAWN_FAILED_SETUP, errno }
    }
}

/// The meaning of a core action's failure.
#[derive(Clone, Copy, Debug)]
struct Origin {
    /// The value of `spawn_args.failed`.
    failed: i32,
    /// An errno of the core's action, and the errno of the kernel series in its place.
    replaced: Option<(Errno, Errno)>,
}

/// A command of the core, and the meaning of its errors.
pub(super) struct Translation {
    pub(super) command: Command<'static>,
    /// One for each action of the command.
    origins: Vec<Origin>,
    /// The index of the action that adds the seccomp filter.
    pub(super) filter: Option<usize>,
}

impl Translation {
    pub(super) fn new(command: Command<'static>) -> Translation {
        Translation { command, origins: Vec::new(), filter: None }
    }

    /// Adds an action of the core. A failure gets the value `failed`.
    pub(super) fn add(&mut self, failed: i32, add: impl FnOnce(&mut Command<'static>)) {
        self.add_replacing(failed, None, add);
    }

    /// Adds an action of the core, one of whose errnos is not that of the kernel series.
    pub(super) fn add_replacing(
        &mut self,
        failed: i32,
        replaced: Option<(Errno, Errno)>,
        add: impl FnOnce(&mut Command<'static>),
    ) {
        add(&mut self.command);
        // The builder has a limit of its own.
        self.command.uncounted();
        self.origins.push(Origin { failed, replaced });
    }

    /// Adds an action that always fails, for a failure that is known before there is a child.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.add_replacing(failure.failed, Some((Errno::ENOENT, failure.errno)), |command| {
            command.chdir("");
        });
    }

    /// If the core has refused an action before there was a child, returns the action's index and errno.
    pub(super) fn refused(&self, actions: &[Action], error: &spawnfd::Error) -> Option<(usize, Errno)> {
        if error.kind() != ErrorKind::Invalid {
            return None;
        }
        let origin = self.origins.get(error.action()?)?;
        let index = usize::try_from(origin.failed).ok()?;
        let errno = match actions.get(index)?.kind {
            // The core refuses what the kernel refuses in the child.
            SPAWN_ACTION_SETGROUPS | SPAWN_ACTION_SETRESGID | SPAWN_ACTION_CAPABILITIES => Errno::EPERM,
            _ => error.errno(),
        };
        Some((index, errno))
    }

    /// Returns the failure that the kernel series would report for an error of the core.
    pub(super) fn explain(&self, error: &spawnfd::Error) -> Failure {
        let errno = error.errno();
        match error.stage() {
            Stage::Action(index) => match self.origins.get(index) {
                Some(Origin { failed, replaced: Some((core, kernel)) }) if *core == errno => {
                    Failure { failed: *failed, errno: *kernel }
                }
                Some(origin) if errno == Errno::ECANCELED => Failure { failed: origin.failed, errno: Errno::EINTR },
                Some(origin) => Failure { failed: origin.failed, errno },
                None => errno.into(),
            },
            Stage::Filter => Failure { failed: self.filter.map_or(SPAWN_FAILED_SETUP, |index| index as i32), errno },
            // The kernel series copies the arguments before it creates the child.
            Stage::Exec if errno == Errno::E2BIG => errno.into(),
            // A seccomp filter has killed the child for the exec.
            Stage::Exec if errno == Errno::ECANCELED => Failure { failed: SPAWN_FAILED_EXEC, errno: Errno::EACCES },
            Stage::Exec | Stage::Revalidate => Failure { failed: SPAWN_FAILED_EXEC, errno },
            Stage::Killed => Failure { failed: SPAWN_FAILED_EXEC, errno: Errno::EINTR },
            _ => errno.into(),
        }
    }
}
