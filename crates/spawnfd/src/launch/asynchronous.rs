// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of asynchronous spawns: the caller continues before the child reaches exec. See
//! decision record 0005.
//!
//! The child uses a slot (a stack and a socket) until it has left the caller's memory. It reports that in a shared
//! word, which the next start reads. The library reads the outcome once the pidfd shows that the child has ended.

use std::borrow::Cow;
use std::sync::Arc;

use spawnfd_child::{AsyncStart, Caller, Data, Parent, Plan, Program, Table, launch_async};
use spawnfd_sys::{ArgBlock, CloneOptions, Errno};

use super::attempt::Refusal;
use super::clone::{check_sources, start, with_slot};
use super::outcome::async_child;
use super::slots::{self, Slot, Taken};
use super::tables::{Meaning, Strategy};
use super::{Answer, Attempt, reap};
use crate::host::features::Features;

/// The maximum number of asynchronous children that have not reached exec. A start takes 0.1 ms, so
/// more such children mean that the machine is overloaded. The next start then waits for its
/// child's exec.
const MOST: usize = 32;

/// Clones a child in the caller's memory, if that is known to work.
pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    let (plan, features) = (&attempt.plan, &attempt.features);
    if attempt.may_block {
        probe_scm_rights(plan, features);
    }
    let works = features.has_close_range() && features.scm_rights(&plan.sources).known() == Some(true);
    if !works || slots::reclaim() >= MOST {
        return Err(Refusal::NotMine);
    }
    let mut slot = slots::take().or(Err(Refusal::NotMine))?;
    // If a source is not open, decline: the child of a later launcher then fails and reports this source.
    let Ok(Some(table)) = attempt.strategy.prepare(&mut slot, &plan.sources, features) else {
        slots::put(slot);
        return Err(Refusal::NotMine);
    };
    let (child, started) = start_async(slot, attempt.options, table, plan, Caller).or(Err(Refusal::NotMine))?;
    Ok(Ok(async_child(attempt, (child.pid, child.pidfd.into()), started)))
}

/// Starts a child that uses the slot, and does not wait for its exec.
pub(super) fn start_async<P: Parent>(
    slot: Slot,
    options: CloneOptions,
    table: Table,
    plan: &Arc<Plan<'static>>,
    parent: P,
) -> Result<(P::Started, AsyncStart), Errno> {
    let Slot { memory, channel } = slot;
    match launch_async(memory, options, table, plan.clone(), parent) {
        Ok((started, pending, memory)) => {
            match memory {
                Ok(memory) => slots::put(Slot { memory, channel }),
                Err(in_use) => slots::lend(Taken { in_use, channel }),
            }
            Ok((started, pending))
        }
        Err((errno, memory)) => {
            let mut slot = Slot { memory, channel };
            // If the table is passed, the channel contains descriptors for a child that does not exist.
            if matches!(table, Table::Passed { .. }) {
                slot.renew_channel();
            }
            slots::put(slot);
            Err(errno)
        }
    }
}

/// Starts a child with memory of its own and a copy of the caller's table, and does not wait for its exec.
pub(super) fn start_with_separate_mm<P: Parent>(
    attempt: &Attempt<'_>,
    parent: P,
) -> Result<(P::Started, AsyncStart), Refusal> {
    check_sources(attempt)?;
    let options = CloneOptions { share_memory: false, ..attempt.options };
    let slot = slots::take().map_err(Refusal::Clone)?;
    start_async(slot, options, Table::Copied, &attempt.plan, parent).map_err(Refusal::Clone)
}

/// Clones a child with memory of its own, because an action may block. The number of such children has no limit.
pub(super) fn launch_with_separate_mm(attempt: &mut Attempt<'_>) -> Answer {
    let (child, started) = start_with_separate_mm(attempt, Caller)?;
    Ok(Ok(async_child(attempt, (child.pid, child.pidfd.into()), started)))
}

/// Tests whether [`Strategy::ScmRights`] works: starts a child that receives the same descriptors and execs
/// nothing.
///
/// A start with an action that may block is no such test, because the caller would have to wait for that action.
fn probe_scm_rights(plan: &Plan<'_>, features: &Features) {
    if features.scm_rights(&plan.sources).known().is_some() {
        return;
    }
    let options = CloneOptions { share_memory: true, clone3: features.has_clone3(), ..CloneOptions::default() };
    let strategy = Strategy::ScmRights;
    match with_slot(|slot| start(slot, options, &without_program(plan), features, strategy)) {
        Ok(arrived) => _ = reap(&arrived.pidfd),
        Err(Refusal::Table(errno)) if strategy.meaning(errno) == Meaning::Unavailable => {
            strategy.learn_unavailable(features, &plan.sources);
        }
        Err(_) => {}
    }
}

/// Returns a plan with the same sources that fails at exec, because it has nothing to execute.
fn without_program<'a>(plan: &Plan<'a>) -> Plan<'a> {
    Plan {
        sources: plan.sources.clone(),
        steps: Cow::default(),
        keep: Some(Cow::default()),
        default_signals: 0,
        signal_mask: None,
        parent_death: None,
        program: Program { pinned: Data::Shared(Arc::default()), source: None, renew: false },
        filter: None,
        argv: ArgBlock::builder().finish(),
        shell: None,
        envp: plan.envp.clone(),
        ..*plan
    }
}
