// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher that uses parked processes. A parked process becomes the program if it has everything that a child
//! of the calling thread would have.

use super::{Attempt, Launch, Wait};
use crate::command::{Command, Order, ParkedOffer};
use crate::template::Template;

/// Reserves a parked process. The library does this before it lowers the command to a plan, because the plan depends
/// on the process. Returns `None` if the command uses no parked processes.
pub(super) fn inspect<'a>(
    command: &'a Command<'_>,
    template: &Template,
) -> Option<Result<Box<dyn ParkedOffer + 'a>, &'static str>> {
    let parked = command.parked.as_ref()?;
    Some(if command.died { Err("died") } else { parked.inspect(command, template) })
}

pub(super) fn launch(attempt: &mut Attempt<'_, '_>) -> Launch {
    let Some(offer) = attempt.offer.take() else { return Launch::NotMine("no parked processes") };
    let order = Order {
        plan: &attempt.plan,
        template: attempt.template,
        cgroup: attempt.cgroup,
        waits: matches!(attempt.wait, Wait::Exec | Wait::Start),
        may_block: attempt.may_block,
    };
    match offer.and_then(|offer| offer.start(&order)) {
        Ok(Ok(child)) => Launch::Started(child),
        Ok(Err(failure)) => attempt.failed_in_child(failure),
        Err(reason) => {
            attempt.command.parked.iter().for_each(|parked| parked.count_cold(reason));
            attempt.cold = Some(reason);
            Launch::NotMine(reason)
        }
    }
}
