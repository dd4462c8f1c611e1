// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher that clones a child and sleeps until it has become the program or failed. It starts the commands that
//! the other launchers decline.

use std::os::fd::{AsRawFd, OwnedFd};

use spawnfd_child::{Caller, ChildStage, Failure, Outcome, Plan, Table, launch as launch_plan};
use spawnfd_sys::{CloneOptions, Cloned, Ended, Errno, call, signal_that_ended};

use super::attempt::Refusal;
use super::outcome::{SIGSYS, explain_killed};
use super::slots::{self, Slot};
use super::tables::Strategy;
use super::{Answer, Attempt, reap};
use crate::child::{Child, Started};
use crate::error::Error;
use crate::host::features::Features;

/// A child, and the outcome of its start, for which the caller has waited.
pub(super) struct Arrived {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) outcome: Outcome,
    /// The end of a child that another process has reaped.
    pub(super) ended: Option<Ended>,
}

/// Starts a child, and sleeps until it has become the program (CLONE_VFORK) or failed.
pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    let arrived = with_slot(|slot| start(slot, attempt.options, &attempt.plan, &attempt.features, attempt.strategy))?;
    Ok(arrived.answer(attempt))
}

impl Arrived {
    /// The child, or why it has failed, for a launcher that waited for it.
    pub(super) fn answer(self, attempt: &Attempt<'_>) -> Result<Child, Error> {
        let Arrived { pid, pidfd, outcome, ended, .. } = self;
        let child = |pidfd| Child::new(pid, pidfd, Started::Clone, None);
        match outcome {
            Outcome::Program { renewed } => {
                if renewed {
                    attempt.forget_template();
                }
                Ok(child(pidfd))
            }
            Outcome::Killed(_) if attempt.start.command.drop_in.takes_killed && ended.is_none() => Ok(child(pidfd)),
            Outcome::Failed(failure) => {
                reap(&pidfd);
                Err(attempt.failed_in_child(Some(failure)))
            }
            Outcome::Killed(stage) => {
                let (name, reaped) = (attempt.start.command.program_name(), reap(&pidfd));
                Err(explain_killed(&attempt.plan, attempt.template, name, stage, ended.or(reaped)))
            }
        }
    }
}

impl From<(Cloned, Outcome)> for Arrived {
    fn from((child, outcome): (Cloned, Outcome)) -> Arrived {
        Arrived { pid: child.pid, pidfd: OwnedFd::from(child.pidfd), outcome, ended: None }
    }
}

/// Calls `start` with a slot, and returns the slot to the pool.
pub(super) fn with_slot<T>(start: impl FnOnce(&mut Slot) -> Result<T, Refusal>) -> Result<T, Refusal> {
    let mut slot = slots::take().map_err(Refusal::Clone)?;
    let started = start(&mut slot);
    slots::put(slot);
    started
}

/// Checks that the sources of a child with a copy of the caller's table are open.
pub(super) fn check_sources(attempt: &Attempt<'_>) -> Result<(), Refusal> {
    let is_closed = |&source: &i32| call::descriptor_flags(source).is_err();
    if attempt.plan.sources.iter().any(is_closed) { Err(Refusal::ClosedSource) } else { Ok(()) }
}

/// Starts a child that performs the plan.
pub(super) fn start(
    slot: &mut Slot,
    options: CloneOptions,
    plan: &Plan<'_>,
    features: &Features,
    strategy: Strategy,
) -> Result<Arrived, Refusal> {
    start_with(slot, plan, features, strategy, |slot, table| {
        launch_plan(&mut slot.memory, options, table, plan, Caller).map(Arrived::from).map(Some)
    })
}

/// Calls `launch` with the table of a strategy. `launch` returns `None` if the strategy is not available.
pub(super) fn start_with(
    slot: &mut Slot,
    plan: &Plan<'_>,
    features: &Features,
    strategy: Strategy,
    launch: impl FnOnce(&mut Slot, Table) -> Result<Option<Arrived>, Errno>,
) -> Result<Arrived, Refusal> {
    let table = strategy.prepare(slot, &plan.sources, features).or(Err(Refusal::ClosedSource))?;
    let launched = launch(slot, table.ok_or(Refusal::NoTable)?).map_err(Refusal::Clone).and_then(|launched| {
        let launched = launched.ok_or(Refusal::NoTable)?;
        match failure_in_table(&launched).filter(|_| strategy != Strategy::CopyTable) {
            Some(errno) => {
                reap(&launched.pidfd);
                Err(Refusal::Table(errno))
            }
            None => Ok(launched),
        }
    });
    match &launched {
        Ok(Arrived { outcome: Outcome::Program { .. } | Outcome::Failed(_), .. }) => {
            strategy.learn_works(features, &plan.sources);
        }
        _ => slot.renew_channel(),
    }
    launched
}

/// The errno of a child that failed to set up its descriptor table, before any action. If a seccomp filter killed the
/// child in that stage, the errno is EPERM.
fn failure_in_table(launched: &Arrived) -> Option<Errno> {
    match launched.outcome {
        Outcome::Failed(Failure { stage: ChildStage::Descriptors, errno }) => Some(errno),
        Outcome::Killed(ChildStage::Descriptors) => {
            let signal = match launched.ended {
                Some(ended) => Some(ended.status & 0x7f),
                None => signal_that_ended(launched.pidfd.as_raw_fd()),
            };
            (signal == Some(SIGSYS)).then_some(Errno::EPERM)
        }
        _ => None,
    }
}
