// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of programs whose tree has a pid namespace. An intermediate process enters the namespace and starts
//! the program there.

use std::os::fd::AsRawFd;

use spawnfd_child::{Namespace, Table, launch as launch_plan};

use super::asynchronous::start_with_separate_mm;
use super::attempt::Refusal;
use super::clone::{Arrived, check_sources, with_slot};
use super::outcome::async_child;
use super::{Answer, Attempt};

pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    let (init, user) = attempt.start.namespace().ok_or(Refusal::NotMine)?;
    let namespace = Namespace { init: init.as_raw_fd(), user };
    if attempt.may_block {
        let (child, started) = start_with_separate_mm(attempt, namespace)?;
        return Ok(Ok(async_child(attempt, (child.pid, child.pidfd.into()), started)));
    }
    check_sources(attempt)?;
    let launched = with_slot(|slot| {
        launch_plan(&mut slot.memory, attempt.options, Table::Copied, &attempt.plan, namespace).map_err(Refusal::Clone)
    })?;
    Ok(Arrived::from(launched).answer(attempt))
}
