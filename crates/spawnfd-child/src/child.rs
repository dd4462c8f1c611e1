// SPDX-License-Identifier: MIT OR Apache-2.0
//! The child, from its first instruction to the program's.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Birth, Call, Calls, Errno, RawFd, Stack, abi, clone_child};

use crate::descriptors::{self, Sources};
use crate::launch::Shared;
use crate::plan::{CapabilitySets, Check, Handlers, Identity, Namespace, Op, Plan, Program, Table, is_candidate};
use crate::report::{EXEC, EXEC_RENEWED, Failure, Stage};

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

/// Where a child begins that nobody waits for.
///
/// # Safety
/// `shared` points to a [`Shared`] that stays, and is only read by others, until the child has exec'd or exited.
pub(crate) unsafe extern "C" fn enter_flight(shared: *const ()) -> ! {
    // SAFETY: by this function's contract.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let Shared { plan, table, handlers, mask, report, caught, .. } = shared;
    let start = Start { plan, table: *table, report, handlers: *handlers, caught, mask: *mask };
    // SAFETY: what `start` refers to stays as it is, by this function's contract; it is on this child's own stack.
    unsafe { enter((&raw const start).cast()) }
}

/// What the child finds that gives birth to another, in a pid namespace.
pub(crate) struct Midwife<'a> {
    /// For the other.
    pub start: Start<'a>,
    pub namespace: Namespace,
    /// How the other is born: with memory of its own, so that it can have the same stack.
    pub birth: Birth,
    pub stack: &'a Stack,
    /// There where nobody waits for the other.
    pub apart: Option<&'a AtomicU32>,
    /// Take the other's number and pidfd once it has become the program, or failed; or is born.
    pub born: [&'a AtomicU64; 2],
}

/// Where a child begins that gives birth to another in a pid namespace, and ends.
///
/// setns changes where the *children* of the calling thread are born: that thread must be none of the host's.
///
/// # Safety
/// `midwife` points to a [`Midwife`] that stays as it is until both children have exec'd or exited. The caller has memory of its own.
pub(crate) unsafe extern "C" fn enter_namespace(midwife: *const ()) -> ! {
    // SAFETY: by this function's contract.
    let this = unsafe { &*midwife.cast::<Midwife<'_>>() };
    let kinds = if this.namespace.user { abi::CLONE_NEWPID | abi::CLONE_NEWUSER } else { abi::CLONE_NEWPID };
    let born = call::setns(this.namespace.init, kinds).and_then(|_| {
        // SAFETY: the other has a copy of this memory, so that the stack is not in use there; what it reads stays.
        unsafe { clone_child(&this.birth, this.stack, enter_inside, midwife, this.apart) }
    });
    match born {
        Ok(child) => {
            let [pid, pidfd] = this.born;
            pidfd.store(child.pidfd.into_number() as u64, Ordering::Relaxed);
            pid.store(child.pid as u64, Ordering::Release);
            call::exit(0)
        }
        Err(errno) => {
            this.start.report.store(Failure { stage: Stage::Namespace, errno }.pack(), Ordering::Release);
            call::exit(127)
        }
    }
}

/// Where the other begins.
///
/// # Safety
/// As for [`enter_namespace`].
unsafe extern "C" fn enter_inside(midwife: *const ()) -> ! {
    // SAFETY: by this function's contract.
    let this = unsafe { &*midwife.cast::<Midwife<'_>>() };
    // Whoever enters a user namespace has all capabilities in it, and root would keep them through exec.
    if this.namespace.user
        && let Err(errno) = limit_capabilities(&NO_CAPABILITIES)
    {
        this.start.report.store(Failure { stage: Stage::Namespace, errno }.pack(), Ordering::Release);
        call::exit(127)
    }
    // SAFETY: `start` stays, by this function's contract.
    unsafe { enter((&raw const this.start).cast()) }
}

const NO_CAPABILITIES: CapabilitySets =
    CapabilitySets { effective: 0, permitted: 0, inheritable: 0, bounding: 0, ambient: 0 };

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
    let sources = descriptors::own_table(start.table, plan).at(Stage::Descriptors)?;
    for step in &plan.steps {
        begin(Stage::Action(step.index));
        perform(&step.op, &sources, plan).at(Stage::Action(step.index))?;
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

fn perform(op: &Op<usize>, sources: &Sources, plan: &Plan) -> Result<(), Errno> {
    match *op {
        Op::Place { source, to } => match call::dup3(sources.get(source), to) {
            Err(Errno::EBADF) if plan.sources.get(source) == Some(&to) => place_beyond_limit(sources.get(source), to),
            placed => placed.map(drop),
        },
        Op::Dup2 { from, to } if from == to => call::set_descriptor_flags(to, 0).map(drop),
        Op::Dup2 { from, to } => call::dup3(from, to).map(drop),
        Op::Close { fd } => {
            let _ = call::close(fd);
            Ok(())
        }
        Op::CloseRange { first, last } => descriptors::close_range(plan.killed, first, last, plan.above),
        Op::Open { dir, ref path, ref how, to } => {
            open(plan.killed, dir.map_or(abi::AT_FDCWD, |dir| sources.get(dir)), path, how, to)
        }
        Op::OpenNull { to } => open(plan.killed, abi::AT_FDCWD, c"/dev/null", if to == 0 { &READ } else { &WRITE }, to),
        Op::Chdir { ref path } => call::chdir(path).map(drop),
        Op::Fchdir { dir } => call::fchdir(sources.get(dir)).map(drop),
        Op::Chroot { ref path } => call::chroot(path).map(drop),
        Op::Umask { mask } => call::umask(mask).map(drop),
        Op::Setsid => call::setsid().map(drop),
        Op::Setpgid { group } => call::setpgid(group).map(drop),
        Op::Tcsetpgrp { fd } => take_foreground(fd),
        Op::ControllingTerminal { fd } => call::set_controlling_terminal(fd).map(drop),
        Op::Limit { resource, ref limit } => call::set_limit(resource, limit).map(drop),
        Op::Nice { nice } => call::set_nice(nice).map(drop),
        Op::Scheduler { policy, priority } => call::set_scheduler(policy, priority).map(drop),
        Op::Affinity { ref mask } => call::set_affinity(mask).map(drop),
        Op::UserIds { real, effective, saved } => call::set_user_ids(real, effective, saved).map(drop),
        Op::GroupIds { real, effective, saved } => call::set_group_ids(real, effective, saved).map(drop),
        Op::Groups { ref groups } => call::set_groups(groups).map(drop),
        Op::Capabilities { ref sets } => limit_capabilities(sets),
        Op::KeepCapabilities => call::prctl(PR_SET_KEEPCAPS, 1, 0).map(drop),
        Op::NoNewPrivs => call::prctl(PR_SET_NO_NEW_PRIVS, 1, 0).map(drop),
        Op::DenySetgroups => write_file(abi::AT_FDCWD, c"/proc/self/setgroups", b"deny"),
        Op::UserMap { ref map } => write_file(abi::AT_FDCWD, c"/proc/self/uid_map", map.to_bytes()),
        Op::GroupMap { ref map } => write_file(abi::AT_FDCWD, c"/proc/self/gid_map", map.to_bytes()),
        Op::OomScoreAdj { ref text, .. } => write_file(abi::AT_FDCWD, c"/proc/self/oom_score_adj", text),
        Op::Cgroup { dir } => write_file(sources.get(dir), c"cgroup.procs", b"0"),
        Op::Announce { ref to } => to.make(),
        Op::JoinNamespace { namespace, kinds } => call::setns(sources.get(namespace), kinds).map(drop),
        Op::Landlock { ruleset } => call::landlock_restrict_self(sources.get(ruleset)).map(drop),
    }
}

/// What stands in the caller at a number from RLIMIT_NOFILE on, as the limit has been lowered since, a fork has there, too.
#[cold]
fn place_beyond_limit(fd: RawFd, to: RawFd) -> Result<(), Errno> {
    let limit = call::limit(abi::RLIMIT_NOFILE)?;
    call::set_limit(abi::RLIMIT_NOFILE, &abi::rlimit64 { rlim_cur: limit.rlim_max, ..limit })?;
    let placed = call::dup3(fd, to);
    call::set_limit(abi::RLIMIT_NOFILE, &limit)?;
    placed.map(drop)
}

const PR_SET_KEEPCAPS: u32 = 8;
const PR_SET_NO_NEW_PRIVS: u32 = 38;

const READ: abi::open_how = abi::open_how { flags: abi::O_RDONLY as u64, mode: 0, resolve: 0 };
const WRITE: abi::open_how = abi::open_how { flags: abi::O_WRONLY as u64, mode: 0, resolve: 0 };

/// Opens as `to`. The number is freed first, so that mostly the file comes to stand there by itself.
fn open(killed: Calls, dir: RawFd, path: &CStr, how: &abi::open_how, to: RawFd) -> Result<(), Errno> {
    let _ = call::close(to);
    let fd = match call::openat2(killed, dir, path, how) {
        Err(Errno::ENOSYS | Errno::EPERM) if how.resolve == 0 => {
            call::openat(dir, path, how.flags as u32, how.mode as u32)?
        }
        fd => fd?,
    };
    if fd != to {
        call::dup3(fd, to)?;
        call::close(fd)?;
    }
    Ok(())
}

fn write_file(dir: RawFd, path: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    let fd = call::openat(dir, path, abi::O_WRONLY | abi::O_CLOEXEC, 0)?;
    let written = call::write(fd, bytes);
    call::close(fd)?;
    if written? == bytes.len() { Ok(()) } else { Err(Errno::EIO) }
}

/// tcsetpgrp from a group that is not in the foreground stops it with SIGTTOU, unless that is blocked.
fn take_foreground(terminal: RawFd) -> Result<(), Errno> {
    let group = call::getpgid()?;
    let mask = call::set_signal_mask(u64::MAX)?;
    let done = call::tcsetpgrp(terminal, group);
    call::set_signal_mask(mask)?;
    done.map(drop)
}

fn limit_capabilities(sets: &CapabilitySets) -> Result<(), Errno> {
    const PR_CAPBSET_READ: u32 = 23;
    const PR_CAPBSET_DROP: u32 = 24;
    const PR_CAP_AMBIENT: u32 = 47;
    const PR_CAP_AMBIENT_RAISE: usize = 2;
    const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
    // A change of user ids has emptied the effective set; what follows asks for CAP_SETPCAP.
    let [_, permitted, inheritable] = call::capabilities()?;
    call::set_capabilities(permitted, permitted, inheritable)?;
    for capability in 0..64 {
        let wanted = sets.bounding >> capability & 1 == 1;
        match call::prctl(PR_CAPBSET_READ, capability, 0) {
            Ok(1) if !wanted => {
                call::prctl(PR_CAPBSET_DROP, capability, 0)?;
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    call::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0)?;
    call::set_capabilities(sets.effective, sets.permitted, sets.inheritable)?;
    for capability in (0..64).filter(|capability| sets.ambient >> capability & 1 == 1) {
        call::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)?;
    }
    Ok(())
}

/// Asks for `signal` when the creating thread ends, and makes up for one that has ended already.
fn die_with_parent(signal: u32, parent: i32) -> Result<(), Errno> {
    const PR_SET_PDEATHSIG: u32 = 1;
    call::prctl(PR_SET_PDEATHSIG, signal as usize, 0)?;
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
