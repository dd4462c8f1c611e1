// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parent's half: give birth, sleep, read what became of the child.

use core::sync::atomic::Ordering;

use spawnfd_sys::{Birth, Cloned, Errno, SharedWord, Stack, call, clone_child};

use crate::child::{Start, enter};
use crate::plan::{Plan, Table};
use crate::report::{EXEC, Failure, PENDING};

/// The memory one launch at a time needs; reused from one to the next.
#[derive(Debug)]
pub struct Room {
    stack: Stack,
    report: SharedWord,
}

impl Room {
    /// Maps it.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<Room, Errno> {
        Ok(Room { stack: Stack::new()?, report: SharedWord::new()? })
    }
}

/// A child that was born: its pid and pidfd, and whether it became the program.
#[derive(Debug)]
pub struct Born {
    /// Pid and pidfd. The pidfd belongs to the caller, also after a failure: the child is still to be reaped.
    pub child: Cloned,
    /// `Ok`: it exec'd. `Err(None)`: it was killed before it came to exec.
    pub outcome: Result<(), Option<Failure>>,
}

/// No child was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchError(pub Errno);

/// Starts a child that carries out `plan`; returns when it has become the program or has failed.
///
/// `birth.share_descriptors` is set from the plan's table. Without clone3 all signals are blocked in the calling thread
/// meanwhile, as the parent's handlers stand in the child until it has reset them.
///
/// # Errors
/// [`LaunchError`] when there is no child; see [`spawnfd_sys::clone_child`].
pub fn launch(room: &mut Room, birth: Birth, plan: &Plan<'_>) -> Result<Born, LaunchError> {
    let report = room.report.get();
    report.store(PENDING, Ordering::Release);
    let start = Start { plan, report, handlers: !birth.clone3 };
    let birth = Birth { share_descriptors: matches!(plan.table, Table::Passed { .. }), ..birth };

    let blocked = if birth.clone3 { None } else { Some(call::set_signal_mask(u64::MAX).map_err(LaunchError)?) };
    // SAFETY: `enter` keeps the contract of this crate's documentation: with shared memory it writes to `stack`, which the
    // exclusive borrow of `room` makes ours, and to `report`. `start` and all the plan borrows outlive the call, which
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
    Ok(Born { child, outcome })
}
