// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clones a child and sleeps until it has become the program or failed. Tries strategies for the child's descriptor
//! table until one works.

use std::os::fd::{AsRawFd, OwnedFd};

use spawnfd_child::{ChildMemory, Failure, Launched, Outcome, Plan, Stage, Table, launch};
use spawnfd_sys::{CloneOptions, Ended, Errno, call, signal_that_ended};

use super::outcome::{SIGSYS, closed_source, explain_killed, not_joined};
use super::slots::{self, Slot};
use super::tables::{Refusal, Strategy, renew_pidfd};
use super::{Attempt, Launch, reap};
use crate::child::{Child, Started};
use crate::host::features::Features;

/// A child, and the outcome of its start, for which the caller has waited.
pub(super) struct Arrived {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) outcome: Outcome,
    /// The end of a child that another process has reaped.
    pub(super) ended: Option<Ended>,
}

impl Arrived {
    /// The answer of a launcher that waited for the child.
    pub(super) fn answer(self, attempt: &Attempt<'_, '_>) -> Launch {
        let Arrived { pid, pidfd, outcome, ended, .. } = self;
        let child = |pidfd| Child::new(pid, pidfd, Started::Clone, None);
        match outcome {
            Outcome::Program { renewed } => {
                if renewed {
                    attempt.forget_template();
                }
                Launch::Started(child(pidfd))
            }
            Outcome::Killed(_) if attempt.command.takes_killed && ended.is_none() => Launch::Started(child(pidfd)),
            Outcome::Failed(failure) => {
                reap(&pidfd);
                attempt.failed_in_child(Some(failure))
            }
            Outcome::Killed(stage) => {
                let (name, reaped) = (attempt.command.program_name(), reap(&pidfd));
                Launch::Failed(explain_killed(&attempt.plan, attempt.template, name, stage, ended.or(reaped)))
            }
        }
    }
}

impl From<Launched> for Arrived {
    fn from(launched: Launched) -> Arrived {
        let Launched { child, outcome } = launched;
        Arrived { pid: child.pid, pidfd: OwnedFd::from(child.pidfd), outcome, ended: None }
    }
}

/// The reason why there is no child.
pub(super) enum NoChild {
    ClosedSource,
    Clone(Errno),
}

impl NoChild {
    /// The answer of the launcher that got this error.
    pub(super) fn answer(self, attempt: &Attempt<'_, '_>) -> Launch {
        let NoChild::Clone(errno) = self else {
            return Launch::Failed(closed_source(&attempt.plan, attempt.command.program_name()));
        };
        // Without clone3 the library needs another plan, in which the child itself joins the cgroup.
        let is_clone3_gone = matches!(errno, Errno::ENOSYS | Errno::EPERM) && !attempt.features.has_clone3();
        match attempt.cgroup {
            Some(_) if is_clone3_gone => Launch::NotMine("clone3 is not available"),
            Some((index, dir)) if matches!(errno, Errno::EBADF | Errno::EACCES | Errno::EBUSY | Errno::EOPNOTSUPP) => {
                Launch::Failed(not_joined(index, dir, errno))
            }
            _ => Launch::Failed(attempt.failed(errno)),
        }
    }
}

/// Calls `start` with a slot, and returns the slot to the pool.
pub(super) fn with_slot<T>(start: impl FnOnce(&mut Slot) -> Result<T, NoChild>) -> Result<T, NoChild> {
    let mut slot = slots::take().map_err(NoChild::Clone)?;
    let started = start(&mut slot);
    slots::put(slot);
    started
}

/// Starts a child with a copy of the caller's table: calls `start` with simpler options until the kernel accepts
/// them.
pub(super) fn with_copied_table<T>(
    attempt: &Attempt<'_, '_>,
    mut options: CloneOptions,
    mut start: impl FnMut(&mut ChildMemory, CloneOptions) -> Result<T, Errno>,
) -> Result<T, NoChild> {
    if attempt.plan.sources.iter().any(|&source| call::descriptor_flags(source).is_err()) {
        return Err(NoChild::ClosedSource);
    }
    with_slot(|slot| {
        loop {
            match start(&mut slot.memory, options) {
                Ok(started) => return Ok(started),
                Err(refused) => simplify(&mut options, &attempt.features, refused)?,
            }
        }
    })
}

/// Starts a child that performs the plan. [`Strategy::for_sleeping_caller`] describes
/// `try_scm_rights`.
pub(super) fn start(
    slot: &mut Slot,
    options: CloneOptions,
    plan: &Plan<'_>,
    features: &Features,
    try_scm_rights: bool,
) -> Result<Arrived, NoChild> {
    start_with(slot, options, plan, features, try_scm_rights, |slot, options, _, table| {
        launch(&mut slot.memory, options, table, plan).map(Arrived::from).map(Some)
    })
}

/// The same as [`start`], but calls `launch` with each strategy. `launch` returns `None` if the strategy is not
/// available.
pub(super) fn start_with(
    slot: &mut Slot,
    mut options: CloneOptions,
    plan: &Plan<'_>,
    features: &Features,
    try_scm_rights: bool,
    mut launch: impl FnMut(&mut Slot, CloneOptions, Strategy, Table) -> Result<Option<Arrived>, Errno>,
) -> Result<Arrived, NoChild> {
    for strategy in Strategy::for_sleeping_caller(plan, &options, features, try_scm_rights) {
        let mut may_renew = true;
        while let Some(table) = strategy.prepare(slot, &plan.sources, features).or(Err(NoChild::ClosedSource))? {
            let launched = match launch(slot, options, strategy, table) {
                Ok(Some(launched)) => launched,
                Ok(None) => break,
                Err(refused) => {
                    slot.channel = None;
                    simplify(&mut options, features, refused)?;
                    continue;
                }
            };
            let Some(errno) = failure_in_table(&launched).filter(|_| strategy != Strategy::CopyTable) else {
                if matches!(launched.outcome, Outcome::Killed(_)) {
                    slot.channel = None;
                } else {
                    strategy.learn_works(features, &plan.sources);
                }
                return Ok(launched);
            };
            slot.channel = None;
            reap(&launched.pidfd);
            match strategy.refusal(errno) {
                Refusal::ClosedSource => return Err(NoChild::ClosedSource),
                Refusal::StalePidfd if may_renew => {
                    renew_pidfd();
                    may_renew = false;
                    continue;
                }
                Refusal::Unavailable => strategy.learn_unavailable(features, &plan.sources),
                Refusal::StalePidfd | Refusal::Failed => {}
            }
            break;
        }
    }
    // Not reached: the loop returns from its last strategy, CopyTable, with a child or an error.
    Err(NoChild::Clone(Errno::EPERM))
}

/// The errno of a child that failed to set up its descriptor table, before any action. If a seccomp filter killed the
/// child in that stage, the errno is EPERM.
fn failure_in_table(launched: &Arrived) -> Option<Errno> {
    match launched.outcome {
        Outcome::Failed(Failure { stage: Stage::Descriptors, errno }) => Some(errno),
        Outcome::Killed(Stage::Descriptors) => {
            let signal = match launched.ended {
                Some(ended) => Some(ended.status & 0x7f),
                None => signal_that_ended(launched.pidfd.as_raw_fd()),
            };
            (signal == Some(SIGSYS)).then_some(Errno::EPERM)
        }
        _ => None,
    }
}

/// Replaces the options of a clone that the kernel has refused by options that need fewer kernel features.
///
/// # Errors
/// No simpler options are left.
fn simplify(options: &mut CloneOptions, features: &Features, refused: Errno) -> Result<(), NoChild> {
    // EPERM may concern the namespaces, or it may be a seccomp filter's answer to clone3 itself.
    if options.clone3 && matches!(refused, Errno::ENOSYS | Errno::EPERM) && !features.probe_clone3() {
        options.clone3 = false;
        if options.cgroup.is_none() && (options.namespaces == 0 || features.can_clone_namespaces()) {
            return Ok(());
        }
    }
    // Before Linux 6.3 a child in another time namespace cannot share the caller's memory (kernel/nsproxy.c,
    // copy_namespaces).
    if options.share_memory && refused == Errno::EINVAL {
        options.share_memory = false;
        return Ok(());
    }
    Err(NoChild::Clone(refused))
}
