// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher that sleeps until the child has become the program (CLONE_VFORK). It starts the commands that the
//! other launchers decline.

use super::clone::{start, with_slot};
use super::{Attempt, Launch};

pub(super) fn launch(attempt: &mut Attempt<'_, '_>) -> Launch {
    // A later start may be detached if this start shows that SCM_RIGHTS works.
    let explores = attempt.is_detachable();
    match with_slot(|slot| start(slot, attempt.options, &attempt.plan, &attempt.features, explores)) {
        Ok(arrived) => arrived.answer(attempt),
        Err(no_child) => no_child.answer(attempt),
    }
}
