// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of kernels that have our patches: one system call makes the child, out of nothing of its parent's but what it is to have.
//!
//! It is asked first, for whatever it can do; the clone launcher does the rest, and all that is refused before there is a child.

use std::ops::RangeInclusive;
use std::os::fd::{OwnedFd, RawFd};

use spawnfd_child::{Failure, Op, Plan, Stage};
use spawnfd_sys::{Birth, Builder, BuilderAction as Action, Errno, FailedAt, Given, abi};

use super::features;
use crate::numbers::above_standard;
use crate::template::Template;

/// What has become of a plan.
pub(super) enum Launched {
    /// The program runs: its number and pidfd.
    Program(i32, OwnedFd),
    Failed(Failure),
}

/// Carries a plan out. `None`: the kernel cannot, or will not; nothing has happened.
pub(super) fn launch(plan: &Plan, template: &Template, birth: &Birth) -> Option<Launched> {
    if !features::kernel() {
        return None;
    }
    let actions = actions(plan, birth)?;
    // What it says then is for the clone launcher to find out, who may know another file of that name.
    template.check().ok()?;
    let builder = Builder::open().ok()?.placed(above_standard);
    let program = plan.program.source.map(|source| plan.sources.get(source).copied().unwrap_or(-1));
    for (what, number) in [(Given::Program, program), (Given::Cgroup, birth.cgroup)] {
        if let Some(number) = number {
            builder.give(what, number).ok()?;
        }
    }
    let path = plan.program.source.is_none().then_some(plan.program.pinned.path.as_c_str());
    match builder.run(path, &plan.argv, &plan.envp, &actions) {
        Ok((pid, pidfd)) => Some(Launched::Program(pid, pidfd)),
        // Arguments and environment, which are taken before there is a child.
        Err((FailedAt::Setup, errno @ Errno::E2BIG)) => Some(Launched::Failed(Failure { stage: Stage::Exec, errno })),
        Err((FailedAt::Setup, errno)) => {
            if matches!(errno, Errno::ENOSYS | Errno::EPERM) {
                features::forget_kernel();
            }
            None
        }
        Err((FailedAt::Action(index), errno)) => {
            let stage = plan.steps.get(index).map_or(Stage::Signals, |step| Stage::Action(step.index));
            Some(Launched::Failed(Failure { stage, errno }))
        }
        Err((FailedAt::Exec, errno)) => Some(Launched::Failed(Failure { stage: Stage::Exec, errno })),
    }
}

/// The plan in the kernel's terms, a step an action; `None`: there are none for it.
fn actions<'a>(plan: &'a Plan, birth: &Birth) -> Option<Vec<Action<'a>>> {
    // Descriptors that are inherited for not being close-on-exec would be copied, all of them.
    if plan.keep.is_none() || plan.namespace.is_some() || birth.namespaces != 0 || plan.filter.is_some() {
        return None;
    }
    let mut numbers = Numbers { sources: &plan.sources, changed: Vec::new() };
    let mut actions = Vec::with_capacity(plan.steps.len() + 3);
    for step in &plan.steps {
        actions.push(action(&step.op, &mut numbers)?);
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
    (actions.len() <= MOST).then_some(actions)
}

/// `SPAWN_MAX_ACTIONS`.
const MOST: usize = 256;

fn action<'a>(op: &'a Op<usize>, numbers: &mut Numbers<'_>) -> Option<Action<'a>> {
    Some(match *op {
        Op::Place { source, to } => Action::Dup2 { from: numbers.source(source)?, to: numbers.change(to) },
        Op::Dup2 { from, to } => Action::Dup2 { from, to: numbers.change(to) },
        // It need not be open.
        Op::Close { fd } => Action::CloseRange { first: numbers.change(fd), last: fd },
        Op::CloseRange { first, last } => {
            let (first, last) = (RawFd::try_from(first).ok()?, RawFd::try_from(last).unwrap_or(-1));
            numbers.changed.push(first..=if last < 0 { RawFd::MAX } else { last });
            Action::CloseRange { first, last }
        }
        Op::Open { dir, ref path, how, to } => Action::Open {
            dir: dir.map_or(Some(abi::AT_FDCWD), |dir| numbers.source(dir))?,
            path,
            how,
            to: numbers.change(to),
        },
        Op::OpenNull { to } => {
            let flags = if to == 0 { abi::O_RDONLY } else { abi::O_WRONLY };
            let how = abi::open_how { flags: flags.into(), mode: 0, resolve: 0 };
            Action::Open { dir: abi::AT_FDCWD, path: c"/dev/null", how, to: numbers.change(to) }
        }
        Op::Chdir { ref path } => Action::Chdir(path),
        Op::Fchdir { dir } => Action::Fchdir { dir: numbers.source(dir)? },
        Op::Umask { mask } => Action::Umask(mask & 0o777),
        Op::Setsid => Action::Setsid,
        Op::Setpgid { group } => Action::Setpgid { group },
        Op::Limit { resource, limit } => Action::Limit { resource, limit },
        Op::Affinity { ref mask } => Action::Affinity(mask),
        Op::UserIds { real, effective, saved } => Action::UserIds { real, effective, saved },
        Op::GroupIds { real, effective, saved } => Action::GroupIds { real, effective, saved },
        Op::Groups { ref groups } => Action::Groups(groups),
        Op::NoNewPrivs => Action::NoNewPrivs,
        Op::Chroot { .. }
        | Op::Tcsetpgrp { .. }
        | Op::ControllingTerminal { .. }
        | Op::Nice { .. }
        | Op::Scheduler { .. }
        | Op::Capabilities { .. }
        | Op::KeepCapabilities
        | Op::WriteFile { .. }
        | Op::OomScoreAdj { .. }
        | Op::Cgroup { .. }
        | Op::Announce { .. }
        | Op::JoinNamespace { .. }
        | Op::Landlock { .. } => return None,
    })
}

/// The child's table, which begins with what actions name of the caller's, under the caller's numbers.
struct Numbers<'a> {
    sources: &'a [RawFd],
    /// These may mean something else by now.
    changed: Vec<RangeInclusive<RawFd>>,
}

impl Numbers<'_> {
    /// The number of a source, if it is still there.
    fn source(&self, source: usize) -> Option<RawFd> {
        let number = *self.sources.get(source)?;
        (!self.changed.iter().any(|changed| changed.contains(&number))).then_some(number)
    }

    fn change(&mut self, number: RawFd) -> RawFd {
        self.changed.push(number..=number);
        number
    }
}
