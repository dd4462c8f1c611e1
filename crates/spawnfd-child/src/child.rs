// SPDX-License-Identifier: MIT OR Apache-2.0
//! The child, from its first instruction to exec.

use alloc::sync::Arc;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Call, CallSet, Errno, abi, prctl};

use crate::action::perform;
use crate::descriptors::{self, Sources};
use crate::plan::{Check, Identity, Plan, Program, Table, is_candidate};
use crate::report::{ChildStage, EXEC, EXEC_RENEWED, Failure};
use crate::table;

/// The child's input, and the words in which the child reports.
pub(crate) struct Start<'a, 'p> {
    pub plan: &'a Plan<'p>,
    pub table: Table,
    pub report: &'a AtomicU64,
    /// True if the child may have signal handlers. Then it starts with all signals blocked.
    pub has_handlers: bool,
    /// The program's signal mask. `None` if the child already has this mask.
    pub mask: Option<SignalSet>,
    /// The gate at which the child waits before it goes on to exec.
    pub gate: Option<Gate<'a>>,
}

/// A gate that the child's parent opens. The parent and the child may have memory of their own; they share the word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate<'a>(pub &'a AtomicU32);

impl Gate<'_> {
    pub(crate) const NOT_REACHED: u32 = 0;
    /// The child waits.
    pub(crate) const REACHED: u32 = 1;
    /// The child may go on.
    pub(crate) const OPEN: u32 = 2;
    /// The child has failed before the gate, and exits.
    pub(crate) const FAILED: u32 = 3;
    /// The child must not go on.
    const CLOSED: u32 = 4;
    /// How long a process waits before it checks that the other one has not ended.
    pub(crate) const INTERVAL: i64 = 5_000_000;

    /// Waits until the gate is open.
    ///
    /// # Errors
    /// ESRCH: the parent has closed the gate, or has ended.
    fn pass(self) -> Result<(), Errno> {
        let parent = call::getppid()?;
        let reached = self.0.compare_exchange(Self::NOT_REACHED, Self::REACHED, Ordering::AcqRel, Ordering::Acquire);
        if reached.is_ok() {
            call::futex_wake(self.0);
        }
        loop {
            match self.state() {
                Self::OPEN => return Ok(()),
                Self::CLOSED => return Err(Errno::ESRCH),
                _ if call::getppid()? != parent => return Err(Errno::ESRCH),
                _ => {}
            }
            self.wait_while(Self::REACHED);
        }
    }

    /// Waits until the gate has another state, at most [`INTERVAL`](Gate::INTERVAL).
    pub(crate) fn wait_while(self, state: u32) {
        call::futex_wait(self.0, state, Self::INTERVAL);
    }

    /// Prepares the gate for a child.
    pub(crate) fn reset(self) {
        self.0.store(Self::NOT_REACHED, Ordering::Release);
    }

    /// Opens the gate.
    pub(crate) fn open(self) {
        self.set(Self::OPEN);
    }

    /// Makes the child exit at the gate.
    pub(crate) fn close(self) {
        self.set(Self::CLOSED);
    }

    pub(crate) fn state(self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn set(self, state: u32) {
        self.0.store(state, Ordering::Release);
        call::futex_wake(self.0);
    }
}

/// Entry point of a child, which performs the plan.
///
/// # Safety
/// `start` points to a [`Start`] that does not change until the child has exec'd or exited.
pub(crate) unsafe extern "C" fn enter(start: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let start = unsafe { &*start.cast::<Start<'_, '_>>() };
    let failure = match prepare(start) {
        Ok((sources, path)) => Failure { stage: ChildStage::Exec, errno: exec(start.plan, &sources, path) },
        Err(failure) => failure,
    };
    start.report.store(failure.pack(), Ordering::Release);
    if let Some(gate) = start.gate.filter(|gate| gate.state() != Gate::OPEN) {
        gate.set(Gate::FAILED);
    }
    call::exit(127)
}

/// The memory that an asynchronous child reads and writes.
#[derive(Debug)]
pub(crate) struct Shared {
    pub plan: Arc<Plan<'static>>,
    pub table: Table,
    pub has_handlers: bool,
    pub mask: Option<SignalSet>,
    pub report: AtomicU64,
    /// The kernel sets this word to 0 when the child has left this memory.
    pub clear_tid: AtomicU32,
}

impl Shared {
    /// Whether the child has not left this memory.
    pub(crate) fn is_in_use(&self) -> bool {
        // The kernel clears `clear_tid` after all stores of the child.
        self.clear_tid.load(Ordering::Acquire) != 0
    }
}

/// Entry point of an asynchronous child.
///
/// # Safety
/// `shared` points to a [`Shared`] that stays allocated until the child has exec'd or exited. Until then other threads
/// only read it.
pub(crate) unsafe extern "C" fn enter_asynchronous(shared: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let &Shared { ref plan, table, has_handlers, mask, ref report, .. } = shared;
    let start = Start { plan, table, report, has_handlers, mask, gate: None };
    // SAFETY: `start` is on this child's own stack. By this function's contract, the data it refers to does not change.
    unsafe { enter((&raw const start).cast()) }
}

/// Entry point of a child that exits at once.
///
/// # Safety
/// No requirement: the child does not read its argument.
pub(crate) unsafe extern "C" fn enter_and_end(_: *const ()) -> ! {
    call::exit(0)
}

/// The arguments of a probe child.
pub(crate) struct Probe<'a> {
    /// The system calls that the child makes.
    pub calls: CallSet,
    /// True if the child has memory of its own.
    pub separate_mm: bool,
    /// The word in which the child stores the number of the call in progress, and [`PROBED`] at the end.
    pub progress: &'a AtomicU64,
}

/// The value of a probe child's status word before the child's first system call.
pub(crate) const UNPROBED: u64 = u64::MAX;
/// The word of a probe child after its last call.
pub(crate) const PROBED: u64 = u64::MAX - 1;

/// Entry point of a probe child. It makes each call once, so that the parent learns for which calls a filter kills.
///
/// # Safety
/// `probe` points to a [`Probe`] that does not change until the child has exited.
pub(crate) unsafe extern "C" fn enter_probe(probe: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let probe = unsafe { &*probe.cast::<Probe<'_>>() };
    // Avoid a core dump if the filter kills this child, because the kill is expected. In the
    // parent's memory the child sets RLIMIT_CORE to 1 instead. With that limit the kernel writes no
    // core file, because 1 byte is too small. It also starts no pipe helper (fs/coredump.c,
    // coredump_pipe).
    let _ = match probe.separate_mm {
        true => call::leave_no_core(),
        false => call::limit(abi::RLIMIT_CORE)
            .and_then(|limit| call::set_limit(abi::RLIMIT_CORE, &abi::rlimit64 { rlim_cur: 1, ..limit })),
    };
    for &call in Call::ALL {
        if probe.calls.contains(call) {
            probe.progress.store(call as u64, Ordering::Relaxed);
            call.attempt();
        }
    }
    probe.progress.store(PROBED, Ordering::Release);
    call::exit(0)
}

trait At<T> {
    fn at(self, stage: ChildStage) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, Errno> {
    #[inline]
    fn at(self, stage: ChildStage) -> Result<T, Failure> {
        self.map_err(|errno| Failure { stage, errno })
    }
}

/// Performs the plan up to exec. Returns the sources (the caller's descriptors in the child), and the path to execute.
#[inline]
pub(crate) fn prepare<'a>(start: &Start<'a, '_>) -> Result<(Sources, &'a CStr), Failure> {
    let plan = start.plan;
    // If a signal kills this child, the parent reads the stage from this word.
    let begin = |stage: ChildStage| start.report.store(stage.progress(), Ordering::Relaxed);
    let sources = table::own_table(start.table, plan).at(ChildStage::Descriptors)?;
    for step in &*plan.steps {
        begin(ChildStage::Action(step.index));
        perform(&step.op, &sources, &plan.sources).at(ChildStage::Action(step.index))?;
    }
    if let Some(keep) = &plan.keep {
        begin(ChildStage::Closing);
        // If the program is executed by descriptor, execveat needs that descriptor until exec. Then set close-on-exec
        // instead of closing the descriptors now.
        let now = plan.program.source.is_none();
        descriptors::keep_only(plan.killed_calls, keep, sources.last(), now).at(ChildStage::Closing)?;
    }
    begin(ChildStage::Signals);
    if let Some((signal, parent)) = plan.parent_death {
        die_with_parent(signal, parent).at(ChildStage::Signals)?;
    }
    reset_signals(plan.default_signals, start.has_handlers).at(ChildStage::Signals)?;
    let (path, report) = match verify(start, &sources) {
        Ok(()) => (plan.program.pinned.path.as_ref(), EXEC),
        Err(failure) => (search_again(plan, failure)?, EXEC_RENEWED),
    };
    if let Some(gate) = start.gate {
        begin(ChildStage::Subreaper);
        gate.pass().at(ChildStage::Subreaper)?;
    }
    begin(ChildStage::Signals);
    // Only now, because a handler would run on the parent's memory.
    if let Some(mask) = start.mask {
        call::set_signal_mask(mask).at(ChildStage::Signals)?;
    }
    if let Some(filter) = &plan.filter {
        begin(ChildStage::Filter);
        call::set_seccomp_filter(filter).at(ChildStage::Filter)?;
    }
    start.report.store(report, Ordering::Release);
    Ok((sources, path))
}

/// Makes the kernel send `signal` to this child when the creating thread ends. If the parent has
/// already ended, sends the signal now.
fn die_with_parent(signal: u32, parent: i32) -> Result<(), Errno> {
    call::prctl(prctl::PR_SET_PDEATHSIG, signal as usize, 0)?;
    // A parent pid of 0 means that the parent is in another pid namespace. The parent's pid is not
    // visible here.
    let now = call::getppid()?;
    if now != parent && now != 0 {
        call::kill(call::getpid()?, signal)?;
    }
    Ok(())
}

/// Sets the signals in `default_signals` to their default disposition. With `has_handlers`, does the same for each
/// signal that has a handler. An ignored signal stays ignored.
///
/// # Errors
/// A filter refuses sigaction(2), so the child may still have a handler.
pub(crate) fn reset_signals(default_signals: SignalSet, has_handlers: bool) -> Result<(), Errno> {
    for signal in 1..=64 {
        let is_default = default_signals >> (signal - 1) & 1 == 1;
        if is_default || has_handlers && call::has_handler(signal)? {
            // The kernel refuses this for SIGKILL and SIGSTOP, which always have their default disposition.
            let _ = call::make_default(signal);
        }
    }
    Ok(())
}

/// Checks that the program's files are still as the template recorded them.
#[inline]
fn verify(start: &Start<'_, '_>, sources: &Sources) -> Result<(), Failure> {
    for (place, check) in start.plan.program.pinned.checks.iter().enumerate() {
        let stage = ChildStage::Check(place as u16);
        start.report.store(stage.progress(), Ordering::Relaxed);
        verify_one(check, start.plan, sources).at(stage)?;
    }
    Ok(())
}

#[inline]
fn verify_one(check: &Check<'_>, plan: &Plan<'_>, sources: &Sources) -> Result<(), Errno> {
    let (now, recorded) = match check {
        Check::Absent { path } => {
            return if is_candidate(plan.killed_calls, path) { Err(Errno::ESTALE) } else { Ok(()) };
        }
        Check::Same { path, identity } => (Identity::of(plan.killed_calls, abi::AT_FDCWD, path), identity),
        Check::SameSource { identity } => {
            let source = plan.program.source.map_or(-1, |source| sources.get(source));
            (Identity::of(plan.killed_calls, source, c""), identity)
        }
    };
    match now {
        Ok(now) if now == *recorded => Ok(()),
        Ok(now) if plan.owners_mapped && now.with_owners_of(recorded) == *recorded => Ok(()),
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Err(Errno::ESTALE),
        Err(errno) => Err(errno),
    }
}

/// Repeats the PATH search if the plan's `renew` is true and a check failed. Otherwise returns the failure.
#[cold]
fn search_again<'a>(plan: &'a Plan<'_>, failure: Failure) -> Result<&'a CStr, Failure> {
    let Program { pinned, renew, .. } = &plan.program;
    if !renew || failure.errno != Errno::ESTALE {
        return Err(failure);
    }
    pinned.places.iter().find(|place| is_candidate(plan.killed_calls, place)).map(|place| place.as_ref()).ok_or(failure)
}

#[inline]
pub(crate) fn exec(plan: &Plan<'_>, sources: &Sources, path: &CStr) -> Errno {
    let (argv, envp) = (plan.argv.as_ptr(), plan.envp.as_ptr());
    let errno = match plan.program.source {
        // SAFETY: an ArgBlock is a NULL-terminated array of C strings.
        None => unsafe { call::execve(path, argv, envp) },
        // SAFETY: an ArgBlock is a NULL-terminated array of C strings, here too.
        Some(source) => unsafe { call::execve_descriptor(plan.killed_calls, sources.get(source), argv, envp) },
    };
    // After another search, `path` is not the file that the shell's arguments name.
    let is_recorded = core::ptr::eq(path, &*plan.program.pinned.path);
    match &plan.shell {
        // SAFETY: as above.
        Some(argv) if errno == Errno::ENOEXEC && is_recorded => unsafe {
            call::execve(c"/bin/sh", argv.as_ptr(), envp)
        },
        _ => errno,
    }
}
