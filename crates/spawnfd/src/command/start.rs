// SPDX-License-Identifier: MIT OR Apache-2.0
//! One start of a command: the command, and what belongs to this start only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use spawnfd_child::{GuardRegistration, Op};

use super::{Command, ParkedSource, Stdio};
use crate::child::Subreaper;
use crate::sandbox::SandboxDescriptor;

/// The place of a program in a process tree.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// The tree's cgroup. The kernel creates the child in this cgroup.
    pub(crate) cgroup: Option<OwnedFd>,
    /// The data with which the program registers with the tree's guard.
    pub(crate) registration: Option<GuardRegistration>,
    /// The subreaper that becomes the program's parent.
    pub(crate) subreaper: Option<Arc<Subreaper>>,
    /// The tree's pid namespace: the pidfd of its first process, and whether the pid namespace has its own user
    /// namespace.
    pub(crate) namespace: Option<(OwnedFd, bool)>,
}

/// One start of a command.
pub(crate) struct Start<'a> {
    pub(crate) command: &'a Command<'a>,
    /// The standard streams that the command leaves to the start.
    streams: [Option<Stdio<'static>>; 3],
    /// True if the program leads a session unless an action puts it into a process group.
    pub(crate) new_session: bool,
    /// The actions of the start. The child performs them after the command's.
    pub(crate) actions: Vec<Op<'static>>,
    /// Descriptors for the sandbox command, in place of the sandbox's own with the same numbers.
    pub(crate) given: Vec<SandboxDescriptor>,
    /// The place in the tree of the run. `None`: the command's.
    pub(crate) placement: Option<Placement>,
    /// The parked processes from which the program may start.
    pub(crate) parked: Option<&'a dyn ParkedSource>,
    /// True if the start uses no parked process, because a signal killed the parked process of an earlier attempt
    /// before it began to start the command.
    pub(crate) is_cold: bool,
}

impl<'a> Start<'a> {
    /// A start whose program inherits the streams that the command does not set.
    pub(crate) fn new(command: &'a Command<'a>) -> Start<'a> {
        Start {
            command,
            streams: [None, None, None],
            new_session: false,
            actions: Vec::new(),
            given: Vec::new(),
            placement: None,
            parked: command.parked.as_deref(),
            is_cold: false,
        }
    }

    /// The start of a supervised run: the program leads a session, and the library captures the streams that the
    /// command does not set. Without input, the program reads `/dev/null`.
    pub(crate) fn of_run(command: &'a Command<'a>, has_input: bool) -> Start<'a> {
        let stdin = if has_input { Stdio::Piped } else { Stdio::Null };
        let streams = [stdin, Stdio::Piped, Stdio::Piped].map(Some);
        Start { streams, new_session: true, ..Start::new(command) }
    }

    /// Connects the streams that the command does not set.
    pub(crate) fn connect(&mut self, streams: [Stdio<'static>; 3]) {
        self.streams = streams.map(Some);
    }

    /// The source of a standard stream.
    pub(crate) fn stream(&self, number: usize) -> &Stdio<'_> {
        self.command.stdio[number].as_ref().or(self.streams[number].as_ref()).unwrap_or(&Stdio::Inherit)
    }

    /// The sources of the three standard streams.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &Stdio<'_>> {
        (0..3).map(|number| self.stream(number))
    }

    /// The actions of the command, then those of the start.
    pub(crate) fn actions(&self) -> impl Iterator<Item = &Op<'static>> {
        self.command.all_actions().chain(&self.actions)
    }

    /// The descriptors that the sandbox command gets.
    pub(super) fn given(&self) -> impl Iterator<Item = &SandboxDescriptor> {
        let replaced = |own: &&SandboxDescriptor| self.given.iter().any(|given| given.number == own.number);
        self.command.given().iter().filter(move |own| !replaced(own)).chain(&self.given)
    }

    fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref().or(self.command.placement.as_ref())
    }

    /// The cgroup of the program's tree.
    pub(crate) fn tree_cgroup(&self) -> Option<&OwnedFd> {
        self.placement()?.cgroup.as_ref()
    }

    /// The data with which the program registers with the guard of its tree.
    pub(crate) fn registration(&self) -> Option<&GuardRegistration> {
        self.placement()?.registration.as_ref()
    }

    /// The subreaper that becomes the program's parent.
    pub(crate) fn subreaper(&self) -> Option<&Arc<Subreaper>> {
        self.placement()?.subreaper.as_ref()
    }

    /// The pid namespace of the program's tree: the pidfd of its first process, and whether the pid namespace has its own
    /// user namespace.
    pub(crate) fn namespace(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.placement()?.namespace.as_ref().map(|(init, user)| (init.as_fd(), *user))
    }

    /// Whether the child calls exec in a user namespace other than the caller's.
    pub(crate) fn changes_user_namespace(&self) -> bool {
        self.namespace().is_some_and(|(_, user)| user)
            || self.command.namespaces.user_map.is_some()
            || self.actions().any(|action| matches!(action, Op::JoinNamespace { .. }))
    }
}
