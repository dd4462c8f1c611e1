// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of programs whose tree has a pid namespace. An intermediate process enters the namespace and starts
//! the program there.

use std::os::fd::AsRawFd;

use spawnfd_child::{InNamespace, Namespace, Table, launch as launch_plan};

use super::asynchronous::start_with_separate_mm;
use super::attempt::Refusal;
use super::clone::{Arrived, check_sources};
use super::outcome::async_child;
use super::{Answer, Attempt, slots};

pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    let (init, user) = attempt.start.namespace().ok_or(Refusal::NotMine)?;
    let namespace = Namespace { init: init.as_raw_fd(), user };
    if attempt.may_block {
        let (started, pending) = start_with_separate_mm(attempt, namespace)?;
        let process = started.process;
        return Ok(Ok(async_child(attempt, (process.pid, process.pidfd.into()), pending)));
    }
    check_sources(attempt)?;
    let mut slot = slots::take().map_err(Refusal::Clone)?;
    let launched = launch_plan(&mut slot.memory, attempt.options, Table::Copied, &attempt.plan, namespace);
    // If the start failed in the namespace, a child may still write to the slot.
    if !matches!(launched, Ok((InNamespace { failure: Some(_), .. }, _))) {
        slots::put(slot);
    }
    let (started, outcome) = launched.map_err(Refusal::Clone)?;
    Ok(Arrived::from((started.process, started.failure.unwrap_or(outcome))).answer(attempt))
}
