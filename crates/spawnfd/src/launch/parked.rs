// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher that uses parked processes. A parked process becomes the program if it has everything that a child
//! of the calling thread would have.

use spawnfd_child::{ChildStage, Failure};
use spawnfd_sys::Errno;

use super::attempt::Refusal;
use super::outcome::{explain_killed, not_joined};
use super::{Answer, Attempt, Wait};
use crate::cold_reason::ColdReason;
#[cfg(feature = "warm")]
use crate::command::WouldStart;
use crate::command::{ParkedCandidates, ParkedFailure, ParkedRequest, Start};
use crate::template::Template;

/// Leases a parked process. The library does this before it lowers the command to a plan, because the plan depends
/// on the process. Returns `None` if the command uses no parked processes.
pub(super) fn candidates<'a>(
    start: &Start<'a>,
    template: &Template,
) -> Option<Result<Box<dyn ParkedCandidates + 'a>, ColdReason>> {
    let parked = start.parked?;
    Some(if start.is_cold { Err(ColdReason::Died) } else { parked.candidates(start, template) })
}

fn request<'a>(attempt: &'a Attempt<'_>) -> ParkedRequest<'a> {
    ParkedRequest {
        start: attempt.start,
        plan: &attempt.plan,
        template: attempt.template,
        cgroup: attempt.cgroup,
        waits: matches!(attempt.wait, Wait::Exec | Wait::Start),
        may_block: attempt.may_block,
    }
}

/// Finds out how the attempt would end, and starts nothing. The error is the reason for a cold start.
#[cfg(feature = "warm")]
pub(super) fn explain(attempt: &mut Attempt<'_>) -> Result<WouldStart, ColdReason> {
    let candidates = attempt.candidates.take().unwrap_or(Err(ColdReason::Off));
    candidates.and_then(|candidates| candidates.explain(&request(attempt)))
}

pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    let candidates = attempt.candidates.take().ok_or(Refusal::NotMine)?;
    let answer = candidates.and_then(|candidates| candidates.start(&request(attempt))).map_err(|reason| {
        attempt.start.parked.iter().for_each(|parked| parked.count_cold(reason));
        *attempt.cold = Some(reason);
        Refusal::NotMine
    })?;
    Ok(answer.map_err(|failure| match failure {
        ParkedFailure::Failed(failure) => match (attempt.cgroup, failure) {
            // A child of a cold start would be created in this cgroup. For a directory of another kind, clone3 fails
            // with EBADF.
            (Some((index, dir)), Failure { stage: ChildStage::Action(failed), errno }) if index == failed => {
                let errno = if errno == Errno::ENOENT { Errno::EBADF } else { errno };
                not_joined(index, dir, errno)
            }
            _ => attempt.failed_in_child(Some(failure)),
        },
        ParkedFailure::Killed(stage, ended) => {
            let name = attempt.start.command.program_name();
            explain_killed(&attempt.plan, attempt.template, name, stage, ended)
        }
    }))
}
