// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of programs whose tree has a pid namespace. An intermediate process enters the namespace and starts
//! the program there.

use std::os::fd::AsRawFd;

use spawnfd_child::{Namespace, detach_in_namespace, launch_in_namespace};

use super::attempt::Refusal;
use super::clone::{Arrived, with_copied_table};
use super::outcome::detached;
use super::{Answer, Attempt};

pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    let (init, user) = attempt.start.namespace().ok_or(Refusal::NotMine)?;
    let namespace = Namespace { init: init.as_raw_fd(), user };
    let (attempt, plan, options) = (&*attempt, &attempt.plan, attempt.options);
    with_copied_table(attempt, |memory| {
        if attempt.may_block {
            let (child, started) = detach_in_namespace(memory, options, namespace, plan.clone())?;
            return Ok(Ok(detached(attempt, (child.pid, child.pidfd.into()), started)));
        }
        Ok(Arrived::from(launch_in_namespace(memory, options, namespace, plan)?).answer(attempt))
    })
}
