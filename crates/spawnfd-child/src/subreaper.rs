// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a program below a new subreaper. An intermediate process becomes a subreaper, creates the child, and then
//! executes the subreaper's own program.
//!
//! The kernel keeps the subreaper attribute across exec. The intermediate process creates the child before its own
//! exec, because that exec can remove capabilities that the child needs.
//!
//! The child waits at a gate, just before its exec. The intermediate process opens the gate as its last step before its
//! own exec. So if the intermediate process fails or is killed earlier, no program runs. Once the program runs, it may
//! stop or kill the intermediate process. [`Watch`] continues a stopped one.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call;
use spawnfd_sys::{Calls, CloneOptions, Cloned, Errno, FreshFd, RawFd, SharedWords, Stack, abi};
use spawnfd_sys::{clone_child, clone_child_into, prctl, send, wait_pid};

use crate::Announcement;
use crate::child::{Gate, Start, enter, exec, prepare};
use crate::launch::{ChildMemory, Detached, with_signals_blocked};
use crate::plan::{Plan, Table};
use crate::report::{Failure, Outcome, PENDING, Stage, is_pending};

/// The subreaper of a program that is about to start.
#[derive(Debug)]
pub struct Subreaper<'a> {
    /// The plan that the intermediate process performs after it has created the child.
    pub plan: &'a Plan<'static>,
    /// The strategy for the intermediate process's descriptor table: [`Table::Copied`] if the child's table is copied,
    /// and otherwise another strategy.
    pub table: Table,
    /// Registers the intermediate process with the guard.
    pub announcement: Option<&'a Announcement>,
    /// A socket of the caller. If the child's table is copied, the intermediate process sends the child's pidfd to it.
    pub socket: RawFd,
}

/// The processes of a start below a subreaper.
#[derive(Debug)]
pub struct BelowSubreaper {
    /// The intermediate process: the subreaper, or a process that has ended. The caller owns the pidfd, and must reap
    /// the process.
    pub subreaper: Cloned,
    /// Whether the intermediate process became the subreaper's program.
    pub subreaper_outcome: Outcome,
    /// The pid of the child; 0 if the intermediate process has created none, or was killed in that call. The child is a
    /// child of the subreaper.
    pub pid: i32,
    /// The child's pidfd. `None` if there is no child, or if the pidfd comes from the socket.
    pub pidfd: Option<FreshFd>,
    /// The child's report: a child that shares the caller's memory has exec'd, failed or was killed.
    report: Report,
    /// The wait status of a child that did not reach the gate. The intermediate process has reaped it and has ended.
    pub status: Option<i32>,
}

/// The report of a child.
#[derive(Debug)]
enum Report {
    Final(Outcome),
    /// The child has memory of its own, and may not have called exec yet.
    Live(Arc<SharedWords>),
}

impl BelowSubreaper {
    /// Whether the child's report does not change any more. Otherwise the child has memory of its own, and may not have
    /// called exec yet.
    pub fn has_final_report(&self) -> bool {
        matches!(self.report, Report::Final(_))
    }

    /// Whether the child exec'd, failed or was killed, as far as it has reported. A child with memory of its own may call
    /// exec, and fail, later than this call.
    pub fn outcome(&self) -> Outcome {
        match &self.report {
            Report::Final(outcome) => *outcome,
            Report::Live(words) => Outcome::of(words.get()[0].load(Ordering::Acquire)),
        }
    }
}

/// Starts a child below a new subreaper. Returns when the child has become the program and the intermediate process has
/// become the subreaper's program, or one of them has failed. A child with memory of its own may not have called exec
/// yet.
///
/// `memory` is the child's, `subreaper_memory` the intermediate process's.
///
/// # Errors
/// No process was created.
pub fn launch_below_subreaper(
    memory: &mut ChildMemory,
    subreaper_memory: &mut ChildMemory,
    options: CloneOptions,
    table: Table,
    plan: &Plan<'_>,
    subreaper: &Subreaper<'_>,
) -> Result<BelowSubreaper, Errno> {
    let stacks = [&memory.stack, &subreaper_memory.stack];
    if options.share_memory {
        return start(stacks, [&memory.words, &subreaper_memory.words], options, table, plan, subreaper, true);
    }
    // A process with memory of its own may still write to its words after this function has returned.
    let (words, own_words) = (Arc::new(SharedWords::new()?), SharedWords::new()?);
    let started = start(stacks, [&words, &own_words], options, table, plan, subreaper, true)?;
    Ok(BelowSubreaper { report: Report::Live(words), ..started })
}

/// The same as [`launch_below_subreaper`], but does not wait for the child's exec. The child has memory of its own and a
/// copy of the caller's table.
///
/// # Errors
/// No process was created.
pub fn detach_below_subreaper(
    memory: &mut ChildMemory,
    subreaper_memory: &mut ChildMemory,
    options: CloneOptions,
    plan: Arc<Plan<'static>>,
    subreaper: &Subreaper<'_>,
) -> Result<(BelowSubreaper, Detached), Errno> {
    let (words, own_words) = (SharedWords::new()?, SharedWords::new()?);
    let options = CloneOptions { share_memory: false, ..options };
    let stacks = [&memory.stack, &subreaper_memory.stack];
    let started = start(stacks, [&words, &own_words], options, Table::Copied, &plan, subreaper, false)?;
    Ok((started, Detached::with_own_memory(plan, words)))
}

/// Starts a child below a new subreaper. The first stack and words are the child's, the second are the intermediate
/// process's. If `waits` is false, an action of the child may block for any time.
#[allow(clippy::too_many_arguments)]
fn start(
    [stack, intermediate_stack]: [&Stack; 2],
    [words, own_words]: [&SharedWords; 2],
    options: CloneOptions,
    table: Table,
    plan: &Plan<'_>,
    subreaper: &Subreaper<'_>,
    waits: bool,
) -> Result<BelowSubreaper, Errno> {
    let ([report, pid, ..], [own_report, status, ..]) = (words.get(), own_words.get());
    let [gate, pidfd] = own_words.halves::<2>();
    for word in [report, own_report] {
        word.store(PENDING, Ordering::Release);
    }
    if let Some(announcement) = subreaper.announcement {
        announcement.renew();
    }
    pid.store(0, Ordering::Release);
    status.store(NO_STATUS, Ordering::Release);
    gate.store(Gate::NOT_REACHED, Ordering::Release);
    pidfd.store(NO_PIDFD, Ordering::Release);
    let share_descriptors = !matches!(table, Table::Copied);
    let intermediate = CloneOptions { share_descriptors, namespaces: 0, cgroup: None, ..options };
    let options = CloneOptions { share_descriptors, ..options };
    let has_handlers = !options.clone3;
    // The kernel clears these words when the processes have left this memory.
    let (in_memory, own_in_memory) = (AtomicU32::new(1), AtomicU32::new(1));
    // Signals stay blocked, so that no signal other than SIGKILL kills the intermediate process. The child restores the
    // caller's mask.
    let process = with_signals_blocked(true, |blocked| {
        let mask = plan.signal_mask.or(blocked);
        let child = Start { plan, table, report, has_handlers, mask, gate: Some(Gate(gate)) };
        let Subreaper { plan, table, announcement, socket } = *subreaper;
        let (report, mask) = (own_report, plan.signal_mask.or(blocked));
        let own = Start { plan, table, report, has_handlers, mask, gate: None };
        let socket = (!share_descriptors).then_some(socket);
        let (gate, in_memory) = (Gate(gate), &in_memory);
        let this = Intermediate {
            child,
            own,
            announcement,
            options,
            stack,
            in_memory,
            pid,
            pidfd,
            status,
            gate,
            waits,
            socket,
        };
        // SAFETY: both processes keep the contract of this crate's documentation: with shared memory each writes only to
        // its own stack, ours by the exclusive borrows of the callers, and to the words. The wait below returns when
        // both processes have left this memory: `own_in_memory` is 0, and there is no child or `in_memory` is 0.
        // Signals are blocked.
        let process = unsafe {
            let data = (&raw const this).cast();
            clone_child(&intermediate, intermediate_stack, enter_subreaper, data, Some(&own_in_memory))
        }?;
        if intermediate.share_memory {
            await_exec(plan.killed, &process, &own_in_memory, gate);
            // The kernel stores the pidfd's number before the child runs.
            let number = pidfd.load(Ordering::Acquire);
            if number != NO_PIDFD {
                await_departure(in_memory, || {
                    pid.load(Ordering::Acquire) == 0 && call::descriptor_flags(number as RawFd).is_err()
                });
            }
        } else {
            await_report(plan.killed, &process, own_report, gate);
        }
        Ok(process)
    })?;
    let pid = pid.load(Ordering::Acquire) as i32;
    let status = status.load(Ordering::Acquire);
    let pidfd = pidfd.load(Ordering::Acquire);
    // Without a pid, the intermediate process was killed in the call, and the number may belong to no descriptor.
    let has_pidfd = pid != 0 && share_descriptors;
    Ok(BelowSubreaper {
        subreaper: process,
        subreaper_outcome: Outcome::of(own_report.load(Ordering::Acquire)),
        pid,
        // SAFETY: the intermediate process shared this table, and the kernel has reported the number of a pidfd that no
        // process has closed in this table.
        pidfd: has_pidfd.then(|| unsafe { FreshFd::from_number(pidfd as RawFd) }),
        report: Report::Final(Outcome::of(report.load(Ordering::Acquire))),
        status: (status != NO_STATUS).then_some(status as i32),
    })
}

/// Means that the intermediate process has not reaped the child. A wait status has 32 bits.
const NO_STATUS: u64 = u64::MAX;

/// Means that there is no child.
const NO_PIDFD: u32 = u32::MAX;

/// The time between the opening of the gate and SIGKILL for an intermediate process that does not call exec.
const EXEC_TIMEOUT: i64 = 1_000_000_000;

/// Continues the intermediate process, which the program may have stopped. Kills it after [`EXEC_TIMEOUT`].
struct Watch<'a> {
    killed: Calls,
    process: &'a Cloned,
    gate: Gate<'a>,
    /// The time since the gate was open.
    waited: i64,
}

impl Watch<'_> {
    /// Records that the caller has waited this long for the process's exec.
    fn tick(&mut self, nanoseconds: i64) {
        // Before that, the program does not run.
        if self.gate.state() == Gate::OPEN {
            self.waited += nanoseconds;
            let signal = if self.waited < EXEC_TIMEOUT { abi::SIGCONT } else { abi::SIGKILL };
            let _ = call::pidfd_send_signal(self.killed, self.process.pidfd.number(), signal as i32);
        }
    }
}

/// Waits until the intermediate process has left this memory, by exec or exit.
fn await_exec(killed: Calls, process: &Cloned, in_memory: &AtomicU32, gate: Gate<'_>) {
    let mut watch = Watch { killed, process, gate, waited: 0 };
    while in_memory.load(Ordering::Acquire) != 0 {
        call::futex_wait(in_memory, 1, Gate::INTERVAL);
        if in_memory.load(Ordering::Acquire) != 0 {
            watch.tick(Gate::INTERVAL);
        }
    }
}

/// Waits until the child has left this memory, or `does_not_exist` is true.
///
/// The wait ends even if the intermediate process has ended, because the child then exits at the gate. But a signal may
/// have killed the intermediate process in the clone call. The kernel may then have stored the number of a pidfd and
/// created no child.
fn await_departure(in_memory: &AtomicU32, does_not_exist: impl Fn() -> bool) {
    while in_memory.load(Ordering::Acquire) != 0 && !does_not_exist() {
        call::futex_wait(in_memory, 1, Gate::INTERVAL);
    }
}

/// Waits until an intermediate process with memory of its own is about to call exec, or has ended.
fn await_report(killed: Calls, process: &Cloned, report: &AtomicU64, gate: Gate<'_>) {
    const INTERVAL: i64 = 100_000;
    let mut watch = Watch { killed, process, gate, waited: 0 };
    let mut watched = [abi::pollfd { fd: process.pidfd.number(), events: abi::POLLIN as i16, revents: 0 }];
    while is_pending(report.load(Ordering::Acquire)) && call::poll(&mut watched, Some((0, INTERVAL))) != Ok(1) {
        watch.tick(INTERVAL);
    }
}

/// The input of the intermediate process.
struct Intermediate<'a, 'p, 'q> {
    child: Start<'a, 'p>,
    /// The intermediate process's own plan.
    own: Start<'a, 'q>,
    announcement: Option<&'a Announcement>,
    /// The options of the child.
    options: CloneOptions,
    /// The child's stack.
    stack: &'a Stack,
    /// The word that the kernel clears when the child has left this memory.
    in_memory: &'a AtomicU32,
    /// The words for the child's pid, the number of its pidfd, and its wait status if it does not reach the gate.
    pid: &'a AtomicU64,
    pidfd: &'a AtomicU32,
    status: &'a AtomicU64,
    gate: Gate<'a>,
    /// Whether the process waits until the child is at the gate.
    waits: bool,
    /// The socket to which the process sends the child's pidfd, if it does not share the caller's table.
    socket: Option<RawFd>,
}

/// Entry point of the intermediate process.
///
/// # Safety
/// `this` points to an [`Intermediate`] that does not change until both processes have exec'd or exited.
unsafe extern "C" fn enter_subreaper(this: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let this = unsafe { &*this.cast::<Intermediate<'_, '_, '_>>() };
    let failure = match create_child(this) {
        Ok(child) => match prepare(&this.own) {
            Ok((sources, path)) => {
                await_gate(this, &child);
                this.gate.open();
                let errno = exec(this.own.plan, &sources, path);
                // Without its subreaper the tree is not complete. The child still has its pid: only this process reaps it.
                let _ = call::kill(child.pid, 9);
                let _ = wait_pid(child.pid, true);
                Failure { stage: Stage::Exec, errno }
            }
            Err(failure) => {
                this.gate.close();
                if this.waits {
                    let _ = wait_pid(child.pid, true);
                }
                failure
            }
        },
        Err(failure) => failure,
    };
    this.own.report.store(failure.pack(), Ordering::Release);
    call::exit(127)
}

/// Becomes a subreaper and creates the child.
fn create_child(this: &Intermediate<'_, '_, '_>) -> Result<Cloned, Failure> {
    let failed = |errno| Failure { stage: Stage::Subreaper, errno };
    if let Some(announcement) = this.announcement {
        announcement.make().map_err(failed)?;
    }
    call::prctl(prctl::PR_SET_CHILD_SUBREAPER, 1, 0).map_err(failed)?;
    let data = (&raw const this.child).cast();
    // SAFETY: `child` and what it refers to do not change until the child has exec'd or exited, by the contract of
    // `enter_subreaper`. No other process uses the child's stack. Signals are blocked. If the processes share memory,
    // `start` waits until the child has left it.
    let child = unsafe { clone_child_into(&this.options, this.stack, enter, data, Some(this.in_memory), this.pidfd) };
    let child = child.map_err(|errno| {
        // The kernel may have stored a number before it failed.
        this.pidfd.store(NO_PIDFD, Ordering::Release);
        failed(errno)
    })?;
    this.pid.store(child.pid as u64, Ordering::Release);
    if let Some(socket) = this.socket {
        // The child exits at the gate if this fails.
        send(socket, &mut [0], &[child.pidfd.number()]).map_err(failed)?;
    }
    Ok(child)
}

/// Waits until the child is at its gate. If the child ends before that, reaps it and exits.
fn await_gate(this: &Intermediate<'_, '_, '_>, child: &Cloned) {
    while this.waits && this.gate.state() != Gate::REACHED {
        let has_failed = this.gate.state() == Gate::FAILED;
        let status = match wait_pid(child.pid, has_failed) {
            Ok(None) => None,
            Ok(Some(ended)) => Some(ended.status),
            // The caller ignores SIGCHLD, so the kernel has reaped the child.
            Err(_) => Some(127 << 8),
        };
        if let Some(status) = status {
            this.status.store((status as u32).into(), Ordering::Release);
            call::exit(127)
        }
        this.gate.wait_while(Gate::NOT_REACHED);
    }
}
