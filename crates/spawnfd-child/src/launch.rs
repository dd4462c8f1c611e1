// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parent's half: give birth, sleep, read what became of the child.

use core::sync::atomic::{AtomicU64, Ordering};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Birth, Cloned, Errno, SharedWords, Stack, clone_child};

use crate::child::{Start, enter};
use crate::plan::{Handlers, Plan, Table};
use crate::report::{EXEC, Failure, PENDING};

/// No set of caught signals: SIGKILL cannot be.
const NOT_READ: SignalSet = u64::MAX;

/// The memory one launch at a time needs; reused from one to the next.
#[derive(Debug)]
pub struct Room {
    stack: Stack,
    /// The report, and the signals found caught, of a child with memory of its own.
    words: SharedWords,
}

impl Room {
    /// Maps it.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<Room, Errno> {
        Ok(Room { stack: Stack::new()?, words: SharedWords::new()? })
    }
}

/// A child that was born: its pid and pidfd, and whether it became the program.
#[derive(Debug)]
pub struct Born {
    /// Pid and pidfd. The pidfd belongs to the caller, also after a failure: the child is still to be reaped.
    pub child: Cloned,
    /// `Ok`: it exec'd. `Err(None)`: it was killed before it came to exec.
    pub outcome: Result<(), Option<Failure>>,
    /// The signals that had a handler, if the child has gone through all of them.
    pub caught: Option<SignalSet>,
}

/// No child was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchError(pub Errno);

/// Starts a child that carries out `plan`; returns when it has become the program or has failed.
///
/// `birth.share_descriptors` is set from the plan's table. Where handlers may stand in the child all signals are blocked in the calling
/// thread meanwhile; [`Handlers::Cleared`] goes with `birth.clone3`, and with nothing else.
///
/// # Errors
/// [`LaunchError`] when there is no child; see [`spawnfd_sys::clone_child`].
pub fn launch(room: &mut Room, birth: Birth, plan: &Plan<'_>, handlers: Handlers) -> Result<Born, LaunchError> {
    // A child that shares our memory reports on our stack, which is at hand.
    let near = [AtomicU64::new(0), AtomicU64::new(0)];
    let [report, caught] = if birth.share_memory { &near } else { room.words.get() };
    report.store(PENDING, Ordering::Release);
    caught.store(NOT_READ, Ordering::Release);
    let handlers = match (birth.clone3, handlers) {
        (true, _) => Handlers::Cleared,
        (false, Handlers::Cleared) => Handlers::Unknown,
        (false, handlers) => handlers,
    };
    let blocked = if birth.clone3 { None } else { Some(call::set_signal_mask(u64::MAX).map_err(LaunchError)?) };
    let start = Start { plan, report, handlers, caught, mask: plan.signal_mask.or(blocked) };
    let share_descriptors = !matches!(plan.table, Table::Copied);
    let birth = Birth { share_descriptors, ..birth };

    // SAFETY: `enter` keeps the contract of this crate's documentation: with shared memory it writes to `stack`, which the
    // exclusive borrow of `room` makes ours, and to the two words. `start` and all the plan borrows outlive the call, which
    // returns when the child is gone from this memory. Signals are blocked where handlers stand.
    let cloned = unsafe { clone_child(&birth, &room.stack, enter, (&raw const start).cast()) };
    if let Some(mask) = blocked {
        // Cannot fail: the same call has just succeeded.
        let _ = call::set_signal_mask(mask);
    }

    let child = cloned.map_err(LaunchError)?;
    let outcome = match report.load(Ordering::Acquire) {
        EXEC => Ok(()),
        PENDING => Err(None),
        word => Err(Some(Failure::unpack(word))),
    };
    let caught = Some(caught.load(Ordering::Acquire)).filter(|&caught| caught != NOT_READ);
    Ok(Born { child, outcome, caught })
}
