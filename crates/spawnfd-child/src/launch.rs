// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parent's half: give birth, and learn what became of the child; asleep meanwhile, or not.

use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Birth, Call, Calls, Cloned, Errno, SharedWords, Stack, clone_child, wait_pidfd};

use crate::child::{PROBED, Probe, Shared, Start, UNPROBED, enter, enter_and_end, enter_detached, enter_probe};
use crate::plan::{Handlers, Plan, Table};
use crate::report::{Outcome, PENDING, is_pending};

/// No set of caught signals: SIGKILL cannot be.
pub(crate) const NOT_READ: SignalSet = u64::MAX;

/// The memory one launch at a time needs; reused from one to the next.
#[derive(Debug)]
pub struct Room {
    pub(crate) stack: Stack,
    /// The report, and the signals found caught, of a child with memory of its own.
    pub(crate) words: SharedWords,
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
    /// What became of it.
    pub outcome: Outcome,
    /// The signals that had a handler, if the child has gone through all of them.
    pub caught: Option<SignalSet>,
}

/// No child was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchError(pub Errno);

/// What is known of handlers, where it depends on how the child is born.
pub(crate) fn settled(birth: Birth, handlers: Handlers) -> Handlers {
    match (birth.clone3, handlers) {
        (true, _) => Handlers::Cleared,
        (false, Handlers::Cleared) => Handlers::Unknown,
        (false, handlers) => handlers,
    }
}

/// Runs `birth` with all signals blocked where handlers may stand in the child; tells it the mask from before.
fn with_signals_blocked<T>(
    birth: Birth,
    give_birth: impl FnOnce(Option<SignalSet>) -> Result<T, Errno>,
) -> Result<T, LaunchError> {
    let blocked = if birth.clone3 { None } else { Some(call::set_signal_mask(u64::MAX).map_err(LaunchError)?) };
    let born = give_birth(blocked);
    if let Some(mask) = blocked {
        // Cannot fail: the same call has just succeeded.
        let _ = call::set_signal_mask(mask);
    }
    born.map_err(LaunchError)
}

/// Starts a child that carries out `plan`; returns when it has become the program or has failed.
///
/// `birth.share_descriptors` is set from the table. Where handlers may stand in the child all signals are blocked in the calling
/// thread meanwhile; [`Handlers::Cleared`] goes with `birth.clone3`, and with nothing else.
///
/// # Errors
/// [`LaunchError`] when there is no child; see [`spawnfd_sys::clone_child`].
pub fn launch(
    room: &mut Room,
    birth: Birth,
    table: Table,
    plan: &Plan,
    handlers: Handlers,
) -> Result<Born, LaunchError> {
    // A child that shares our memory reports on our stack, which is at hand.
    let near = [AtomicU64::new(0), AtomicU64::new(0)];
    let [far @ .., _, _] = room.words.get();
    let [report, caught] = if birth.share_memory { &near } else { far };
    report.store(PENDING, Ordering::Release);
    caught.store(NOT_READ, Ordering::Release);
    let birth = Birth { share_descriptors: !matches!(table, Table::Copied), ..birth };
    let child = with_signals_blocked(birth, |blocked| {
        let handlers = settled(birth, handlers);
        let start = Start { plan, table, report, handlers, caught, mask: plan.signal_mask.or(blocked) };
        // SAFETY: `enter` keeps the contract of this crate's documentation: with shared memory it writes to `stack`, which the
        // exclusive borrow of `room` makes ours, and to the two words. `start` and all the plan owns outlive the call, which
        // returns when the child is gone from this memory. Signals are blocked where handlers stand.
        unsafe { clone_child(&birth, &room.stack, enter, (&raw const start).cast(), None) }
    })?;
    let outcome = Outcome::of(report.load(Ordering::Acquire));
    Ok(Born { child, outcome, caught: found(caught) })
}

/// Leaves a child behind that has done nothing but end: unreaped, it shows to others the credentials it was born with.
///
/// It has no memory and no descriptors any more, and only a wait with `__WALL` finds it.
///
/// # Errors
/// [`LaunchError`] when there is no child; see [`spawnfd_sys::clone_child`].
pub fn leave_marker(room: &mut Room, clone3: bool) -> Result<Cloned, LaunchError> {
    let birth =
        Birth { share_memory: true, share_descriptors: true, namespaces: 0, cgroup: None, sibling: false, clone3 };
    with_signals_blocked(birth, |_| {
        // SAFETY: `enter_and_end` reads and writes nothing; the exclusive borrow of `room` makes `stack` ours. Signals are blocked
        // where handlers stand.
        unsafe { clone_child(&birth, &room.stack, enter_and_end, core::ptr::null(), None) }
    })
}

/// Which of these calls a seccomp filter kills a child of the calling thread for: a probe child makes each call once, with arguments
/// that change nothing. The next one goes on after a call that was killed.
///
/// `share_memory`: the child runs in the caller's memory. Before Linux 5.16 a core dump ends all processes that share the memory, and a
/// death by a filter is one, whatever RLIMIT_CORE says.
///
/// # Errors
/// [`LaunchError`]: there is no child (see [`spawnfd_sys::clone_child`]), or it ended otherwise (ECANCELED).
///
/// # References
/// Linux 5.16, commit 0258b5fd7c71: "coredump: Limit coredumps to a single thread group".
pub fn killed_calls(room: &mut Room, mut calls: Calls, share_memory: bool) -> Result<Calls, LaunchError> {
    const SIGSYS: i32 = 31;
    // Not clone3, which the filter may kill, too.
    let birth =
        Birth { share_memory, share_descriptors: true, namespaces: 0, cgroup: None, sibling: false, clone3: false };
    let [progress, ..] = room.words.get();
    let mut killed = Calls::NONE;
    loop {
        progress.store(UNPROBED, Ordering::Release);
        let probe = Probe { calls, own_memory: !share_memory, progress };
        let child = with_signals_blocked(birth, |_| {
            // SAFETY: `enter_probe` writes to `stack`, which the exclusive borrow of `room` makes ours, and to a word. `probe` outlives
            // the call, which returns when the child is gone. Signals are blocked.
            unsafe { clone_child(&birth, &room.stack, enter_probe, (&raw const probe).cast(), None) }
        })?;
        let pidfd = child.pidfd.into_number();
        let status = wait_pidfd(pidfd, true).ok().flatten().map_or(SIGSYS, |ended| ended.status);
        let _ = call::close(pidfd);
        let at = progress.load(Ordering::Acquire);
        if at == PROBED {
            return Ok(killed);
        }
        let call = usize::try_from(at).ok().and_then(|at| Call::ALL.get(at)).filter(|_| status & 0x7f == SIGSYS);
        let Some(&call) = call else { return Err(LaunchError(Errno::ECANCELED)) };
        killed = killed.with(call);
        for &made in Call::ALL.iter().take(call as usize + 1) {
            calls = calls.without(made);
        }
    }
}

pub(crate) fn found(caught: &AtomicU64) -> Option<SignalSet> {
    Some(caught.load(Ordering::Acquire)).filter(|&caught| caught != NOT_READ)
}

/// A child that was born and not waited for: what it was to do, and, later, what became of it.
#[derive(Clone, Debug)]
pub struct Flight(pub(crate) Arc<Shared>);

impl Flight {
    /// What it was to do.
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// What became of a child that has ended.
    pub fn outcome_of_ended(&self) -> Outcome {
        let report = self.0.words.as_ref().map_or(&self.0.report, |words| &words.get()[0]);
        Outcome::of(report.load(Ordering::Acquire))
    }

    /// What became of the child; `None` while it is between clone and exec. One that has ended has left.
    ///
    /// Of one with [memory of its own](take_off_apart) it is to be asked when it has ended; `None` then: it was killed on its way.
    pub fn outcome(&self) -> Option<Outcome> {
        if let Some(words) = &self.0.words {
            let [report, ..] = words.get();
            return Some(report.load(Ordering::Acquire)).filter(|&word| !is_pending(word)).map(Outcome::of);
        }
        // The kernel's store comes after all of the child's own.
        (self.0.apart.load(Ordering::Acquire) == 0).then(|| Outcome::of(self.0.report.load(Ordering::Acquire)))
    }

    /// The signals that had a handler, if the child has gone through all of them.
    pub fn caught(&self) -> Option<SignalSet> {
        found(&self.0.caught)
    }
}

/// The room a child in flight stands in.
#[derive(Debug)]
pub struct Lent {
    flight: Flight,
    room: ManuallyDrop<Room>,
}

impl Lent {
    /// Gives the room back once the child has left it.
    ///
    /// # Errors
    /// The same again while the child is still there.
    pub fn back(self) -> Result<Room, Lent> {
        if self.flight.outcome().is_none() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and neither part of it is used again: each is moved out once.
        let (room, flight) = unsafe { (ManuallyDrop::take(&mut this.room), core::ptr::read(&raw const this.flight)) };
        drop(flight);
        Ok(room)
    }
}

impl Drop for Lent {
    /// A child that still stands there keeps room and plan: they are not freed any more.
    fn drop(&mut self) {
        match self.flight.outcome() {
            // SAFETY: the child has left, and the room is not used again.
            Some(_) => unsafe { ManuallyDrop::drop(&mut self.room) },
            None => core::mem::forget(self.flight.clone()),
        }
    }
}

/// Starts a child that carries out `plan`, and does not wait for it.
///
/// The child has to share the caller's memory, and to get its descriptors from a socket ([`Table::Passed`]): the caller may close its own as
/// soon as the call returns.
///
/// # Errors
/// [`LaunchError`] when there is no child, with the room given back; EINVAL for another table, or memory of its own.
pub fn take_off(
    room: Room,
    birth: Birth,
    table: Table,
    plan: Arc<Plan>,
    handlers: Handlers,
) -> Result<(Cloned, Flight, Lent), (LaunchError, Room)> {
    if !birth.share_memory || !matches!(table, Table::Passed { .. }) {
        return Err((LaunchError(Errno::EINVAL), room));
    }
    let birth = Birth { share_descriptors: true, ..birth };
    let mut shared = Arc::new(Shared {
        mask: plan.signal_mask,
        plan,
        table,
        handlers: settled(birth, handlers),
        report: AtomicU64::new(PENDING),
        caught: AtomicU64::new(NOT_READ),
        apart: AtomicU32::new(1),
        words: None,
    });
    let born = with_signals_blocked(birth, |blocked| {
        if let (None, Some(shared)) = (shared.mask, Arc::get_mut(&mut shared)) {
            shared.mask = blocked;
        }
        // SAFETY: `enter_detached` keeps the contract of this crate's documentation, and writes to `stack` and to words of `shared`
        // only. Room and `shared` go into a `Lent`, which frees neither before the kernel has cleared `apart`. Signals are
        // blocked where handlers stand.
        unsafe { clone_child(&birth, &room.stack, enter_detached, Arc::as_ptr(&shared).cast(), Some(&shared.apart)) }
    });
    match born {
        Ok(child) => {
            let flight = Flight(shared);
            Ok((child, flight.clone(), Lent { flight, room: ManuallyDrop::new(room) }))
        }
        Err(error) => Err((error, room)),
    }
}

/// The same for a child that has memory of its own, and a copy of the caller's table: it may take as long as it likes, and needs nothing
/// of the caller's. Copying the page tables is what it costs.
///
/// # Errors
/// [`LaunchError`] when there is no child.
pub fn take_off_apart(
    room: &mut Room,
    birth: Birth,
    plan: Arc<Plan>,
    handlers: Handlers,
) -> Result<(Cloned, Flight), LaunchError> {
    let words: SharedWords = SharedWords::new().map_err(LaunchError)?;
    let [report, caught, ..] = words.get();
    report.store(PENDING, Ordering::Release);
    caught.store(NOT_READ, Ordering::Release);
    let birth = Birth { share_memory: false, share_descriptors: false, ..birth };
    let (table, handlers) = (Table::Copied, settled(birth, handlers));
    // Nobody waits for it: the kernel leaves the word of such a child as it is.
    let apart = AtomicU32::new(0);
    let child = with_signals_blocked(birth, |blocked| {
        let start = Start { plan: &plan, table, report, handlers, caught, mask: plan.signal_mask.or(blocked) };
        // SAFETY: the child has a copy of this memory, stack and `start` included, but for the words, which are mapped in both.
        // Signals are blocked where handlers stand.
        unsafe { clone_child(&birth, &room.stack, enter, (&raw const start).cast(), Some(&apart)) }
    })?;
    let (report, caught) = (AtomicU64::new(PENDING), AtomicU64::new(NOT_READ));
    let shared = Shared { plan, table, handlers, mask: None, report, caught, apart, words: Some(words) };
    Ok((child, Flight(Arc::new(shared))))
}
