// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parent's half of a launch: creates the child, and finds out whether the child exec'd or failed.

use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Call, Calls, CloneOptions, Cloned, Errno, SharedWords, Stack, clone_child, wait_pidfd};

use crate::child::{PROBED, Probe, Shared, Start, UNPROBED, enter, enter_and_end, enter_detached, enter_probe};
use crate::plan::{Plan, Table};
use crate::report::{Outcome, PENDING, is_pending};

/// The memory of a launch: a stack and shared words. One launch at a time uses it, and later launches reuse it.
#[derive(Debug)]
pub struct ChildMemory {
    pub(crate) stack: Stack,
    /// The report of a child with memory of its own.
    pub(crate) words: SharedWords,
}

impl ChildMemory {
    /// Maps a stack and a page of words.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<ChildMemory, Errno> {
        Ok(ChildMemory { stack: Stack::new()?, words: SharedWords::new()? })
    }
}

/// A created child: its pid and pidfd, and whether it became the program.
#[derive(Debug)]
pub struct Launched {
    /// Pid and pidfd. The caller owns the pidfd and must reap the child, even after a failure.
    pub child: Cloned,
    /// Whether the child exec'd, failed or was killed.
    pub outcome: Outcome,
}

/// Calls `clone`. If `block` is true, blocks all signals during the call, and passes the previous
/// mask to `clone`.
pub(crate) fn with_signals_blocked<T>(
    block: bool,
    clone: impl FnOnce(Option<SignalSet>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let blocked = if block { Some(call::set_signal_mask(u64::MAX)?) } else { None };
    let launched = clone(blocked);
    if let Some(mask) = blocked {
        // This call cannot fail, because the same call has just succeeded.
        let _ = call::set_signal_mask(mask);
    }
    launched
}

/// Starts a child that performs `plan`; returns when the child has become the program or has failed.
///
/// The function sets `options.share_descriptors` from the table. Without `options.clone3` the child inherits handlers,
/// so the calling thread blocks all signals until the function returns.
///
/// # Errors
/// No child was created; see [`spawnfd_sys::clone_child`].
pub fn launch(
    memory: &mut ChildMemory,
    options: CloneOptions,
    table: Table,
    plan: &Plan<'_>,
) -> Result<Launched, Errno> {
    // A child that shares this memory reports in a word on this stack. Only other children need the shared page.
    let near = AtomicU64::new(PENDING);
    let report = if options.share_memory { &near } else { &memory.words.get()[0] };
    report.store(PENDING, Ordering::Release);
    let options = CloneOptions { share_descriptors: !matches!(table, Table::Copied), ..options };
    let child = with_signals_blocked(!options.clone3, |blocked| {
        let has_handlers = !options.clone3;
        let start = Start { plan, table, report, has_handlers, mask: plan.signal_mask.or(blocked), gate: None };
        // SAFETY: `enter` keeps the contract of this crate's documentation: with shared memory it writes only to
        // `stack`, ours by the exclusive borrow of `memory`, and to the two words. The call returns when the child has
        // left this memory, so `start` and everything the plan owns outlive the child's use. Signals are blocked if
        // the child may have handlers.
        unsafe { clone_child(&options, &memory.stack, enter, (&raw const start).cast(), None) }
    })?;
    let outcome = Outcome::of(report.load(Ordering::Acquire));
    Ok(Launched { child, outcome })
}

/// Creates a child that exits at once. Until the caller reaps it, the zombie keeps the credentials of the calling
/// thread.
///
/// The zombie has no memory and no descriptors, and only a wait with `__WALL` finds it.
///
/// # Errors
/// No child was created; see [`spawnfd_sys::clone_child`].
pub fn leave_marker(memory: &mut ChildMemory, clone3: bool) -> Result<Cloned, Errno> {
    let options = CloneOptions { share_memory: true, share_descriptors: true, clone3, ..CloneOptions::default() };
    with_signals_blocked(!options.clone3, |_| {
        // SAFETY: `enter_and_end` reads and writes nothing; the exclusive borrow of `memory` makes `stack` ours.
        // Signals are blocked if the child may have handlers.
        unsafe { clone_child(&options, &memory.stack, enter_and_end, core::ptr::null(), None) }
    })
}

/// Finds the calls among `calls` for which the calling thread's seccomp filter kills a child.
///
/// A probe child makes each call once, with arguments that change nothing. If the filter kills the child, the next
/// probe child continues with the call after that one.
///
/// If `share_memory` is true, the child runs in the caller's memory. Before Linux 5.16 a core dump kills all processes
/// that share the memory. A kill by a filter counts as a core dump for any value of RLIMIT_CORE.
///
/// # Errors
/// No child was created (see [`spawnfd_sys::clone_child`]), or the child ended in another way than by SIGSYS
/// (ECANCELED).
///
/// # References
/// Linux 5.16, commit 0258b5fd7c71: "coredump: Limit coredumps to a single thread group".
pub fn killed_calls(memory: &mut ChildMemory, mut calls: Calls, share_memory: bool) -> Result<Calls, Errno> {
    const SIGSYS: i32 = 31;
    // Use clone, because the filter may kill for clone3.
    let options = CloneOptions { share_memory, share_descriptors: true, ..CloneOptions::default() };
    let [progress, ..] = memory.words.get();
    let mut killed = Calls::NONE;
    loop {
        progress.store(UNPROBED, Ordering::Release);
        let probe = Probe { calls, own_memory: !share_memory, progress };
        let child = with_signals_blocked(!options.clone3, |_| {
            // SAFETY: `enter_probe` writes to `stack`, ours by the exclusive borrow of `memory`, and to a word. `probe`
            // outlives the call, which returns when the child has exited. Signals are blocked.
            unsafe { clone_child(&options, &memory.stack, enter_probe, (&raw const probe).cast(), None) }
        })?;
        let pidfd = child.pidfd.into_number();
        let status = wait_pidfd(pidfd, true).ok().flatten().map_or(SIGSYS, |ended| ended.status);
        let _ = call::close(pidfd);
        let at = progress.load(Ordering::Acquire);
        if at == PROBED {
            return Ok(killed);
        }
        let call = usize::try_from(at).ok().and_then(|at| Call::ALL.get(at)).filter(|_| status & 0x7f == SIGSYS);
        let Some(&call) = call else { return Err(Errno::ECANCELED) };
        killed = killed.with(call);
        for &made in Call::ALL.iter().take(call as usize + 1) {
            calls = calls.without(made);
        }
    }
}

/// A child whose parent does not wait for exec: its plan, and later its outcome.
#[derive(Clone, Debug)]
pub struct Detached(pub(crate) Arc<Shared>);

impl Detached {
    /// Represents a child with memory of its own, which uses only `words` of the returned value.
    pub(crate) fn with_own_memory(plan: Arc<Plan<'static>>, words: SharedWords) -> Detached {
        let (report, clear_tid) = (AtomicU64::new(PENDING), AtomicU32::new(0));
        let (table, has_handlers) = (Table::Copied, true);
        Detached(Arc::new(Shared { plan, table, has_handlers, mask: None, report, clear_tid, words: Some(words) }))
    }

    /// The plan that the child performs.
    pub fn plan(&self) -> &Plan<'static> {
        &self.0.plan
    }

    /// The outcome of a child that has ended.
    pub fn outcome_of_ended(&self) -> Outcome {
        let report = self.0.words.as_ref().map_or(&self.0.report, |words| &words.get()[0]);
        Outcome::of(report.load(Ordering::Acquire))
    }

    /// The outcome of the child. `None` while the child is between clone and exec.
    ///
    /// For a child with [memory of its own](detach_with_own_memory), call this function after the child has ended.
    /// `None` then means that a signal killed the child before exec.
    pub fn outcome(&self) -> Option<Outcome> {
        if let Some(words) = &self.0.words {
            let [report, ..] = words.get();
            return Some(report.load(Ordering::Acquire)).filter(|&word| !is_pending(word)).map(Outcome::of);
        }
        // The kernel clears `clear_tid` after all stores of the child.
        (self.0.clear_tid.load(Ordering::Acquire) == 0).then(|| Outcome::of(self.0.report.load(Ordering::Acquire)))
    }
}

/// The stack that a detached child still uses.
#[derive(Debug)]
pub struct SlotInUse {
    started: Detached,
    memory: ManuallyDrop<ChildMemory>,
}

impl SlotInUse {
    /// Returns the [`ChildMemory`] and the child's outcome once the child has left the caller's memory.
    ///
    /// # Errors
    /// `self`, while the child still uses the stack.
    pub fn back(self) -> Result<(ChildMemory, Detached), SlotInUse> {
        if self.started.outcome().is_none() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and neither field is used again: each is moved out once.
        Ok(unsafe { (ManuallyDrop::take(&mut this.memory), core::ptr::read(&raw const this.started)) })
    }
}

impl Drop for SlotInUse {
    /// Leaks the stack and the plan if the child still uses them.
    fn drop(&mut self) {
        match self.started.outcome() {
            // SAFETY: the child has left the stack, and `memory` is not used again.
            Some(_) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            None => core::mem::forget(self.started.clone()),
        }
    }
}

/// Starts a child that performs `plan`, and returns without waiting for the child.
///
/// The child shares the caller's memory and receives its descriptors from a socket ([`Table::Passed`]), so the caller
/// may close its own descriptors as soon as the call returns.
///
/// # Errors
/// The errno and the [`ChildMemory`] if no child was created; EINVAL for another table, or without `share_memory`.
pub fn detach(
    memory: ChildMemory,
    options: CloneOptions,
    table: Table,
    plan: Arc<Plan<'static>>,
) -> Result<(Cloned, Detached, SlotInUse), (Errno, ChildMemory)> {
    if !options.share_memory || !matches!(table, Table::Passed { .. }) {
        return Err((Errno::EINVAL, memory));
    }
    let options = CloneOptions { share_descriptors: true, ..options };
    let has_handlers = !options.clone3;
    let launched = with_signals_blocked(!options.clone3, |blocked| {
        let mask = plan.signal_mask.or(blocked);
        let (report, clear_tid) = (AtomicU64::new(PENDING), AtomicU32::new(1));
        let shared = Arc::new(Shared { plan, table, has_handlers, mask, report, clear_tid, words: None });
        // SAFETY: `enter_detached` keeps the contract of this crate's documentation, and writes only to `stack` and to
        // words of `shared`. `memory` and `shared` go into a `SlotInUse`, which frees neither before the kernel has
        // cleared `clear_tid`. Signals are blocked if the child may have handlers.
        let child = unsafe {
            clone_child(&options, &memory.stack, enter_detached, Arc::as_ptr(&shared).cast(), Some(&shared.clear_tid))
        }?;
        Ok((child, Detached(shared)))
    });
    match launched {
        Ok((child, started)) => Ok((child, started.clone(), SlotInUse { started, memory: ManuallyDrop::new(memory) })),
        Err(errno) => Err((errno, memory)),
    }
}

/// Starts a child with memory of its own and a copy of the caller's table, and returns without
/// waiting for the child.
///
/// The child uses no memory of the caller, so its actions may block for any time. In return, the
/// kernel copies the page tables.
///
/// # Errors
/// No child was created.
pub fn detach_with_own_memory(
    memory: &mut ChildMemory,
    options: CloneOptions,
    plan: Arc<Plan<'static>>,
) -> Result<(Cloned, Detached), Errno> {
    let words: SharedWords = SharedWords::new()?;
    let [report, ..] = words.get();
    report.store(PENDING, Ordering::Release);
    let options = CloneOptions { share_memory: false, share_descriptors: false, ..options };
    let (table, has_handlers) = (Table::Copied, !options.clone3);
    // The kernel does not clear this word for a child with memory of its own, and no thread waits on the word.
    let clear_tid = AtomicU32::new(0);
    let child = with_signals_blocked(!options.clone3, |blocked| {
        let start = Start { plan: &plan, table, report, has_handlers, mask: plan.signal_mask.or(blocked), gate: None };
        // SAFETY: the child has a copy of this memory, including the stack and `start`. Only the words are shared.
        // Signals are blocked if the child may have handlers.
        unsafe { clone_child(&options, &memory.stack, enter, (&raw const start).cast(), Some(&clear_tid)) }
    })?;
    Ok((child, Detached::with_own_memory(plan, words)))
}
