// SPDX-License-Identifier: MIT OR Apache-2.0
//! The birth of a child that borrows its parent until exec.

use core::sync::atomic::AtomicU32;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::abi;
use crate::arch::{self, Entry};
use crate::calls::{Call, Calls};
use crate::errno::Errno;
use crate::memory::Stack;
use crate::{RawFd, call};

/// How a child is born.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    /// The child borrows the caller's memory (CLONE_VM). Without it the page tables are copied.
    pub share_memory: bool,
    /// The child begins in the caller's descriptor table (CLONE_FILES) and must unshare it itself.
    pub share_descriptors: bool,
    /// CLONE_NEW* flags of the namespaces the child is the first process of.
    pub namespaces: u32,
    /// A directory of cgroup v2 to be born in; asks for clone3.
    pub cgroup: Option<RawFd>,
    /// The child is the caller's sibling, its parent's child (CLONE_PARENT).
    pub sibling: bool,
    /// Use clone3, which also clears signal handlers (CLONE_CLEAR_SIGHAND, Linux 5.5). Otherwise clone.
    pub clone3: bool,
}

/// A child.
#[derive(Debug)]
pub struct Cloned {
    /// Its process id in the caller's pid namespace.
    pub pid: i32,
    /// Its pidfd, close-on-exec, as installed in the caller's table by the same system call.
    pub pidfd: FreshFd,
}

/// A descriptor the kernel has just made for the caller and nobody else knows of.
#[derive(Debug)]
#[must_use = "the descriptor stays open until it is owned"]
pub struct FreshFd(RawFd);

impl FreshFd {
    /// The number, to be told to somebody who shares the table it is in.
    pub fn into_number(self) -> RawFd {
        self.0
    }

    /// From a number that was told.
    ///
    /// # Safety
    /// It was made by `clone_child` in a task that had the caller's descriptor table, and nobody else makes it his own.
    pub unsafe fn from_number(number: RawFd) -> FreshFd {
        FreshFd(number)
    }
}

impl From<FreshFd> for OwnedFd {
    fn from(fresh: FreshFd) -> OwnedFd {
        // SAFETY: it is a descriptor that the kernel gave `clone_child`, by the promise of `from_number` also where the number
        // was told; the value is consumed.
        unsafe { OwnedFd::from_raw_fd(fresh.0) }
    }
}

/// Starts a child at `entry(data)`.
///
/// Without `apart` it returns when the child has exec'd or exited (CLONE_VFORK). With it, at once: the kernel sets the word to 0 when the
/// child has left the caller's memory, by exec or exit (CLONE_CHILD_CLEARTID); one with memory of its own leaves the word as it is.
///
/// The child's exit signal is 0 until its exec makes it SIGCHLD: one that fails before sends no signal, and only
/// a wait with `__WALL` sees it.
///
/// # Errors
/// As clone(2) and clone3(2): EAGAIN, ENOMEM, EMFILE, ENFILE, EPERM, ENOSYS, EINVAL, EUSERS, ENOSPC, EBUSY, EOPNOTSUPP.
///
/// # Safety
/// `entry(data)` must be sound in a child that shares the caller's memory while the caller (without `apart`) sleeps and its other
/// threads run. `stack` must not be in use; with `apart` it, the word and all the child reads must stay until the word is 0,
/// unless it has memory of its own.
/// Without clone3 the caller must have blocked all signals, as a handler
/// would run in the child on the parent's memory.
///
/// # References
/// clone(2), clone3(2), set_tid_address(2); CLONE_PIDFD Linux 5.2, clone3 5.3, CLONE_CLEAR_SIGHAND 5.5, CLONE_INTO_CGROUP 5.7.
/// `exit_signal` becomes SIGCHLD in fs/exec.c, de_thread().
pub unsafe fn clone_child(
    birth: &Birth,
    stack: &Stack,
    entry: Entry,
    data: *const (),
    apart: Option<&AtomicU32>,
) -> Result<Cloned, Errno> {
    let returns = if apart.is_some() { abi::CLONE_CHILD_CLEARTID } else { abi::CLONE_VFORK };
    let mut flags = (returns | abi::CLONE_PIDFD | birth.namespaces) as u64;
    let apart = apart.map_or(core::ptr::null_mut(), AtomicU32::as_ptr);
    if birth.share_memory {
        flags |= abi::CLONE_VM as u64;
    }
    if birth.sibling {
        flags |= abi::CLONE_PARENT as u64;
    }
    if birth.share_descriptors {
        flags |= abi::CLONE_FILES as u64;
    }
    let mut pidfd: RawFd = -1;
    let pidfd_at = &raw mut pidfd;
    let result = if birth.clone3 {
        let mut cgroup = 0;
        if let Some(fd) = birth.cgroup {
            flags |= abi::CLONE_INTO_CGROUP;
            cgroup = fd as u64;
        }
        let request = abi::clone_args {
            flags: flags | abi::CLONE_CLEAR_SIGHAND,
            pidfd: pidfd_at as u64,
            child_tid: apart as u64,
            parent_tid: 0,
            exit_signal: 0,
            stack: stack.bottom() as u64,
            stack_size: stack.size() as u64,
            tls: 0,
            set_tid: 0,
            set_tid_size: 0,
            cgroup,
        };
        let args = [&raw const request as usize, size_of::<abi::clone_args>(), 0, 0, 0];
        // SAFETY: the request is valid for its size and gives the child `stack`; the rest is the caller's promise.
        unsafe { arch::clone_call(abi::__NR_clone3, args, entry, data) }
    } else {
        let top = stack.bottom() as usize + stack.size();
        // SAFETY: clone stores the pidfd where parent_tid points (CLONE_PIDFD); the rest as above.
        unsafe {
            arch::clone_call(abi::__NR_clone, [flags as usize, top, pidfd_at as usize, apart as usize, 0], entry, data)
        }
    };
    let pid = Errno::check(result)? as i32;
    // SAFETY: the kernel has written the descriptor, through a pointer the compiler has seen escape.
    let pidfd = FreshFd(unsafe { pidfd_at.read_volatile() });
    Ok(Cloned { pid, pidfd })
}

/// Whether this kernel (and the seccomp filter over it) has clone3.
///
/// Asks with a size of 0, which a kernel that has the call answers with EINVAL and nothing else done.
pub fn has_clone3(killed: Calls) -> bool {
    !killed.contains(Call::Clone3) && call::probe(abi::__NR_clone3) == Errno::EINVAL
}
