// SPDX-License-Identifier: MIT OR Apache-2.0
//! The child, from its first instruction to the program's.

use alloc::sync::Arc;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Call, Calls, Errno, SharedWords, abi, prctl};

use crate::action::perform;
use crate::descriptors::{self, Sources};
use crate::plan::{Check, Handlers, Identity, Plan, Program, Table, is_candidate};
use crate::report::{EXEC, EXEC_RENEWED, Failure, Stage};
use crate::table;

/// What the child finds when it begins.
pub(crate) struct Start<'a> {
    pub plan: &'a Plan,
    pub table: Table,
    pub report: &'a AtomicU64,
    /// Where handlers may still stand, all signals are blocked.
    pub handlers: Handlers,
    /// Takes the signals that were found to have a handler.
    pub caught: &'a AtomicU64,
    /// What the mask is to be, unless it is right already.
    pub mask: Option<SignalSet>,
}

/// Where a child begins.
///
/// # Safety
/// `start` points to a [`Start`] that stays as it is until the child has exec'd or exited.
pub(crate) unsafe extern "C" fn enter(start: *const ()) -> ! {
    // SAFETY: by this function's contract.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    let failure = become_program(start);
    start.report.store(failure.pack(), Ordering::Release);
    call::exit(127)
}

/// What a detached child reads and writes.
#[derive(Debug)]
pub(crate) struct Shared {
    pub plan: Arc<Plan>,
    pub table: Table,
    pub handlers: Handlers,
    pub mask: Option<SignalSet>,
    pub report: AtomicU64,
    pub caught: AtomicU64,
    /// Set to 0 by the kernel when the child has left this memory.
    pub apart: AtomicU32,
    /// What a child with memory of its own reports in instead; it was never in this.
    pub words: Option<SharedWords>,
}

/// Where a detached child begins.
///
/// # Safety
/// `shared` points to a [`Shared`] that stays, and is only read by others, until the child has exec'd or exited.
pub(crate) unsafe extern "C" fn enter_detached(shared: *const ()) -> ! {
    // SAFETY: by this function's contract.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let Shared { plan, table, handlers, mask, report, caught, .. } = shared;
    let start = Start { plan, table: *table, report, handlers: *handlers, caught, mask: *mask };
    // SAFETY: what `start` refers to stays as it is, by this function's contract; it is on this child's own stack.
    unsafe { enter((&raw const start).cast()) }
}

/// Where a child begins that is to do nothing.
///
/// # Safety
/// None is asked for: it looks at nothing.
pub(crate) unsafe extern "C" fn enter_and_end(_: *const ()) -> ! {
    call::exit(0)
}

/// The arguments of a probe child.
pub(crate) struct Probe<'a> {
    /// The calls to make.
    pub calls: Calls,
    /// The child has memory of its own.
    pub own_memory: bool,
    /// Takes the number of the call in progress, and [`PROBED`] at the end.
    pub progress: &'a AtomicU64,
}

/// The word of a probe child before its first call.
pub(crate) const UNPROBED: u64 = u64::MAX;
/// The word of a probe child after its last call.
pub(crate) const PROBED: u64 = u64::MAX - 1;

/// Where a child begins that makes each call once, to see whether a filter kills it for that.
///
/// # Safety
/// `probe` points to a [`Probe`] that stays as it is until the child has exited.
pub(crate) unsafe extern "C" fn enter_probe(probe: *const ()) -> ! {
    // SAFETY: by this function's contract.
    let probe = unsafe { &*probe.cast::<Probe<'_>>() };
    // A killed child is no crash: it leaves no core dump. Where the memory is the parent's, the limit keeps the kernel from writing a
    // file (too small) and from starting a program that takes the dump (1: fs/coredump.c, coredump_pipe).
    let _ = match probe.own_memory {
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
    fn at(self, stage: Stage) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, Errno> {
    #[inline]
    fn at(self, stage: Stage) -> Result<T, Failure> {
        self.map_err(|errno| Failure { stage, errno })
    }
}

/// Carries out the plan. Comes back only with the reason why not.
fn become_program(start: &Start<'_>) -> Failure {
    match prepare(start) {
        Ok((sources, path)) => Failure { stage: Stage::Exec, errno: exec(start.plan, &sources, path) },
        Err(failure) => failure,
    }
}

/// All but exec itself. Gives the sources, and the path to execute.
#[inline]
fn prepare<'a>(start: &Start<'a>) -> Result<(Sources, &'a CStr), Failure> {
    let plan = start.plan;
    // Read by the parent if a signal ends this child.
    let begin = |stage: Stage| start.report.store(stage.progress(), Ordering::Relaxed);
    let sources = table::own_table(start.table, plan).at(Stage::Descriptors)?;
    for step in &plan.steps {
        begin(Stage::Action(step.index));
        perform(&step.op, &sources, &plan.sources).at(Stage::Action(step.index))?;
    }
    if let Some(keep) = &plan.keep {
        begin(Stage::Closing);
        // A descriptor to execute is needed until exec.
        let now = plan.program.source.is_none();
        descriptors::keep_only(plan.killed, keep, sources.last(), now).at(Stage::Closing)?;
    }
    begin(Stage::Signals);
    if let Some((signal, parent)) = plan.parent_death {
        die_with_parent(signal, parent).at(Stage::Signals)?;
    }
    reset_handlers(start).at(Stage::Signals)?;
    let (path, report) = match verify(start, &sources) {
        Ok(()) => (plan.program.pinned.path.as_c_str(), EXEC),
        Err(failure) => (find_again(plan, failure)?, EXEC_RENEWED),
    };
    begin(Stage::Signals);
    let_signals_in(start).at(Stage::Signals)?;
    if let Some(filter) = &plan.filter {
        begin(Stage::Filter);
        call::set_seccomp_filter(filter).at(Stage::Filter)?;
    }
    start.report.store(report, Ordering::Release);
    Ok((sources, path))
}

/// Asks for `signal` when the creating thread ends, and makes up for one that has ended already.
fn die_with_parent(signal: u32, parent: i32) -> Result<(), Errno> {
    call::prctl(prctl::PR_SET_PDEATHSIG, signal as usize, 0)?;
    // 0: the parent is in another pid namespace, and cannot be asked for.
    let now = call::getppid()?;
    if now != parent && now != 0 {
        call::kill(call::getpid()?, signal)?;
    }
    Ok(())
}

/// Gives the program the dispositions it is to have.
#[inline]
fn reset_handlers(start: &Start<'_>) -> Result<(), Errno> {
    match start.handlers {
        Handlers::Cleared => {}
        Handlers::Unknown => reset_all(0, start.caught)?,
        Handlers::Known(caught) => reset_caught(caught).map(drop)?,
    }
    reset(start.plan.default_signals);
    Ok(())
}

/// Gives the program the mask it is to have. Handlers are gone before: they would run here, on the parent's memory. As close to exec
/// as can be, for what is not known of them.
#[inline]
fn let_signals_in(start: &Start<'_>) -> Result<(), Errno> {
    // A handler set up in the short time since they were read would run for one of these.
    if let Handlers::Known(caught) = start.handlers
        && call::pending_signals()? != 0
    {
        reset_all(caught, start.caught)?;
    }
    match start.mask {
        Some(mask) => call::set_signal_mask(mask).map(drop),
        None => Ok(()),
    }
}

/// Makes signals default.
fn reset(mut signals: SignalSet) {
    while signals != 0 {
        // SIGKILL and SIGSTOP refuse; they are default anyway.
        let _ = call::make_default(signals.trailing_zeros() + 1);
        signals &= signals - 1;
    }
}

/// Makes those of the signals default that have a handler, and says which: one that is ignored by now stays ignored.
fn reset_caught(mut signals: SignalSet) -> Result<SignalSet, Errno> {
    let mut found = 0;
    while signals != 0 {
        let signal = signals & signals.wrapping_neg();
        if call::has_handler(signal.trailing_zeros() + 1)? {
            found |= signal;
        }
        signals &= signals - 1;
    }
    reset(found);
    Ok(found)
}

/// Makes every signal default that has a handler, and notes which had, besides those reset `before`. Kept out of line: a call for
/// each signal.
#[cold]
fn reset_all(before: SignalSet, caught: &AtomicU64) -> Result<(), Errno> {
    let found = reset_caught(SignalSet::MAX)?;
    caught.store(before | found, Ordering::Release);
    Ok(())
}

/// Whether all that was recorded of the program is still true.
#[inline]
fn verify(start: &Start<'_>, sources: &Sources) -> Result<(), Failure> {
    for (place, check) in start.plan.program.pinned.checks.iter().enumerate() {
        let stage = Stage::Check(place as u16);
        start.report.store(stage.progress(), Ordering::Relaxed);
        verify_one(check, start.plan, sources).at(stage)?;
    }
    Ok(())
}

#[inline]
fn verify_one(check: &Check, plan: &Plan, sources: &Sources) -> Result<(), Errno> {
    let (now, recorded) = match check {
        Check::Absent { path } => return if is_candidate(plan.killed, path) { Err(Errno::ESTALE) } else { Ok(()) },
        Check::Same { path, identity } => (Identity::of(plan.killed, abi::AT_FDCWD, path), identity),
        Check::SameSource { identity } => {
            let source = plan.program.source.map_or(-1, |source| sources.get(source));
            (Identity::of(plan.killed, source, c""), identity)
        }
    };
    match now {
        Ok(now) if now == *recorded => Ok(()),
        Ok(now) if plan.owners_mapped && now.with_owners_of(recorded) == *recorded => Ok(()),
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Err(Errno::ESTALE),
        Err(errno) => Err(errno),
    }
}

/// What a search finds now, for a caller who wants that; otherwise the failure stands.
#[cold]
fn find_again(plan: &Plan, failure: Failure) -> Result<&CStr, Failure> {
    let Program { pinned, renew, .. } = &plan.program;
    if !renew || failure.errno != Errno::ESTALE {
        return Err(failure);
    }
    pinned.places.iter().find(|place| is_candidate(plan.killed, place)).map(|place| place.as_c_str()).ok_or(failure)
}

#[inline]
fn exec(plan: &Plan, sources: &Sources, path: &CStr) -> Errno {
    let (argv, envp) = (plan.argv.as_ptr(), plan.envp.as_ptr());
    match plan.program.source {
        // SAFETY: an ArgBlock is a NULL-terminated array of C strings.
        None => unsafe { call::execve(path, argv, envp) },
        // SAFETY: as above.
        Some(source) => unsafe { call::execve_descriptor(plan.killed, sources.get(source), argv, envp) },
    }
}
