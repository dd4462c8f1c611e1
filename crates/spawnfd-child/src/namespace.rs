// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a program in an existing pid namespace: an intermediate process enters the namespace and starts the child.
//!
//! setns(CLONE_NEWPID) decides in which namespace the calling thread's children start, so a thread of the host must
//! not call it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call;
use spawnfd_sys::{CloneOptions, Cloned, Errno, FreshFd, RawFd, SharedWords, Stack, abi, clone_child, wait_pidfd};

use crate::action::{CapabilitySets, limit_capabilities};
use crate::child::{Start, enter};
use crate::launch::{ChildMemory, Detached, Launched, with_signals_blocked};
use crate::plan::{Plan, Table};
use crate::report::{Failure, Outcome, Stage};

/// A pid namespace that exists already.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    /// The caller's pidfd of the namespace's first process.
    pub init: RawFd,
    /// True if the namespace belongs to a user namespace of its own. The program enters that user namespace too,
    /// without capabilities in it.
    pub user: bool,
}

/// Starts a child in the namespace, and returns when the child has become the program or has failed.
///
/// The program also enters new namespaces of the kinds in `options.namespaces`. The child has
/// memory of its own and a copy of the caller's table.
///
/// # Errors
/// No child was created.
pub fn launch_in_namespace(
    memory: &mut ChildMemory,
    options: CloneOptions,
    namespace: Namespace,
    plan: &Plan<'_>,
) -> Result<Launched, Errno> {
    start(&memory.stack, &memory.words, options, namespace, plan, None)
}

/// Starts a child in the namespace, and returns as soon as the child exists.
///
/// # Errors
/// No child was created.
pub fn detach_in_namespace(
    memory: &mut ChildMemory,
    options: CloneOptions,
    namespace: Namespace,
    plan: Arc<Plan<'static>>,
) -> Result<(Cloned, Detached), Errno> {
    let words = SharedWords::new()?;
    let clear_tid = AtomicU32::new(0);
    let child = start(&memory.stack, &words, options, namespace, &plan, Some(&clear_tid))?.child;
    Ok((child, Detached::with_own_memory(plan, words)))
}

/// Starts a child in the namespace. If `clear_tid` is `Some`, the function does not wait for the child's exec.
fn start(
    stack: &Stack,
    words: &SharedWords,
    options: CloneOptions,
    namespace: Namespace,
    plan: &Plan<'_>,
    clear_tid: Option<&AtomicU32>,
) -> Result<Launched, Errno> {
    let [report, pid, pidfd, _] = words.get();
    report.store(Stage::Namespace.progress(), Ordering::Release);
    pid.store(0, Ordering::Release);
    // The intermediate process shares the caller's descriptor table, so the child's pidfd appears
    // in that table. Signals stay blocked, so that no signal kills the intermediate process between
    // clone and its report.
    let intermediate = CloneOptions { share_memory: false, share_descriptors: true, namespaces: 0, ..options };
    let options =
        CloneOptions { share_memory: false, share_descriptors: false, cgroup: None, clone_parent: true, ..options };
    let (table, has_handlers) = (Table::Copied, !options.clone3);
    let outer = with_signals_blocked(true, |blocked| {
        let start = Start { plan, table, report, has_handlers, mask: plan.signal_mask.or(blocked), gate: None };
        let inside = Intermediate { start, namespace, options, stack, clear_tid, launched: [pid, pidfd] };
        // SAFETY: both processes have memory of their own; only the words are shared. Signals are blocked.
        unsafe { clone_child(&intermediate, stack, enter_namespace, (&raw const inside).cast(), None) }
    })?;
    let outcome = Outcome::of(report.load(Ordering::Acquire));
    match pid.load(Ordering::Acquire) as i32 {
        // A signal killed the intermediate process before it stored the child's pid.
        0 if matches!(outcome, Outcome::Program { .. }) => {
            Ok(Launched { child: outer, outcome: Outcome::Killed(Stage::Namespace) })
        }
        0 => Ok(Launched { child: outer, outcome }),
        pid => {
            // The intermediate process has exited, or exits soon. It sends no SIGCHLD.
            let number = outer.pidfd.into_number();
            let _ = wait_pidfd(number, true);
            let _ = call::close(number);
            // SAFETY: the intermediate process, which used this table, has reported the number.
            let pidfd = unsafe { FreshFd::from_number(pidfd.load(Ordering::Acquire) as i32) };
            Ok(Launched { child: Cloned { pid, pidfd }, outcome })
        }
    }
}

/// The input of the intermediate process.
struct Intermediate<'a, 'p> {
    /// The child's input.
    start: Start<'a, 'p>,
    namespace: Namespace,
    /// The options of the child. The child has memory of its own, so it can use the same stack.
    options: CloneOptions,
    stack: &'a Stack,
    /// If this is `Some`, the intermediate process does not wait for the child's exec.
    clear_tid: Option<&'a AtomicU32>,
    /// The words in which the intermediate process stores the child's pid and pidfd.
    launched: [&'a AtomicU64; 2],
}

/// Entry point of the intermediate process, which starts the child and exits.
///
/// # Safety
/// `this` points to an [`Intermediate`] that does not change until both processes have exec'd or exited. The process
/// has memory of its own.
unsafe extern "C" fn enter_namespace(this: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let (argument, this) = (this, unsafe { &*this.cast::<Intermediate<'_, '_>>() });
    let kinds = if this.namespace.user { abi::CLONE_NEWPID | abi::CLONE_NEWUSER } else { abi::CLONE_NEWPID };
    let launched = call::setns(this.namespace.init, kinds).and_then(|_| {
        // SAFETY: the child has a copy of this memory, so it can use the same stack. The data that it reads does not
        // change.
        unsafe { clone_child(&this.options, this.stack, enter_inside, argument, this.clear_tid) }
    });
    match launched {
        Ok(child) => {
            let [pid, pidfd] = this.launched;
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

/// Entry point of the child, which the intermediate process has started.
///
/// # Safety
/// The requirements of [`enter_namespace`].
unsafe extern "C" fn enter_inside(this: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let this = unsafe { &*this.cast::<Intermediate<'_, '_>>() };
    // A process that enters a user namespace gets all capabilities in it, and root would keep them across exec.
    if this.namespace.user
        && let Err(errno) = limit_capabilities(&CapabilitySets::new())
    {
        this.start.report.store(Failure { stage: Stage::Namespace, errno }.pack(), Ordering::Release);
        call::exit(127)
    }
    // SAFETY: `start` does not change, by this function's contract.
    unsafe { enter((&raw const this.start).cast()) }
}
