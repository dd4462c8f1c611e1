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

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call;
use spawnfd_sys::{CallSet, CloneOptions, Cloned, Errno, FreshFd, RawFd, abi};
use spawnfd_sys::{clone_child, clone_child_into, prctl, send, wait_pid};

use crate::GuardRegistration;
use crate::child::{Gate, Start, exec, prepare};
use crate::launch::{ChildMemory, NewChild, Parent};
use crate::plan::{Plan, Table};
use crate::report::{ChildStage, Failure, Outcome, PENDING, is_pending};

/// The subreaper of a program that is about to start. The start returns when the child is at exec, and the intermediate
/// process has become the subreaper's program, or one of them has failed.
///
/// Processes with memory of their own may write to the shared words after the start has returned, and the child may not
/// have called exec yet. So start them with [`launch_async`](crate::launch_async).
#[derive(Debug)]
pub struct Subreaper<'a> {
    /// The intermediate process's memory.
    pub memory: &'a mut ChildMemory,
    /// The plan that the intermediate process performs after it has created the child.
    pub plan: &'a Plan<'static>,
    /// The strategy for the intermediate process's descriptor table: [`Table::Copied`] if the child's table is copied,
    /// and otherwise another strategy.
    pub table: Table,
    /// Registers the intermediate process with the guard.
    pub registration: Option<&'a GuardRegistration>,
    /// A socket of the caller. If the child's table is copied, the intermediate process sends the child's pidfd to it.
    pub socket: RawFd,
    /// False if an action of the child may block for any time. Then the start does not wait for the child.
    pub waits: bool,
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
    /// The wait status of a child that did not reach the gate. The intermediate process has reaped it and has ended.
    pub status: Option<i32>,
}

impl Parent for Subreaper<'_> {
    type Started = BelowSubreaper;

    const HAS_GATE: bool = true;

    unsafe fn create(self, child: &NewChild<'_>) -> Result<BelowSubreaper, Errno> {
        let words = child.words;
        words.intermediate_report().store(PENDING, Ordering::Release);
        if let Some(registration) = self.registration {
            registration.renew();
        }
        words.pid().store(0, Ordering::Release);
        words.pidfd().store(NO_PIDFD, Ordering::Release);
        words.status().store(NO_STATUS, Ordering::Release);
        words.gate().reset();
        let (killed_calls, gate) = (self.plan.killed_calls, words.gate());
        let intermediate = CloneOptions { namespaces: 0, cgroup: None, ..child.options };
        // The kernel clears these words when the processes have left this memory.
        let (in_memory, own_in_memory) = (AtomicU32::new(1), AtomicU32::new(1));
        let own = Start {
            plan: self.plan,
            table: self.table,
            report: words.intermediate_report(),
            has_handlers: !child.options.clone3,
            mask: self.plan.signal_mask.or(child.mask),
            gate: None,
        };
        let socket = (!child.options.share_descriptors).then_some(self.socket);
        let (registration, waits) = (self.registration, self.waits);
        let this = Intermediate { child, own, registration, in_memory: &in_memory, waits, socket };
        let input = (&raw const this).cast();
        // SAFETY: both processes keep the contract of this crate's documentation: with shared memory each writes only to
        // its own stack, ours by the caller's contract and the exclusive borrow of `self.memory`, and to the words. The
        // waits below return when both processes have left this memory: `own_in_memory` is 0, and there is no child or
        // `in_memory` is 0. Signals are blocked, and no signal other than SIGKILL kills the intermediate process.
        let process =
            unsafe { clone_child(&intermediate, &self.memory.stack, enter_subreaper, input, Some(&own_in_memory)) }?;
        if intermediate.share_memory {
            await_exec(killed_calls, &process, &own_in_memory, gate);
            // The kernel stores the pidfd's number before the child runs.
            let number = words.pidfd().load(Ordering::Acquire);
            if number != NO_PIDFD {
                await_departure(&in_memory, || {
                    words.pid().load(Ordering::Acquire) == 0 && call::descriptor_flags(number as RawFd).is_err()
                });
            }
        } else {
            await_report(killed_calls, &process, words.intermediate_report(), gate);
        }
        let (pid, pidfd) = (words.pid().load(Ordering::Acquire) as i32, words.pidfd().load(Ordering::Acquire));
        let status = words.status().load(Ordering::Acquire);
        // Without a pid, the intermediate process was killed in the call, and the number may belong to no descriptor.
        let has_pidfd = pid != 0 && child.options.share_descriptors;
        Ok(BelowSubreaper {
            subreaper: process,
            subreaper_outcome: Outcome::of(words.intermediate_report().load(Ordering::Acquire)),
            pid,
            // SAFETY: the intermediate process shared this table, and the kernel has reported the number of a pidfd that
            // no process has closed in this table.
            pidfd: has_pidfd.then(|| unsafe { FreshFd::from_number(pidfd as RawFd) }),
            status: (status != NO_STATUS).then_some(status as i32),
        })
    }
}

/// Means that the intermediate process has not reaped the child. A wait status has 32 bits.
const NO_STATUS: u64 = u64::MAX;

/// Means that there is no child.
const NO_PIDFD: u32 = u32::MAX;

/// The time between the opening of the gate and SIGKILL for an intermediate process that does not call exec.
const EXEC_TIMEOUT: i64 = 1_000_000_000;

/// Continues the intermediate process, which the program may have stopped. Kills it after [`EXEC_TIMEOUT`].
struct Watch<'a> {
    killed_calls: CallSet,
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
            let _ = call::pidfd_send_signal(self.killed_calls, self.process.pidfd.number(), signal as i32);
        }
    }
}

/// Waits until the intermediate process has left this memory, by exec or exit.
fn await_exec(killed_calls: CallSet, process: &Cloned, in_memory: &AtomicU32, gate: Gate<'_>) {
    let mut watch = Watch { killed_calls, process, gate, waited: 0 };
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
fn await_report(killed_calls: CallSet, process: &Cloned, report: &AtomicU64, gate: Gate<'_>) {
    const INTERVAL: i64 = 100_000;
    let mut watch = Watch { killed_calls, process, gate, waited: 0 };
    let mut watched = [abi::pollfd { fd: process.pidfd.number(), events: abi::POLLIN as i16, revents: 0 }];
    while is_pending(report.load(Ordering::Acquire)) && call::poll(&mut watched, Some((0, INTERVAL))) != Ok(1) {
        watch.tick(INTERVAL);
    }
}

/// The input of the intermediate process.
struct Intermediate<'a, 'q> {
    child: &'a NewChild<'a>,
    /// The intermediate process's own plan.
    own: Start<'a, 'q>,
    registration: Option<&'a GuardRegistration>,
    /// The word that the kernel clears when the child has left this memory.
    in_memory: &'a AtomicU32,
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
    let this = unsafe { &*this.cast::<Intermediate<'_, '_>>() };
    let failure = match create_child(this) {
        Ok(child) => match prepare(&this.own) {
            Ok((sources, path)) => {
                await_gate(this, &child);
                this.child.words.gate().open();
                let errno = exec(this.own.plan, &sources, path);
                // Without its subreaper the tree is not complete. The child still has its pid: only this process reaps it.
                let _ = call::kill(child.pid, 9);
                let _ = wait_pid(child.pid, true);
                Failure { stage: ChildStage::Exec, errno }
            }
            Err(failure) => {
                this.child.words.gate().close();
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
fn create_child(this: &Intermediate<'_, '_>) -> Result<Cloned, Failure> {
    let failed = |errno| Failure { stage: ChildStage::Subreaper, errno };
    if let Some(registration) = this.registration {
        registration.make().map_err(failed)?;
    }
    call::prctl(prctl::PR_SET_CHILD_SUBREAPER, 1, 0).map_err(failed)?;
    let &NewChild { ref options, stack, entry, input, words, .. } = this.child;
    // SAFETY: the child's input does not change until the child has exec'd or exited, by the contract of
    // `enter_subreaper`. No other process uses the child's stack. Signals are blocked. If the processes share memory,
    // `create` waits until the child has left it.
    let child = unsafe { clone_child_into(options, stack, entry, input, Some(this.in_memory), words.pidfd()) };
    let child = child.map_err(|errno| {
        // The kernel may have stored a number before it failed.
        words.pidfd().store(NO_PIDFD, Ordering::Release);
        failed(errno)
    })?;
    words.pid().store(child.pid as u64, Ordering::Release);
    if let Some(socket) = this.socket {
        // The child exits at the gate if this fails.
        send(socket, &mut [0], &[child.pidfd.number()]).map_err(failed)?;
    }
    Ok(child)
}

/// Waits until the child is at its gate. If the child ends before that, reaps it and exits.
fn await_gate(this: &Intermediate<'_, '_>, child: &Cloned) {
    let gate = this.child.words.gate();
    while this.waits && gate.state() != Gate::REACHED {
        let has_failed = gate.state() == Gate::FAILED;
        let status = match wait_pid(child.pid, has_failed) {
            Ok(None) => None,
            Ok(Some(ended)) => Some(ended.status),
            // The caller ignores SIGCHLD, so the kernel has reaped the child.
            Err(_) => Some(127 << 8),
        };
        if let Some(status) = status {
            this.child.words.status().store((status as u32).into(), Ordering::Release);
            call::exit(127)
        }
        gate.wait_while(Gate::NOT_REACHED);
    }
}
