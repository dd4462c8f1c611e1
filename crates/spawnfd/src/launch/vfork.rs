// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher that sleeps until the child has become the program (CLONE_VFORK). It starts whatever the others
//! decline.

use super::{Attempt, Launch, clone, slots};

pub(super) fn launch(attempt: &mut Attempt<'_, '_>) -> Launch {
    let mut slot = match slots::take() {
        Ok(slot) => slot,
        Err(errno) => return Launch::Failed(attempt.failed(errno)),
    };
    // A later start may be detached if this one shows that descriptors can be passed.
    let explores = attempt.is_detachable();
    let launched = clone::start(&mut slot, attempt.options, &attempt.plan, &attempt.features, explores);
    slots::put(slot);
    match launched {
        Ok(arrived) => arrived.answer(attempt),
        Err(no_child) => no_child.answer(attempt),
    }
}
