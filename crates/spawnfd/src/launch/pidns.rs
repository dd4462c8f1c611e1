// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of programs whose tree has a pid namespace. An intermediate process enters the namespace and starts
//! the program there.

use std::os::fd::AsRawFd;

use spawnfd_child::{Namespace, detach_in_namespace, launch_in_namespace};

use super::clone::{Arrived, plainer};
use super::outcome::{closed_source, detached};
use super::tables::Strategy;
use super::{Attempt, Launch, handlers, slots};
use spawnfd_sys::call;

pub(super) fn launch(attempt: &mut Attempt<'_, '_>) -> Launch {
    let Some((init, user)) = &attempt.command.namespace else { return Launch::NotMine("no pid namespace of a tree") };
    let namespace = Namespace { init: init.as_raw_fd(), user: *user };
    let plan = &attempt.plan;
    if plan.sources.iter().any(|&source| call::descriptor_flags(source).is_err()) {
        return Launch::Failed(closed_source(plan, attempt.command.program_name()));
    }
    let mut slot = match slots::take() {
        Ok(slot) => slot,
        Err(errno) => return Launch::Failed(attempt.failed(errno)),
    };
    let mut options = attempt.options;
    loop {
        let (handlers, begun) = handlers::before_clone(options.clone3);
        let started = if attempt.may_block {
            detach_in_namespace(&mut slot.memory, options, namespace, plan.clone(), handlers)
                .map(|(child, started)| Launch::Started(detached(attempt, child, started, Strategy::CopyTable)))
        } else {
            launch_in_namespace(&mut slot.memory, options, namespace, plan, handlers).map(|launched| {
                if let Some(caught) = launched.caught {
                    handlers::learn(caught, begun);
                }
                Arrived::from(launched).answer(attempt)
            })
        };
        let refused = match started {
            Ok(launch) => {
                slots::put(slot);
                return launch;
            }
            Err(refused) => refused,
        };
        if let Err(no_child) = plainer(&mut options, &attempt.features, refused.0) {
            return no_child.answer(attempt);
        }
    }
}
