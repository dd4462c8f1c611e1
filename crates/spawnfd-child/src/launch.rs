// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parent's half of a launch: creates the child, and finds out whether the child exec'd or failed.

use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Call, CallSet, CloneOptions, Cloned, Entry, Errno, SharedWords, Stack, clone_child, wait_pidfd};

use crate::child::{
    Gate, PROBED, Probe, Shared, Start, UNPROBED, enter, enter_and_end, enter_asynchronous, enter_probe,
};
use crate::plan::{Plan, Table};
use crate::report::{Outcome, PENDING};

/// The memory of a launch: a stack and shared words. One launch at a time uses it, and later launches reuse it.
#[derive(Debug)]
pub struct ChildMemory {
    pub(crate) stack: Stack,
    words: Words,
}

impl ChildMemory {
    /// Maps a stack and a page of words.
    ///
    /// # Errors
    /// ENOMEM: no memory or too many mappings.
    pub fn new() -> Result<ChildMemory, Errno> {
        Ok(ChildMemory { stack: Stack::new()?, words: Words::new()? })
    }
}

/// The words that the caller shares with the processes of a launch, also with those that have memory of their own.
#[derive(Debug)]
pub(crate) struct Words(SharedWords<5>);

impl Words {
    fn new() -> Result<Words, Errno> {
        SharedWords::new().map(Words)
    }

    /// The child's report.
    pub(crate) fn report(&self) -> &AtomicU64 {
        &self.0.get()[0]
    }

    /// The child's pid. An intermediate process stores it.
    pub(crate) fn pid(&self) -> &AtomicU64 {
        &self.0.get()[1]
    }

    /// The number of the child's pidfd.
    pub(crate) fn pidfd(&self) -> &AtomicU32 {
        &self.0.halves::<2>()[0]
    }

    /// The gate at which the child waits.
    pub(crate) fn gate(&self) -> Gate<'_> {
        Gate(&self.0.halves::<2>()[1])
    }

    /// The report of an intermediate process.
    pub(crate) fn intermediate_report(&self) -> &AtomicU64 {
        &self.0.get()[3]
    }

    /// The wait status of a child that an intermediate process has reaped.
    pub(crate) fn status(&self) -> &AtomicU64 {
        &self.0.get()[4]
    }
}

/// The process that creates the child.
pub trait Parent {
    /// The processes that the parent creates.
    type Started;

    /// True for the caller. All signals are blocked until another parent has created the child.
    const IS_CALLER: bool = false;

    /// True if the child waits at a gate before its exec.
    const HAS_GATE: bool = false;

    /// Creates the child.
    ///
    /// # Errors
    /// No process was created; see [`spawnfd_sys::clone_child`].
    ///
    /// # Safety
    /// - The entry point of `child` is sound with its input, in a child with these options.
    /// - Without clone3, or if the parent is not the caller, the caller has blocked all signals.
    /// - What the child reads does not change until the child has exec'd or exited. If `in_memory` is `Some` and the
    ///   child shares the caller's memory, it stays valid until that word is 0.
    unsafe fn create(self, child: &NewChild<'_>) -> Result<Self::Started, Errno>;
}

/// A child to create.
#[derive(Debug)]
pub struct NewChild<'a> {
    pub(crate) options: CloneOptions,
    /// A stack that no other child uses.
    pub(crate) stack: &'a Stack,
    pub(crate) entry: Entry,
    pub(crate) input: *const (),
    pub(crate) words: &'a Words,
    /// The word that the kernel clears when the child has left the caller's memory. `None`: the parent waits for that.
    pub(crate) in_memory: Option<&'a AtomicU32>,
    /// The caller's signal mask, if all signals are blocked.
    pub(crate) mask: Option<SignalSet>,
}

/// The caller is the parent.
#[derive(Clone, Copy, Debug)]
pub struct Caller;

impl Parent for Caller {
    type Started = Cloned;

    const IS_CALLER: bool = true;

    unsafe fn create(self, child: &NewChild<'_>) -> Result<Cloned, Errno> {
        // SAFETY: the caller keeps this function's contract, which includes that of `clone_child`.
        unsafe { clone_child(&child.options, child.stack, child.entry, child.input, child.in_memory) }
    }
}

/// Calls `clone` while all signals are blocked, with the previous mask.
pub(crate) fn with_all_signals_blocked<T>(clone: impl FnOnce(SignalSet) -> Result<T, Errno>) -> Result<T, Errno> {
    let mask = call::set_signal_mask(SignalSet::MAX)?;
    let launched = clone(mask);
    // This call cannot fail, because the same call has just succeeded.
    let _ = call::set_signal_mask(mask);
    launched
}

/// Calls `clone`. If `block` is true, blocks all signals during the call, and passes the previous mask to `clone`.
fn with_signals_blocked<T>(block: bool, clone: impl FnOnce(Option<SignalSet>) -> Result<T, Errno>) -> Result<T, Errno> {
    if block { with_all_signals_blocked(|mask| clone(Some(mask))) } else { clone(None) }
}

/// Calls `clone`, and calls it again without clone3 if the kernel (Linux before 5.5) or a seccomp filter refuses clone3.
pub(crate) fn clone_with_fallback(
    options: &mut CloneOptions,
    clone: impl Fn(&CloneOptions) -> Result<i32, Errno>,
) -> Result<i32, Errno> {
    match clone(options) {
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::EPERM) if options.clone3 => {
            options.clone3 = false;
            clone(options)
        }
        cloned => cloned,
    }
}

/// Starts a child that performs `plan`. Returns when the child has become the program or has failed, with the outcome.
/// The caller owns the pidfds, and must reap its children even after a failure.
///
/// The function sets `options.share_descriptors` from the table. Without `options.clone3` the child inherits handlers,
/// so the calling thread blocks all signals until the function returns.
///
/// # Errors
/// No child was created; see [`spawnfd_sys::clone_child`].
pub fn launch<P: Parent>(
    memory: &mut ChildMemory,
    options: CloneOptions,
    table: Table,
    plan: &Plan<'_>,
    parent: P,
) -> Result<(P::Started, Outcome), Errno> {
    let ChildMemory { stack, words } = memory;
    let started = start(stack, words, options, table, plan, parent, None)?;
    Ok((started, Outcome::of(words.report().load(Ordering::Acquire))))
}

/// Starts a child that reports in `words`. If `in_memory` is `Some`, the child has memory of its own, and the function
/// does not wait for its exec.
fn start<P: Parent>(
    stack: &Stack,
    words: &Words,
    options: CloneOptions,
    table: Table,
    plan: &Plan<'_>,
    parent: P,
    in_memory: Option<&AtomicU32>,
) -> Result<P::Started, Errno> {
    let (report, gate) = (words.report(), P::HAS_GATE.then(|| words.gate()));
    report.store(PENDING, Ordering::Release);
    let options = CloneOptions { share_descriptors: !matches!(table, Table::Copied), ..options };
    let has_handlers = !options.clone3;
    with_signals_blocked(has_handlers || !P::IS_CALLER, |mask| {
        let start = Start { plan, table, report, has_handlers, mask: plan.signal_mask.or(mask), gate };
        let input = (&raw const start).cast();
        // SAFETY: `enter` keeps the contract of this crate's documentation: with shared memory it writes only to
        // `stack`, ours by the exclusive borrow of the callers, and to the words. The call returns when the child has
        // left this memory, so `start` and everything the plan owns outlive the child's use. A child with memory of its
        // own has copies. Signals are blocked if the child may have handlers.
        unsafe { parent.create(&NewChild { options, stack, entry: enter, input, words, in_memory, mask }) }
    })
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
pub fn probe_killed_calls(memory: &mut ChildMemory, mut calls: CallSet, share_memory: bool) -> Result<CallSet, Errno> {
    const SIGSYS: i32 = 31;
    // Use clone, because the filter may kill for clone3.
    let options = CloneOptions { share_memory, share_descriptors: true, ..CloneOptions::default() };
    let progress = memory.words.report();
    let mut killed_calls = CallSet::NONE;
    loop {
        progress.store(UNPROBED, Ordering::Release);
        let probe = Probe { calls, separate_mm: !share_memory, progress };
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
            return Ok(killed_calls);
        }
        let call = usize::try_from(at).ok().and_then(|at| Call::ALL.get(at)).filter(|_| status & 0x7f == SIGSYS);
        let Some(&call) = call else { return Err(Errno::ECANCELED) };
        killed_calls = killed_calls.with(call);
        for &made in Call::ALL.iter().take(call as usize + 1) {
            calls = calls.without(made);
        }
    }
}

/// A child for whose exec the caller does not wait: its plan, and later its outcome.
#[derive(Debug)]
pub struct AsyncStart {
    plan: Arc<Plan<'static>>,
    report: Report,
}

/// The place of the report of an asynchronous child.
#[derive(Debug)]
enum Report {
    /// The child shares this memory.
    Shared(Arc<Shared>),
    /// The child has memory of its own.
    Words(Words),
}

impl AsyncStart {
    /// The plan that the child performs.
    pub fn plan(&self) -> &Plan<'static> {
        &self.plan
    }

    /// The outcome of a child that has ended. Of another child with memory of its own: the outcome as far as the child
    /// has reported it. Such a child may call exec, and fail, later than this call.
    pub fn outcome(&self) -> Outcome {
        let report = match &self.report {
            Report::Shared(shared) => &shared.report,
            Report::Words(words) => words.report(),
        };
        Outcome::of(report.load(Ordering::Acquire))
    }
}

/// The stack that an asynchronous child still uses.
#[derive(Debug)]
pub struct SlotInUse {
    shared: Arc<Shared>,
    memory: ManuallyDrop<ChildMemory>,
}

impl SlotInUse {
    /// Returns the [`ChildMemory`] and the child's outcome once the child has left the caller's memory.
    ///
    /// # Errors
    /// `self`, while the child still uses the stack.
    pub fn back(self) -> Result<(ChildMemory, Outcome), SlotInUse> {
        if self.shared.is_in_use() {
            return Err(self);
        }
        let outcome = Outcome::of(self.shared.report.load(Ordering::Acquire));
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and neither field is used again: each is moved out once.
        let (memory, shared) =
            unsafe { (ManuallyDrop::take(&mut this.memory), core::ptr::read(&raw const this.shared)) };
        drop(shared);
        Ok((memory, outcome))
    }
}

impl Drop for SlotInUse {
    /// Leaks the stack and the plan if the child still uses them.
    fn drop(&mut self) {
        if self.shared.is_in_use() {
            core::mem::forget(self.shared.clone());
        } else {
            // SAFETY: the child has left the stack, and `memory` is not used again.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

/// The processes of an asynchronous start, the handle for the outcome, and the memory, which the child may still use.
pub type StartedAsync<S> = (S, AsyncStart, Result<ChildMemory, SlotInUse>);

/// Starts a child that performs `plan`, and returns without waiting for the child's exec.
///
/// A child that shares the caller's memory is a child of the [`Caller`], and receives its descriptors from a socket
/// ([`Table::Passed`]). So the caller may close its own descriptors as soon as the call returns.
///
/// A child with memory of its own uses no memory of the caller, so its actions may block for any time. In return, the
/// kernel copies the page tables.
///
/// # Errors
/// The errno and the [`ChildMemory`] if no child was created. EINVAL: a child that shares the caller's memory, with
/// another parent or table.
pub fn launch_async<P: Parent>(
    memory: ChildMemory,
    options: CloneOptions,
    table: Table,
    plan: Arc<Plan<'static>>,
    parent: P,
) -> Result<StartedAsync<P::Started>, (Errno, ChildMemory)> {
    if options.share_memory {
        return match launch_async_in_memory(&memory, options, table, plan.clone(), parent) {
            Ok((started, shared)) => {
                let report = Report::Shared(shared.clone());
                let in_use = SlotInUse { shared, memory: ManuallyDrop::new(memory) };
                Ok((started, AsyncStart { plan, report }, Err(in_use)))
            }
            Err(errno) => Err((errno, memory)),
        };
    }
    // The kernel does not clear this word for a child with memory of its own, and no thread waits on the word.
    let in_memory = AtomicU32::new(0);
    let started = Words::new().and_then(|words| {
        let started = start(&memory.stack, &words, options, table, &plan, parent, Some(&in_memory))?;
        Ok((started, words))
    });
    match started {
        Ok((started, words)) => Ok((started, AsyncStart { plan, report: Report::Words(words) }, Ok(memory))),
        Err(errno) => Err((errno, memory)),
    }
}

/// Starts a child in the caller's memory, and returns without waiting for the child.
fn launch_async_in_memory<P: Parent>(
    memory: &ChildMemory,
    options: CloneOptions,
    table: Table,
    plan: Arc<Plan<'static>>,
    parent: P,
) -> Result<(P::Started, Arc<Shared>), Errno> {
    if !P::IS_CALLER || !matches!(table, Table::Passed { .. }) {
        return Err(Errno::EINVAL);
    }
    let options = CloneOptions { share_descriptors: true, ..options };
    let ChildMemory { stack, words } = memory;
    let has_handlers = !options.clone3;
    with_signals_blocked(has_handlers, |blocked| {
        let mask = plan.signal_mask.or(blocked);
        let (report, clear_tid) = (AtomicU64::new(PENDING), AtomicU32::new(1));
        let shared = Arc::new(Shared { plan, table, has_handlers, mask, report, clear_tid });
        let (input, in_memory) = (Arc::as_ptr(&shared).cast(), Some(&shared.clear_tid));
        let child = NewChild { options, stack, entry: enter_asynchronous, input, words, in_memory, mask: blocked };
        // SAFETY: `enter_asynchronous` keeps the contract of this crate's documentation, and writes only to `stack` and to
        // words of `shared`. The caller puts `memory` and `shared` into a `SlotInUse`, which frees neither before the
        // kernel has cleared `clear_tid`. Signals are blocked if the child may have handlers.
        let started = unsafe { parent.create(&child) }?;
        Ok((started, shared))
    })
}
