// SPDX-License-Identifier: MIT OR Apache-2.0
//! Children that nobody waits for: the caller goes on while they are on their way to exec.
//!
//! Such a child stands in a slot until it has left our memory; that shows in a word, looked at when the next one is started. What
//! became of it is asked for when its pidfd says that it has ended. See docs/adr/0005-starts-without-vfork.md.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use spawnfd_child::{Flight, Lent, Outcome, Plan, Stage};
use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Birth, Cloned, Ended};

use super::slots::{self, Channel, Slot};
use super::{Refusal, SIGSYS, Way, explain, explain_killed, goes_without_clone3, handlers, lay_table};
use crate::error::Result;
use crate::host::features::{Features, OfThread};
use crate::host::per_process::PerProcess;
use crate::template::{Named, Template, TemplateCache};

/// How many may be on their way at once. A start takes a tenth of a millisecond; where more are under way than this the
/// machine is overloaded, and waiting for the next one helps it.
const MOST: usize = 32;

/// A slot with a child in it.
struct Taken {
    lent: Lent,
    generation: u64,
    channel: Option<Channel>,
    flight: Flight,
    /// When it was born, as [`handlers::at_birth`] has it.
    begun: u64,
}

static TAKEN: PerProcess<Vec<Taken>> = PerProcess::new(Vec::new());

/// What there is to know of a child that may still be on its way.
pub(crate) struct InFlight {
    pub(super) flight: Flight,
    pub(super) template: Template,
    /// Where a cache has the template.
    pub(super) cached: Option<(Named, TemplateCache)>,
    pub(super) name: OsString,
    /// Those of the thread that started it.
    pub(super) features: OfThread,
    /// How it comes to its descriptors.
    pub(super) way: Way,
}

impl std::fmt::Debug for InFlight {
    /// No more than the name: the rest has the program's environment in it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("name", &self.name).finish_non_exhaustive()
    }
}

impl InFlight {
    /// Whether a child that has ended, in this way if that is known, had become the program.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn landed(&self, ended: Option<Ended>) -> Result<()> {
        let (plan, template, name) = (self.flight.plan(), &self.template, &self.name);
        let error = match self.flight.outcome_of_ended() {
            Outcome::Program { renewed } => {
                if let (true, Some((named, cache))) = (renewed, &self.cached) {
                    cache.drop_stale(named);
                }
                return Ok(());
            }
            Outcome::Failed(failure) => explain(plan, template, name, Some(failure)),
            Outcome::Killed(stage) => {
                if stage == Stage::Descriptors && ended.is_some_and(|ended| ended.status & 0x7f == SIGSYS) {
                    self.way.refuse(&self.features, &plan.sources);
                }
                explain_killed(plan, template, name, stage, ended)
            }
        };
        // What it was to get may lie in its slot's socket: nobody else would look there until the next start.
        land();
        Err(error)
    }
}

/// What a caller who waits for the program's end leaves to its child, which begins in his table: his descriptors, as they are, and no
/// signal handler's doings until he waits. Dropping it gives that back, once the child has left.
#[derive(Debug)]
pub(crate) struct Held {
    mask: SignalSet,
    flight: Option<Flight>,
    /// The child's ends of its pipes, and what else was made for it.
    ends: Vec<OwnedFd>,
}

impl Held {
    /// Blocks signals in the calling thread.
    pub(super) fn new() -> Option<Held> {
        let mask = call::set_signal_mask(call::SIGNALS_FROM_ELSEWHERE).ok()?;
        Some(Held { mask, flight: None, ends: Vec::new() })
    }

    pub(super) fn until(mut self, flight: Flight, ends: Vec<OwnedFd>) -> Held {
        (self.flight, self.ends) = (Some(flight), ends);
        self
    }

    /// With more that the child takes.
    pub(crate) fn leave(&mut self, made: Vec<OwnedFd>) {
        self.ends.extend(made);
    }

    /// The calling thread's signal mask otherwise.
    pub(crate) fn mask(&self) -> SignalSet {
        self.mask
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.flight.iter().for_each(Flight::wait);
        self.ends.clear();
        // Cannot fail: the same call has succeeded before.
        let _ = call::set_signal_mask(self.mask);
    }
}

/// Starts a child without waiting for it. `None` where that cannot be, or is not known to work; then it has not been tried, or left
/// nothing behind.
///
/// `held`: the caller's mask, where he holds what the child takes from his table.
pub(super) fn take_off(
    birth: Birth,
    plan: &Arc<Plan>,
    features: &Features,
    held: Option<SignalSet>,
) -> Option<(Cloned, Flight)> {
    let way = if held.is_some() { Way::Trim } else { Way::Pass };
    let works =
        features.has_close_range() && (way == Way::Trim || features.passing(&plan.sources).known() == Some(true));
    if !works || land() >= MOST {
        return None;
    }
    let mut slot = slots::take().ok()?;
    let table = match lay_table(&mut slot, &plan.sources, features, way) {
        Ok((table, laid)) if laid == way => table,
        // A source that is not open is found again, and named, by a child that is waited for.
        Ok(_) | Err(_) => {
            slots::put(slot);
            return None;
        }
    };
    let (handlers, begun) = handlers::at_birth(birth.clone3);
    let Slot { generation, room, channel } = slot;
    match spawnfd_child::take_off(room, birth, table, plan.clone(), handlers, held) {
        Ok((child, flight, lent)) => {
            TAKEN.lock().push(Taken { lent, generation, channel, flight: flight.clone(), begun });
            Some((child, flight))
        }
        // The channel has a message for nobody in it, and goes.
        Err((_, room)) => {
            slots::put(Slot { generation, room, channel: None });
            None
        }
    }
}

/// Starts a child with memory of its own without waiting for it, however many are on their way: what may stand still for ever, and
/// cannot take off.
pub(super) fn take_off_apart(
    mut birth: Birth,
    plan: &Arc<Plan>,
    features: &Features,
) -> std::result::Result<(Cloned, Flight), Refusal> {
    if plan.sources.iter().any(|&source| call::descriptor_flags(source).is_err()) {
        return Err(Refusal::Source);
    }
    let mut slot = slots::take().map_err(Refusal::Clone)?;
    loop {
        let (handlers, _) = handlers::at_birth(birth.clone3);
        match spawnfd_child::take_off_apart(&mut slot.room, birth, plan.clone(), handlers) {
            Ok(born) => {
                slots::put(slot);
                return Ok(born);
            }
            Err(refused) if goes_without_clone3(&mut birth, features, refused.0) => {}
            Err(refused) => return Err(Refusal::Clone(refused.0)),
        }
    }
}

/// Puts back the slots of children that have left. How many have not.
fn land() -> usize {
    let mut all = TAKEN.lock();
    let mut left = Vec::new();
    for Taken { lent, generation, channel, flight, begun } in all.drain(..) {
        match lent.back() {
            Ok(room) => {
                if let Some(caught) = flight.caught() {
                    handlers::learn(caught, begun);
                }
                // One that ended early may not have taken its message.
                let early = match flight.outcome() {
                    Some(Outcome::Program { .. }) => false,
                    Some(Outcome::Failed(failure)) => failure.stage == Stage::Descriptors,
                    Some(Outcome::Killed(_)) | None => true,
                };
                let channel = channel.filter(|_| !early);
                slots::put(Slot { generation, room, channel });
            }
            Err(lent) => left.push(Taken { lent, generation, channel, flight, begun }),
        }
    }
    *all = left;
    all.len()
}
