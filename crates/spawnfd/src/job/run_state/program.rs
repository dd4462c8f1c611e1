// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of a run: a child of this process, or a command inside a session's shell.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::child::{Child, Started, Usage};
use crate::job::shell::ShellCommand;

#[derive(Debug)]
pub(in crate::job) enum Program {
    /// A child of this process, and its process tree.
    Child(Child),
    /// A command in a shell. The shell's own run has the process tree.
    InShell(Box<ShellCommand>),
}

impl Program {
    pub(super) fn id(&self) -> u32 {
        match self {
            Program::Child(child) => child.id(),
            Program::InShell(command) => command.id(),
        }
    }

    /// The descriptor that becomes readable when the program ends.
    pub(super) fn end_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Program::Child(child) => Some(child.as_fd()),
            Program::InShell(command) => command.as_fd(),
        }
    }

    pub(super) fn as_child(&self) -> Option<&Child> {
        match self {
            Program::Child(child) => Some(child),
            Program::InShell(_) => None,
        }
    }

    /// The time of the next [`tick`](Program::tick).
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Program::Child(_) => None,
            Program::InShell(command) => command.due(),
        }
    }

    /// The time at which to reap the program again, because its end is not complete yet.
    pub(super) fn report_due(&self) -> Option<Instant> {
        match self {
            Program::Child(child) => child.report_due(),
            Program::InShell(command) => command.report_due(),
        }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        if let Program::InShell(command) = self {
            command.tick(now);
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        match self {
            Program::Child(child) => child.usage(),
            Program::InShell(command) => command.end().map(|end| end.usage),
        }
    }

    pub(super) fn started(&self) -> Started {
        match self {
            Program::Child(child) => child.started(),
            Program::InShell(_) => Started::Session,
        }
    }
}
