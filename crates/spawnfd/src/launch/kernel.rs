// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of kernels that have our patches: one system call makes the child, out of nothing of its parent's but what it is to have.
//!
//! It is asked first, for whatever it can do; the clone launcher does the rest, and all that is refused before there is a child.

use std::ops::RangeInclusive;
use std::os::fd::{OwnedFd, RawFd};

use spawnfd_child::{Failure, Op, Plan, Stage};
use spawnfd_sys::{Birth, Builder, BuilderAction as Action, BuilderActions, Errno, FailedAt, Given, abi};

use super::explain::explain;
use super::{Attempt, Launch};
use crate::child::{Child, Started};
use crate::host::features::Features;
use crate::host::numbers::above_standard;
use crate::template::Template;

pub(super) fn launch(attempt: &mut Attempt<'_, '_>) -> Launch {
    // The call returns after exec, so an action that blocks would block the caller.
    if attempt.may_block || !attempt.features.has_kernel() {
        return Launch::NotMine("not available");
    }
    match carry_out(&attempt.plan, attempt.template, &attempt.birth, &attempt.features) {
        Some(Ok((pid, pidfd))) => Launch::Started(Child::new(pid, pidfd, Started::Kernel, None)),
        Some(Err(failure)) => {
            let name = attempt.command.program_name();
            Launch::Failed(explain(&attempt.plan, attempt.template, name, Some(failure)))
        }
        None => Launch::NotMine("the kernel has no terms for this plan, or refused before there was a child"),
    }
}

/// Carries a plan out, and returns pid and pidfd. `None`: the kernel cannot, or will not; nothing has happened.
fn carry_out(
    plan: &Plan,
    template: &Template,
    birth: &Birth,
    features: &Features,
) -> Option<Result<(i32, OwnedFd), Failure>> {
    let Prepared { actions, moved } = prepare(plan)?;
    // What it says then is for the clone launcher to find out, who may know another file of that name.
    template.check().ok()?;
    let builder = Builder::open(features.killed).ok()?.placed(above_standard);
    let program = plan.program.source.map(|source| plan.sources.get(source).copied().unwrap_or(-1));
    for (what, number) in [(Given::Program, program), (Given::Cgroup, birth.cgroup)] {
        if let Some(number) = number {
            builder.give(what, number).ok()?;
        }
    }
    if birth.namespaces != 0 {
        builder.namespaces(birth.namespaces).ok()?;
    }
    let count = actions.len();
    let path = plan.program.source.is_none().then_some(plan.program.pinned.path.as_c_str());
    let (at, errno) = match builder.run(path, &plan.argv, &plan.envp, actions, plan.keep.is_none()) {
        Ok(started) => return Some(Ok(started)),
        Err(failed) => failed,
    };
    let stage = match at {
        // Arguments and environment, which are taken before there is a child.
        FailedAt::Setup if errno == Errno::E2BIG => Stage::Exec,
        FailedAt::Setup => {
            // A filter may have been laid over this process; namespaces are refused with the same error.
            if errno == Errno::ENOSYS || errno == Errno::EPERM && birth.namespaces == 0 {
                features.refuse_kernel();
            }
            return None;
        }
        // No room for a descriptor out of the way.
        FailedAt::Action(index) if index < moved => return None,
        FailedAt::Action(index) => match plan.steps.get(index - moved) {
            Some(step) => Stage::Action(step.index),
            None if plan.filter.is_some() && index + 1 == count => Stage::Filter,
            None => Stage::Signals,
        },
        // A filter would have somebody asked about execve: so the child has to make the call.
        FailedAt::Exec if errno == Errno::ENOSYS => return None,
        FailedAt::Exec => Stage::Exec,
    };
    Some(Err(Failure { stage, errno }))
}

/// A plan in the kernel's terms.
struct Prepared<'a> {
    /// `moved` that bring descriptors out of the way, one for each step, what else the plan has, the filter last.
    actions: BuilderActions<'a>,
    moved: usize,
}

/// `None`: there are no terms for it.
fn prepare(plan: &Plan) -> Option<Prepared<'_>> {
    if plan.namespace.is_some() {
        return None;
    }
    let numbers = Numbers::new(plan)?;
    let mut actions = BuilderActions::with_capacity(plan.steps.len() + 4);
    for source in 0..plan.sources.len() {
        if numbers.is_displaced(source) {
            actions.push(Action::Move { from: *plan.sources.get(source)?, to: numbers.source(source)? });
        }
    }
    let moved = actions.len();
    for step in &plan.steps {
        actions.push(action(&step.op, &numbers)?);
    }
    if let Some((signal, _)) = plan.parent_death {
        actions.push(Action::DeathSignal(signal));
    }
    if plan.default_signals != 0 {
        actions.push(Action::DefaultSignals(plan.default_signals));
    }
    if let Some(mask) = plan.signal_mask {
        actions.push(Action::SignalMask(mask));
    }
    if let Some(filter) = &plan.filter {
        actions.push(Action::Filter(filter));
    }
    (actions.len() <= BuilderActions::MOST).then_some(Prepared { actions, moved })
}

fn action<'a>(op: &'a Op<usize>, numbers: &Numbers<'_>) -> Option<Action<'a>> {
    Some(match *op {
        Op::Place { source, to } => Action::Dup2 { from: numbers.source(source)?, to },
        Op::Dup2 { from, to } => Action::Dup2 { from, to },
        // It need not be open.
        Op::Close { fd } => Action::CloseRange { first: fd, last: fd },
        Op::CloseRange { first, last } => numbers.close_range(first, last)?,
        Op::Open { dir, ref path, how, to } => {
            Action::Open { dir: dir.map_or(Some(abi::AT_FDCWD), |dir| numbers.source(dir))?, path, how, to }
        }
        Op::OpenNull { to } => {
            let flags = if to == 0 { abi::O_RDONLY } else { abi::O_WRONLY };
            let how = abi::open_how { flags: flags.into(), mode: 0, resolve: 0 };
            Action::Open { dir: abi::AT_FDCWD, path: c"/dev/null", how, to }
        }
        Op::Chdir { ref path } => Action::Chdir(path),
        Op::Fchdir { dir } => Action::Fchdir { dir: numbers.source(dir)? },
        Op::Umask { mask } => Action::Umask(mask & 0o777),
        Op::Setsid => Action::Setsid,
        Op::Setpgid { group } => Action::Setpgid { group },
        Op::Tcsetpgrp { fd } => Action::TakeForeground { fd },
        Op::ControllingTerminal { fd } => Action::ControllingTerminal { fd },
        Op::Limit { resource, limit } => Action::Limit { resource, limit },
        Op::Nice { nice } => Action::Nice(nice),
        Op::Scheduler { policy, priority } => Action::Scheduler { policy: i32::try_from(policy).ok()?, priority },
        Op::Affinity { ref mask } => Action::Affinity(mask),
        Op::UserIds { real, effective, saved } => Action::UserIds { real, effective, saved },
        Op::GroupIds { real, effective, saved } => Action::GroupIds { real, effective, saved },
        Op::Groups { ref groups } => Action::Groups(groups),
        Op::Capabilities { sets } => {
            Action::Capabilities([sets.effective, sets.permitted, sets.inheritable, sets.bounding, sets.ambient])
        }
        Op::KeepCapabilities => Action::KeepCapabilities,
        Op::NoNewPrivs => Action::NoNewPrivs,
        Op::DenySetgroups => Action::DenySetgroups,
        Op::UserMap { ref map } => Action::UserMap(map),
        Op::GroupMap { ref map } => Action::GroupMap(map),
        Op::OomScoreAdj { value, .. } => Action::OomScoreAdj(value),
        Op::Landlock { ruleset } => Action::Landlock { ruleset: numbers.source(ruleset)? },
        // Where a path leads then only somebody in there can compare with what was recorded.
        Op::Chroot { .. } if numbers.by_path() => return None,
        Op::Chroot { ref path } => Action::Chroot(path),
        Op::JoinNamespace { kinds, .. } if numbers.by_path() && (kinds == 0 || kinds & abi::CLONE_NEWNS != 0) => {
            return None;
        }
        Op::JoinNamespace { namespace, kinds } => {
            Action::JoinNamespace { namespace: numbers.source(namespace)?, kinds }
        }
        // Not a second cgroup, after the one it is born in; nor memory of the caller's.
        Op::Cgroup { .. } | Op::Announce { .. } => return None,
    })
}

/// The child's table, which begins with what actions name of the caller's, under the caller's numbers. A source whose number means
/// something else by the time it is used is displaced: it waits elsewhere from the beginning.
struct Numbers<'a> {
    plan: &'a Plan,
    /// Where sources wait, if any is displaced: each has a number there.
    spare: Option<RangeInclusive<RawFd>>,
}

impl Numbers<'_> {
    /// `None`: there is no room for those that are displaced.
    fn new(plan: &Plan) -> Option<Numbers<'_>> {
        let mut numbers = Numbers { plan, spare: None };
        if !(0..plan.sources.len()).any(|source| numbers.is_displaced(source)) {
            return Some(numbers);
        }
        // What is inherited may be anywhere.
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
        steps.any(|op| self.changes(op, number)) && steps.any(|op| op.source() == Some(&source))
    }

    /// Whether a step gives a number another meaning.
    fn changes(&self, op: &Op<usize>, number: RawFd) -> bool {
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

    /// Spares those that wait, which exec closes. Nothing lies above them.
    fn close_range<'a>(&self, first: u32, last: u32) -> Option<Action<'a>> {
        let (first, last) = (RawFd::try_from(first).ok()?, RawFd::try_from(last).unwrap_or(RawFd::MAX));
        Some(match &self.spare {
            Some(spare) if first < *spare.start() => Action::CloseRange { first, last: last.min(spare.start() - 1) },
            Some(spare) => {
                let above = spare.end().saturating_add(1);
                Action::CloseRange { first: first.max(above), last: last.max(above) }
            }
            None => Action::CloseRange { first, last },
        })
    }
}
