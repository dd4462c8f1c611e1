// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher that sleeps until the child has become the program (CLONE_VFORK). It starts whatever the others do not.

use spawnfd_child::Outcome;

use super::clone::{self, Arrived};
use super::explain::{explain, explain_killed};
use super::{Attempt, Launch, reap, slots};
use crate::child::{Child, Started};

pub(super) fn launch(attempt: &mut Attempt<'_, '_>) -> Launch {
    let mut slot = match slots::take() {
        Ok(slot) => slot,
        Err(errno) => return Launch::Failed(attempt.failed(errno)),
    };
    // A later start may be detached if this one shows that descriptors can be passed.
    let explores = attempt.is_detachable();
    let born = clone::start(&mut slot, attempt.birth, &attempt.plan, &attempt.features, explores);
    slots::put(slot);
    let name = attempt.command.program_name();
    let Arrived { pid, pidfd, outcome } = match born {
        Ok(arrived) => arrived,
        Err(no_child) => return no_child.answer(attempt),
    };
    let child = |pidfd| Child::new(pid, pidfd, Started::Clone, None);
    match outcome {
        Outcome::Program { renewed } => {
            if renewed {
                attempt.forget_template();
            }
            Launch::Started(child(pidfd))
        }
        Outcome::Killed(_) if attempt.command.takes_killed => Launch::Started(child(pidfd)),
        Outcome::Failed(failure) => {
            reap(&pidfd);
            Launch::Failed(explain(&attempt.plan, attempt.template, name, Some(failure)))
        }
        Outcome::Killed(stage) => {
            let ended = reap(&pidfd);
            Launch::Failed(explain_killed(&attempt.plan, attempt.template, name, stage, ended))
        }
    }
}
