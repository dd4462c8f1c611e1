// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls for which a seccomp filter may kill the process (SECCOMP_RET_KILL_PROCESS).
//!
//! The host cannot try a call that may kill it. Instead, a probe child makes each call of [`Call::ALL`] once. The
//! functions of [`call`](crate::call) that make such a call take the set of killed calls. For a member of the set
//! they return EPERM and do not enter the kernel.
//!
//! The list leaves out the calls that a process with a libc makes for its threads, files and children
//! (openat, read, write, close, mmap, clone, execve, waitid, fcntl, futex, signals), uname and prctl.
//! It also leaves out calls without a fallback.

use crate::errno::Errno;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A system call for which a filter may kill the process.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Call {
            $($(#[$doc])* $name),*
        }

        impl Call {
            /// Every call, in the order in which a probe child makes them.
            pub const ALL: &[Call] = &[$(Call::$name),*];
        }
    };
}

calls! {
    /// pidfd_getfd, which is not in systemd's list @system-service.
    PidfdGetfd,
    /// close_range.
    CloseRange,
    /// clone3. Most filters return ENOSYS, because glibc makes the call for each thread.
    Clone3,
    /// pidfd_open.
    PidfdOpen,
    /// pidfd_send_signal.
    PidfdSendSignal,
    /// openat2.
    Openat2,
    /// statx.
    Statx,
    /// faccessat2.
    Faccessat2,
    /// execveat.
    Execveat,
    /// socketpair of AF_UNIX.
    Socketpair,
    /// sendmsg.
    Sendmsg,
    /// recvmsg.
    Recvmsg,
    /// memfd_create.
    MemfdCreate,
    /// clone with flags of new namespaces.
    CloneNamespaces,
    /// kcmp.
    Kcmp,
    /// keyctl.
    Keyctl,
    /// get_mempolicy.
    GetMempolicy,
    /// sched_getattr.
    SchedGetattr,
    /// ioprio_get.
    IoprioGet,
    /// personality, with the argument that changes nothing.
    Personality,
    /// setfsuid and setfsgid, with the id that changes nothing. systemd's set @privileged has them.
    FileIds,
    /// The two calls of kernels with this project's patches. On other kernels the numbers may mean
    /// other calls.
    Builder,
}

/// A set of system calls for which a filter may kill the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallSet(u32);

const _: () = assert!(Call::ALL.len() <= u32::BITS as usize);

impl CallSet {
    /// The empty set.
    pub const NONE: CallSet = CallSet(0);
    /// Every call of [`Call::ALL`].
    pub const ALL: CallSet = CallSet((1 << Call::ALL.len()) - 1);

    /// Returns the set with a call added.
    #[must_use]
    pub const fn with(self, call: Call) -> CallSet {
        CallSet(self.0 | 1 << call as u32)
    }

    /// Returns the set with a call removed.
    #[must_use]
    pub const fn without(self, call: Call) -> CallSet {
        CallSet(self.0 & !(1 << call as u32))
    }

    /// Whether the set has a call.
    #[inline]
    pub const fn contains(self, call: Call) -> bool {
        self.0 >> call as u32 & 1 != 0
    }

    /// Refuses a killed call, in the same way as a filter that returns an errno.
    ///
    /// # Errors
    /// EPERM: the set has the call.
    #[inline]
    pub const fn refuse(self, call: Call) -> Result<(), Errno> {
        if self.contains(call) { Err(Errno::EPERM) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_a_bit() {
        for (bit, &call) in Call::ALL.iter().enumerate() {
            assert_eq!(call as usize, bit);
            assert_eq!(CallSet::NONE.with(call).refuse(call), Err(Errno::EPERM));
            assert_eq!(CallSet::ALL.without(call).refuse(call), Ok(()));
        }
    }

    /// Makes each attempt in the test process, which must survive all of them.
    #[test]
    fn attempts_change_nothing() {
        Call::ALL.iter().filter(|&&call| call != Call::Builder).for_each(|call| call.attempt());
    }
}
