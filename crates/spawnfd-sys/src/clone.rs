// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates a child that shares its parent's memory until exec.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::abi;
use crate::arch::{self, Entry};
use crate::calls::{Call, CallSet};
use crate::errno::Errno;
use crate::memory::Stack;
use crate::{RawFd, call};

/// The options of one clone call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneOptions {
    /// True if the child shares the caller's memory (CLONE_VM). Otherwise the kernel copies the page tables.
    pub share_memory: bool,
    /// True if the child shares the caller's descriptor table (CLONE_FILES) and must unshare it itself.
    pub share_descriptors: bool,
    /// CLONE_NEW* flags of the namespaces in which the child is the first process.
    pub namespaces: u32,
    /// The directory of the cgroup (v2) in which the kernel creates the child. Requires clone3.
    pub cgroup: Option<RawFd>,
    /// True if the child becomes a child of the caller's parent (CLONE_PARENT).
    pub clone_parent: bool,
    /// True if clone_child uses clone3, which also clears signal handlers (CLONE_CLEAR_SIGHAND,
    /// Linux 5.5). Otherwise clone_child uses clone.
    pub clone3: bool,
    /// The signal that the kernel sends to the parent if the child ends before exec. 0 means no signal, and that only a
    /// wait with `__WALL` finds such a child. exec sets the signal to SIGCHLD.
    pub exit_signal: u32,
}

/// A created child.
#[derive(Debug)]
pub struct Cloned {
    /// The child's process id in the caller's pid namespace.
    pub pid: i32,
    /// The child's pidfd, close-on-exec. The clone call has installed it in the caller's table.
    pub pidfd: FreshFd,
}

/// A new descriptor that the kernel has just opened for the caller and that has no owner yet.
#[derive(Debug)]
#[must_use = "the descriptor stays open until it is owned"]
pub struct FreshFd(RawFd);

impl FreshFd {
    /// Returns the number, so that another task with the same descriptor table can own the descriptor.
    pub fn into_number(self) -> RawFd {
        self.0
    }

    /// The number.
    pub fn number(&self) -> RawFd {
        self.0
    }

    /// Takes over a descriptor from another task, by its number.
    ///
    /// # Safety
    /// `clone_child` opened the descriptor in a task that shared the caller's descriptor table, and no other code
    /// owns it.
    pub unsafe fn from_number(number: RawFd) -> FreshFd {
        FreshFd(number)
    }
}

#[cfg(feature = "std")]
impl From<FreshFd> for std::os::fd::OwnedFd {
    fn from(fresh: FreshFd) -> Self {
        // SAFETY: `clone_child` opened the descriptor, here or, by the contract of `from_number`, in another task.
        // The value is consumed, so the descriptor gets one owner.
        unsafe { std::os::fd::FromRawFd::from_raw_fd(fresh.0) }
    }
}

/// Starts a child at `entry(data)`.
///
/// Without `clear_tid` the function returns when the child has exec'd or exited (CLONE_VFORK). With `clear_tid` the
/// function returns at once, and the kernel sets the word to 0 when the child has left the caller's memory by exec or
/// exit (CLONE_CHILD_CLEARTID). If the child has memory of its own, the word does not change.
///
/// # Errors
/// The errors of clone(2) and clone3(2): EAGAIN, ENOMEM, EMFILE, ENFILE, EPERM, ENOSYS, EINVAL,
/// EUSERS, ENOSPC, EBUSY, EOPNOTSUPP.
///
/// # Safety
/// - `entry(data)` must be sound in a child that shares the caller's memory. The caller's other threads run at the
///   same time. Without `clear_tid` the calling thread sleeps.
/// - No other child uses `stack`.
/// - With `clear_tid`, and unless the child has memory of its own, the stack, the word and everything that the child
///   reads must stay valid until the word is 0.
/// - Without clone3 the caller must have blocked all signals: a handler would run in the child on the parent's
///   memory.
///
/// # References
/// clone(2), clone3(2), set_tid_address(2); CLONE_PIDFD Linux 5.2, clone3 5.3, CLONE_CLEAR_SIGHAND 5.5,
/// CLONE_INTO_CGROUP 5.7.
/// `exit_signal` becomes SIGCHLD in fs/exec.c, de_thread().
pub unsafe fn clone_child(
    options: &CloneOptions,
    stack: &Stack,
    entry: Entry,
    data: *const (),
    clear_tid: Option<&AtomicU32>,
) -> Result<Cloned, Errno> {
    let pidfd = AtomicU32::new(u32::MAX);
    // SAFETY: the caller guarantees the requirements of `clone_child_into`.
    unsafe { clone_child_into(options, stack, entry, data, clear_tid, &pidfd) }
}

/// The same as [`clone_child`]. The kernel stores the pidfd's number in the word `pidfd` before the child runs. So the
/// word says whether there is a child, even if a signal kills the calling process in this call.
///
/// # Errors
/// The same as those of [`clone_child`].
///
/// # Safety
/// The requirements of [`clone_child`].
pub unsafe fn clone_child_into(
    options: &CloneOptions,
    stack: &Stack,
    entry: Entry,
    data: *const (),
    clear_tid: Option<&AtomicU32>,
    pidfd: &AtomicU32,
) -> Result<Cloned, Errno> {
    // SAFETY: the caller guarantees the requirements of `clone_child_by_pid`.
    let pid = unsafe { clone_child_by_pid(options, stack, entry, data, clear_tid, Some(pidfd)) }?;
    Ok(Cloned { pid, pidfd: FreshFd(pidfd.load(Ordering::Acquire) as RawFd) })
}

/// The same as [`clone_child_into`], and returns the child's pid. Without a word for the pidfd, the kernel opens none.
///
/// # Errors
/// The same as those of [`clone_child`].
///
/// # Safety
/// The requirements of [`clone_child`].
pub unsafe fn clone_child_by_pid(
    options: &CloneOptions,
    stack: &Stack,
    entry: Entry,
    data: *const (),
    clear_tid: Option<&AtomicU32>,
    pidfd: Option<&AtomicU32>,
) -> Result<i32, Errno> {
    let returns = if clear_tid.is_some() { abi::CLONE_CHILD_CLEARTID } else { abi::CLONE_VFORK };
    let mut flags = (returns | options.namespaces) as u64;
    if pidfd.is_some() {
        flags |= abi::CLONE_PIDFD as u64;
    }
    let clear_tid = clear_tid.map_or(core::ptr::null_mut(), AtomicU32::as_ptr);
    if options.share_memory {
        flags |= abi::CLONE_VM as u64;
    }
    if options.clone_parent {
        flags |= abi::CLONE_PARENT as u64;
    }
    if options.share_descriptors {
        flags |= abi::CLONE_FILES as u64;
    }
    let pidfd_at = pidfd.map_or(core::ptr::null_mut(), AtomicU32::as_ptr);
    let result = if options.clone3 {
        let mut cgroup = 0;
        if let Some(fd) = options.cgroup {
            flags |= abi::CLONE_INTO_CGROUP;
            cgroup = fd as u64;
        }
        let request = abi::clone_args {
            flags: flags | abi::CLONE_CLEAR_SIGHAND,
            pidfd: pidfd_at as u64,
            child_tid: clear_tid as u64,
            parent_tid: 0,
            exit_signal: options.exit_signal.into(),
            stack: stack.bottom() as u64,
            stack_size: Stack::SIZE as u64,
            tls: 0,
            set_tid: 0,
            set_tid_size: 0,
            cgroup,
        };
        let args = [&raw const request as usize, size_of::<abi::clone_args>(), 0, 0, 0];
        // SAFETY: the request is valid for its size and gives the child `stack`; the caller guarantees the rest.
        unsafe { arch::clone_call(abi::__NR_clone3, args, entry, data) }
    } else {
        let top = stack.bottom() as usize + Stack::SIZE;
        // SAFETY: clone stores the pidfd where parent_tid points (CLONE_PIDFD). The child gets
        // `stack`, and the caller guarantees the rest.
        unsafe {
            arch::clone_call(
                abi::__NR_clone,
                arch::clone_args(
                    flags as usize | options.exit_signal as usize,
                    top,
                    pidfd_at as usize,
                    clear_tid as usize,
                ),
                entry,
                data,
            )
        }
    };
    Errno::check(result).map(|pid| pid as i32)
}

/// Whether this kernel, and a seccomp filter of the thread, permits clone3.
///
/// Calls clone3 with a size of 0: a kernel that has the call returns EINVAL and creates no process.
pub fn has_clone3(killed_calls: CallSet) -> bool {
    !killed_calls.contains(Call::Clone3) && call::probe(abi::__NR_clone3) == Errno::EINVAL
}
