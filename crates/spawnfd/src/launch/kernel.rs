// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher for patched kernels (by the project's patches): one system call builds the child from only the resources
//! that the caller names.
//!
//! This launcher starts the commands that the patched kernel supports. Later launchers start the other commands, and
//! those that the kernel refuses before a child exists.

use std::ops::RangeInclusive;
use std::os::fd::{OwnedFd, RawFd};

use spawnfd_child::{ChildStage, Failure, Op, Plan};
use spawnfd_sys::spawn_abi::*;
use spawnfd_sys::{
    ActionArg, Builder, BuilderAction as Action, BuilderActions, CloneOptions, Errno, FailedAt, Given, abi,
};

use super::attempt::Refusal;
use super::{Answer, Attempt};
use crate::child::{Child, Started};
use crate::host::descriptors::above_standard;
use crate::host::features::Features;
use crate::template::Template;

pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    // The call returns after exec, so an action that blocks would block the caller.
    // The kernel has no second program to execute.
    if attempt.may_block || attempt.plan.shell.is_some() || !attempt.features.has_builder() {
        return Err(Refusal::NotMine);
    }
    let started = carry_out(&attempt.plan, attempt.template, &attempt.options, &attempt.features);
    Ok(match started.ok_or(Refusal::NotMine)? {
        Ok((pid, pidfd)) => Ok(Child::new(pid, pidfd, Started::Kernel, None)),
        Err(failure) => Err(attempt.failed_in_child(Some(failure))),
    })
}

/// Carries out a plan, and returns pid and pidfd. Returns `None` if the kernel does not support the
/// plan, or refuses it before any action has run.
fn carry_out(
    plan: &Plan<'_>,
    template: &Template,
    options: &CloneOptions,
    features: &Features,
) -> Option<Result<(i32, OwnedFd), Failure>> {
    let (actions, moved) = prepare(plan)?;
    // If the check fails, a later launcher reports the failure, or finds another file of that name.
    template.check().ok()?;
    let builder = Builder::open(features.killed_calls).ok()?.placed(above_standard);
    let program = plan.program.source.map(|source| plan.sources.get(source).copied().unwrap_or(-1));
    for (what, number) in [(Given::Program, program), (Given::Cgroup, options.cgroup)] {
        if let Some(number) = number {
            builder.give(what, number).ok()?;
        }
    }
    if options.namespaces != 0 {
        builder.namespaces(options.namespaces).ok()?;
    }
    let count = actions.len();
    let path = plan.program.source.is_none().then_some(&*plan.program.pinned.path);
    let (at, errno) = match builder.run(path, &plan.argv, &plan.envp, actions, plan.keep.is_none()) {
        Ok(started) => return Some(Ok(started)),
        Err(failed) => failed,
    };
    let stage = match at {
        // The kernel copies arguments and environment before it creates the child.
        FailedAt::Setup if errno == Errno::E2BIG => ChildStage::Exec,
        FailedAt::Setup => {
            // The application may have added a seccomp filter that refuses the call. But EPERM may also be the
            // kernel's refusal of the namespaces.
            if errno == Errno::ENOSYS || errno == Errno::EPERM && options.namespaces == 0 {
                features.refuse_builder();
            }
            return None;
        }
        // The kernel found no free number for the moved source.
        FailedAt::Action(index) if index < moved => return None,
        // A seccomp filter passes the action's system call to a supervisor process, or does not know the call.
        // So a child must make the system call itself.
        FailedAt::Action(_) if errno == Errno::ENOSYS => return None,
        FailedAt::Action(index) => match plan.steps.get(index - moved) {
            Some(step) => ChildStage::Action(step.index),
            None if plan.filter.is_some() && index + 1 == count => ChildStage::Filter,
            None => ChildStage::Signals,
        },
        // ENOSYS means that a seccomp filter passes execve to a supervisor process (user
        // notification). So a child must make the system call itself.
        FailedAt::Exec if errno == Errno::ENOSYS => return None,
        FailedAt::Exec => ChildStage::Exec,
    };
    Some(Err(Failure { stage, errno }))
}

/// Converts a plan to the kernel's actions. First come `moved` actions that move descriptors to
/// spare numbers, then one action for each step, then the rest of the plan. The filter is last.
/// Returns the actions and `moved`.
///
/// Returns `None` if the kernel has no action for a step.
fn prepare<'a>(plan: &'a Plan<'_>) -> Option<(BuilderActions<'a>, usize)> {
    let numbers = ChildTable::new(plan)?;
    let mut actions = BuilderActions::with_capacity(plan.steps.len() + 4);
    for source in 0..plan.sources.len() {
        if numbers.is_displaced(source) {
            let (from, to) = (*plan.sources.get(source)?, numbers.source(source)?);
            actions.push(Action { flags: abi::O_CLOEXEC, ..plain(SPAWN_ACTION_DUP2, from, to) });
        }
    }
    let moved = actions.len();
    for step in &*plan.steps {
        actions.push(action(&step.op, &numbers)?);
    }
    if let Some((signal, _)) = plan.parent_death {
        actions.push(plain(SPAWN_ACTION_PDEATHSIG, signal as i32, 0));
    }
    if plan.default_signals != 0 {
        actions.push(with(SPAWN_ACTION_SIGDEFAULT, 0, ActionArg::Signals(plan.default_signals)));
    }
    if let Some(mask) = plan.signal_mask {
        actions.push(with(SPAWN_ACTION_SIGMASK, 0, ActionArg::Signals(mask)));
    }
    if let Some(filter) = &plan.filter {
        actions.push(with(SPAWN_ACTION_SECCOMP, filter.len() as i32, ActionArg::Filter(filter)));
    }
    (actions.len() <= SPAWN_MAX_ACTIONS as usize).then_some((actions, moved))
}

fn plain<'a>(kind: u32, fd: i32, newfd: i32) -> Action<'a> {
    Action { kind, fd, newfd, ..Action::default() }
}

fn with(kind: u32, fd: i32, arg: ActionArg<'_>) -> Action<'_> {
    Action { kind, fd, arg, ..Action::default() }
}

fn action<'a>(op: &'a Op<'_>, numbers: &ChildTable<'_, '_>) -> Option<Action<'a>> {
    use ActionArg::{Capabilities, Ints, Number, Open, Text, Words};
    let source = |source| numbers.source(source);
    let null = |flags: u32| Open(c"/dev/null", abi::open_how { flags: flags.into(), mode: 0, resolve: 0 });
    let opened = |dir, to, open| Action { newfd: to, ..with(SPAWN_ACTION_OPEN, dir, open) };
    Some(match *op {
        Op::Place { source: from, to } => plain(SPAWN_ACTION_DUP2, source(from)?, to),
        Op::Dup2 { from, to } => plain(SPAWN_ACTION_DUP2, from, to),
        // Use close_range, which succeeds even if the descriptor is not open.
        Op::Close { fd } => plain(SPAWN_ACTION_CLOSE_RANGE, fd, fd),
        Op::CloseRange { first, last } => numbers.close_range(first, last)?,
        Op::Open { dir, ref path, how, to } => opened(dir.map_or(Some(abi::AT_FDCWD), source)?, to, Open(path, how)),
        Op::OpenNull { to } => opened(abi::AT_FDCWD, to, null(if to == 0 { abi::O_RDONLY } else { abi::O_WRONLY })),
        Op::Chdir { ref path } => with(SPAWN_ACTION_CHDIR, 0, Text(path)),
        Op::Fchdir { dir } => plain(SPAWN_ACTION_FCHDIR, source(dir)?, 0),
        Op::Umask { mask } => plain(SPAWN_ACTION_UMASK, mask as i32 & 0o777, 0),
        Op::Setsid => plain(SPAWN_ACTION_SETSID, 0, 0),
        Op::Setpgid { group } => plain(SPAWN_ACTION_SETPGID, group, 0),
        Op::Tcsetpgrp { fd } => plain(SPAWN_ACTION_TCSETPGRP, fd, 0),
        Op::ControllingTerminal { fd } => plain(SPAWN_ACTION_CTTY, fd, 0),
        Op::Limit { resource, ref limit } => with(SPAWN_ACTION_RLIMIT, resource as i32, Words(limit)),
        Op::Nice { nice } => plain(SPAWN_ACTION_NICE, nice, 0),
        Op::Scheduler { policy, priority } => {
            plain(SPAWN_ACTION_SCHEDULER, i32::try_from(policy).ok()?, priority as i32)
        }
        Op::Affinity { ref mask } => with(SPAWN_ACTION_AFFINITY, size_of_val(&**mask) as i32, Words(mask)),
        Op::UserIds { real, effective, saved } => {
            Action { newfd: effective as i32, ..with(SPAWN_ACTION_SETRESUID, real as i32, Number(saved.into())) }
        }
        Op::GroupIds { real, effective, saved } => {
            Action { newfd: effective as i32, ..with(SPAWN_ACTION_SETRESGID, real as i32, Number(saved.into())) }
        }
        Op::Groups { ref groups } => with(SPAWN_ACTION_SETGROUPS, groups.len() as i32, Ints(groups)),
        Op::Capabilities { ref sets } => {
            let [effective, permitted, inheritable, bounding, ambient] = sets.words();
            let sets = SpawnCapabilities { effective, permitted, inheritable, bounding, ambient };
            with(SPAWN_ACTION_CAPABILITIES, 0, Capabilities(sets))
        }
        Op::KeepCapabilities => plain(SPAWN_ACTION_KEEP_CAPS, 0, 0),
        Op::NoNewPrivs => plain(SPAWN_ACTION_NO_NEW_PRIVS, 0, 0),
        Op::DenySetgroups => plain(SPAWN_ACTION_DENY_SETGROUPS, 0, 0),
        Op::UserMap { ref map } => with(SPAWN_ACTION_UID_MAP, 0, Text(map)),
        Op::GroupMap { ref map } => with(SPAWN_ACTION_GID_MAP, 0, Text(map)),
        Op::OomScoreAdj { value, .. } => plain(SPAWN_ACTION_OOM_SCORE_ADJ, value, 0),
        Op::Landlock { ruleset } => plain(SPAWN_ACTION_LANDLOCK, source(ruleset)?, 0),
        // Only a child inside the new root or namespace can compare the path's file with the recorded one.
        Op::Chroot { .. } if numbers.by_path() => return None,
        Op::Chroot { ref path } => with(SPAWN_ACTION_CHROOT, 0, Text(path)),
        Op::JoinNamespace { kinds, .. } if numbers.by_path() && (kinds == 0 || kinds & abi::CLONE_NEWNS != 0) => {
            return None;
        }
        Op::JoinNamespace { namespace, kinds } => {
            Action { flags: kinds, ..plain(SPAWN_ACTION_SETNS, source(namespace)?, 0) }
        }
        // The kernel supports no second cgroup after the one that the child is created in, and no memory shared
        // with the caller.
        Op::Cgroup { .. } | Op::Register { .. } => return None,
    })
}

/// The child's descriptor table. It starts with the sources (the caller's descriptors that the child needs) at the
/// caller's numbers. A source is displaced if a step changes the meaning of its number before the source's use. The
/// child keeps a displaced source at a spare number from the start.
struct ChildTable<'a, 'p> {
    plan: &'a Plan<'p>,
    /// If any source is displaced, the spare numbers: one for each source.
    spare: Option<RangeInclusive<RawFd>>,
}

impl<'a, 'p> ChildTable<'a, 'p> {
    /// Returns `None` if no numbers are free for the displaced sources.
    fn new(plan: &'a Plan<'p>) -> Option<ChildTable<'a, 'p>> {
        let mut numbers = ChildTable { plan, spare: None };
        if !(0..plan.sources.len()).any(|source| numbers.is_displaced(source)) {
            return Some(numbers);
        }
        // If the child inherits the caller's descriptors (no `keep`), they may have any number, so no number is
        // certainly free.
        plan.keep.as_ref()?;
        let first = plan.sources.iter().fold(plan.above, |first, &source| first.max(source.saturating_add(1)));
        let last = first.checked_add(plan.sources.len() as RawFd - 1)?;
        numbers.spare = (last < plan.below).then_some(first..=last);
        numbers.spare.is_some().then_some(numbers)
    }

    fn by_path(&self) -> bool {
        self.plan.program.source.is_none()
    }

    fn is_displaced(&self, source: usize) -> bool {
        let Some(&number) = self.plan.sources.get(source) else { return false };
        let mut steps = self.plan.steps.iter().map(|step| &step.op);
        steps.any(|op| self.changes(op, number)) && steps.any(|op| op.source() == Some(source))
    }

    /// Whether a step changes the meaning of a number.
    fn changes(&self, op: &Op<'_>, number: RawFd) -> bool {
        match *op {
            Op::Place { source, to } => to == number && self.plan.sources.get(source) != Some(&number),
            Op::Close { fd } => fd == number,
            Op::CloseRange { first, last } => (first..=last).contains(&(number as u32)),
            _ => op.makes() == Some(number),
        }
    }

    /// The number of a source in the child.
    fn source(&self, source: usize) -> Option<RawFd> {
        match &self.spare {
            Some(spare) if self.is_displaced(source) => Some(spare.start() + source as RawFd),
            _ => self.plan.sources.get(source).copied(),
        }
    }

    /// Closes a range, except the spare numbers, which exec closes. No descriptors exist above the spare numbers.
    fn close_range<'b>(&self, first: u32, last: u32) -> Option<Action<'b>> {
        let (first, last) = (RawFd::try_from(first).ok()?, RawFd::try_from(last).unwrap_or(RawFd::MAX));
        Some(match &self.spare {
            Some(spare) if first < *spare.start() => {
                plain(SPAWN_ACTION_CLOSE_RANGE, first, last.min(spare.start() - 1))
            }
            Some(spare) => {
                let above = spare.end().saturating_add(1);
                plain(SPAWN_ACTION_CLOSE_RANGE, first.max(above), last.max(above))
            }
            None => plain(SPAWN_ACTION_CLOSE_RANGE, first, last),
        })
    }
}
