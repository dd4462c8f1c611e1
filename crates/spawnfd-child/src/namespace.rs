// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a program in an existing pid namespace: an intermediate process enters the namespace and starts the child.
//!
//! setns(CLONE_NEWPID) decides in which namespace the calling thread's children start, so a thread of the host must
//! not call it.

use core::sync::atomic::Ordering;

use spawnfd_sys::call;
use spawnfd_sys::{CloneOptions, Cloned, Errno, FreshFd, RawFd, abi, clone_child, wait_pidfd};

use crate::action::{CapabilitySets, limit_capabilities};
use crate::launch::{NewChild, Parent};
use crate::report::{ChildStage, Failure, Outcome};

/// A pid namespace that exists already. An intermediate process enters it and creates the child there.
///
/// The program also enters new namespaces of the kinds in `options.namespaces`. The child has memory of its own and a copy
/// of the caller's table.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    /// The caller's pidfd of the namespace's first process.
    pub init: RawFd,
    /// True if the namespace belongs to a user namespace of its own. The program enters that user namespace too,
    /// without capabilities in it.
    pub user: bool,
}

/// A process that was started in a pid namespace.
#[derive(Debug)]
pub struct InNamespace {
    /// The child, or an intermediate process that has ended without reporting a child.
    pub process: Cloned,
    /// The outcome, if `process` is an intermediate process. If a signal killed it, there may be a child that still
    /// writes to the words of the start, so do not use its [`ChildMemory`](crate::ChildMemory) again.
    pub failure: Option<Outcome>,
}

impl Parent for Namespace {
    type Started = InNamespace;

    unsafe fn create(self, child: &NewChild<'_>) -> Result<InNamespace, Errno> {
        let words = child.words;
        words.report().store(ChildStage::Namespace.progress(), Ordering::Release);
        words.pid().store(0, Ordering::Release);
        // The intermediate process shares the caller's descriptor table, so the child's pidfd appears in that table.
        // No signal other than SIGKILL kills the intermediate process between clone and its report.
        let intermediate =
            CloneOptions { share_memory: false, share_descriptors: true, namespaces: 0, ..child.options };
        let options = CloneOptions {
            share_memory: false,
            share_descriptors: false,
            cgroup: None,
            clone_parent: true,
            ..child.options
        };
        let inside = Intermediate { child, options, namespace: self };
        // SAFETY: both processes have memory of their own; only the words are shared. Signals are blocked.
        let process =
            unsafe { clone_child(&intermediate, child.stack, enter_namespace, (&raw const inside).cast(), None) }?;
        let pid = words.pid().load(Ordering::Acquire) as i32;
        if pid == 0 {
            let failure = match Outcome::of(words.report().load(Ordering::Acquire)) {
                Outcome::Failed(failure) => Outcome::Failed(failure),
                // A signal has killed the intermediate process, maybe after it created a child.
                _ => Outcome::Killed(ChildStage::Namespace),
            };
            return Ok(InNamespace { process, failure: Some(failure) });
        }
        // The intermediate process has exited, or exits soon. It sends no SIGCHLD.
        let number = process.pidfd.into_number();
        let _ = wait_pidfd(number, true);
        let _ = call::close(number);
        // SAFETY: the intermediate process, which used this table, has reported the number.
        let pidfd = unsafe { FreshFd::from_number(words.pidfd().load(Ordering::Acquire) as RawFd) };
        Ok(InNamespace { process: Cloned { pid, pidfd }, failure: None })
    }
}

/// The input of the intermediate process, and of the child.
struct Intermediate<'a> {
    child: &'a NewChild<'a>,
    /// The options of the child. The child has memory of its own, so it can use the same stack.
    options: CloneOptions,
    namespace: Namespace,
}

impl Intermediate<'_> {
    /// Reports a failure, and exits.
    fn fail(&self, errno: Errno) -> ! {
        let failure = Failure { stage: ChildStage::Namespace, errno };
        self.child.words.report().store(failure.pack(), Ordering::Release);
        call::exit(127)
    }
}

/// Entry point of the intermediate process, which starts the child and exits.
///
/// # Safety
/// `this` points to an [`Intermediate`] that does not change until both processes have exec'd or exited. The process
/// has memory of its own.
unsafe extern "C" fn enter_namespace(this: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let (argument, this) = (this, unsafe { &*this.cast::<Intermediate<'_>>() });
    let kinds = if this.namespace.user { abi::CLONE_NEWPID | abi::CLONE_NEWUSER } else { abi::CLONE_NEWPID };
    let launched = call::setns(this.namespace.init, kinds).and_then(|_| {
        // SAFETY: the child has a copy of this memory, so it can use the same stack. The data that it reads does not
        // change.
        unsafe { clone_child(&this.options, this.child.stack, enter_inside, argument, this.child.in_memory) }
    });
    match launched {
        Ok(child) => {
            this.child.words.pidfd().store(child.pidfd.into_number() as u32, Ordering::Relaxed);
            this.child.words.pid().store(child.pid as u64, Ordering::Release);
            call::exit(0)
        }
        Err(errno) => this.fail(errno),
    }
}

/// Entry point of the child, which the intermediate process has started.
///
/// # Safety
/// The requirements of [`enter_namespace`].
unsafe extern "C" fn enter_inside(this: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let this = unsafe { &*this.cast::<Intermediate<'_>>() };
    // A process that enters a user namespace gets all capabilities in it, and root would keep them across exec.
    if this.namespace.user
        && let Err(errno) = limit_capabilities(&CapabilitySets::new())
    {
        this.fail(errno)
    }
    // SAFETY: the entry point is sound with its input, which does not change, by this function's contract.
    unsafe { (this.child.entry)(this.child.input) }
}
