// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of programs whose tree has a pid namespace. An intermediate process enters the namespace and starts
//! the program there.

use std::os::fd::AsRawFd;

use spawnfd_child::{Namespace, detach_in_namespace, launch_in_namespace};

use super::clone::{Arrived, with_copied_table};
use super::outcome::detached;
use super::tables::Strategy;
use super::{Attempt, Launch};

pub(super) fn launch(attempt: &mut Attempt<'_, '_>) -> Launch {
    let Some((init, user)) = &attempt.command.namespace else { return Launch::NotMine("no pid namespace of a tree") };
    let namespace = Namespace { init: init.as_raw_fd(), user: *user };
    let (attempt, plan) = (&*attempt, &attempt.plan);
    let answer = with_copied_table(attempt, attempt.options, |memory, options| {
        if attempt.may_block {
            let (child, started) = detach_in_namespace(memory, options, namespace, plan.clone())?;
            return Ok(Launch::Started(detached(
                attempt,
                (child.pid, child.pidfd.into()),
                started,
                Strategy::CopyTable,
            )));
        }
        let launched = launch_in_namespace(memory, options, namespace, plan)?;
        Ok(Arrived::from(launched).answer(attempt))
    });
    answer.unwrap_or_else(|no_child| no_child.answer(attempt))
}
