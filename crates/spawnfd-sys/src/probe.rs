// SPDX-License-Identifier: MIT OR Apache-2.0
//! Harmless attempts of the calls for which a filter may kill the process.

use linux_raw_sys::general as abi;
use linux_raw_sys::net as abi_net;

use crate::calls::{Call, CallSet};
use crate::errno::Errno;
use crate::{arch, call};

impl Call {
    /// Makes the call with arguments that the kernel refuses, or that change nothing.
    pub fn attempt(self) {
        const NONE: usize = usize::MAX;
        const CWD: usize = abi::AT_FDCWD as isize as usize;
        const NAMESPACES: u32 = abi::CLONE_NEWNS
            | abi::CLONE_NEWCGROUP
            | abi::CLONE_NEWUTS
            | abi::CLONE_NEWIPC
            | abi::CLONE_NEWUSER
            | abi::CLONE_NEWPID
            | abi::CLONE_NEWNET;
        let (number, args) = match self {
            // The kernel returns EBADF.
            Call::PidfdGetfd => (abi::__NR_pidfd_getfd, [NONE, NONE, 0, 0, 0, 0]),
            // The range contains only a number that no descriptor has.
            Call::CloseRange => (abi::__NR_close_range, [u32::MAX as usize, u32::MAX as usize, 0, 0, 0, 0]),
            // The kernel returns EINVAL for a size of 0.
            Call::Clone3 => (abi::__NR_clone3, [0; 6]),
            // The kernel returns EINVAL.
            Call::PidfdOpen => (abi::__NR_pidfd_open, [NONE, 0, 0, 0, 0, 0]),
            // The kernel returns EBADF.
            Call::PidfdSendSignal => (abi::__NR_pidfd_send_signal, [NONE, 0, 0, 0, 0, 0]),
            // The kernel returns EINVAL for a size of 0.
            Call::Openat2 => (abi::__NR_openat2, [CWD, 0, 0, 0, 0, 0]),
            // The kernel returns EFAULT, because the path is NULL.
            Call::Statx => (abi::__NR_statx, [CWD, 0, 0, abi::STATX_BASIC_STATS as usize, 0, 0]),
            // The kernel returns EFAULT, because the path is NULL.
            Call::Faccessat2 => (abi::__NR_faccessat2, [CWD, 0, abi::X_OK as usize, abi::AT_EACCESS as usize, 0, 0]),
            // The kernel returns EFAULT, because the path is NULL.
            Call::Execveat => (abi::__NR_execveat, [NONE, 0, 0, 0, 0, 0]),
            // The kernel returns EFAULT: it first checks the address for the two descriptor numbers.
            Call::Socketpair => {
                (abi::__NR_socketpair, [abi_net::AF_UNIX as usize, abi_net::SOCK_SEQPACKET as usize, 0, 0, 0, 0])
            }
            // The kernel returns EBADF.
            Call::Sendmsg => (abi::__NR_sendmsg, [NONE, 0, 0, 0, 0, 0]),
            // The kernel returns EBADF.
            Call::Recvmsg => (abi::__NR_recvmsg, [NONE, 0, 0, 0, 0, 0]),
            // The kernel returns EFAULT, because the name is NULL.
            Call::MemfdCreate => (abi::__NR_memfd_create, [0; 6]),
            // The kernel returns EINVAL for CLONE_THREAD without CLONE_SIGHAND.
            Call::CloneNamespaces => (abi::__NR_clone, [(NAMESPACES | abi::CLONE_THREAD) as usize, 0, 0, 0, 0, 0]),
            // The kernel returns ESRCH.
            Call::Kcmp => (abi::__NR_kcmp, [0, 0, 3, 0, 0, 0]),
            // The arguments are those of `call::session_keyring`, which changes nothing.
            Call::Keyctl => (abi::__NR_keyctl, [0, -3isize as usize, 0, 0, 0, 0]),
            // All addresses are NULL, so the kernel returns nothing.
            Call::GetMempolicy => (abi::__NR_get_mempolicy, [0; 6]),
            // The kernel returns EINVAL for a size of 0.
            Call::SchedGetattr => (abi::__NR_sched_getattr, [0; 6]),
            // The arguments are those of `call::io_priority`, which changes nothing.
            Call::IoprioGet => (abi::__NR_ioprio_get, [1, 0, 0, 0, 0, 0]),
            // The arguments are those of `call::persona`, which changes nothing.
            Call::Personality => (abi::__NR_personality, [u32::MAX as usize, 0, 0, 0, 0, 0]),
            Call::FileIds => {
                let _ = call::file_ids(CallSet::NONE);
                return;
            }
            Call::Builder => {
                #[cfg(feature = "std")]
                crate::builder::attempt();
                return;
            }
        };
        // SAFETY: every argument that the kernel uses as an address is NULL, which the kernel checks.
        let _ = Errno::check(unsafe { arch::syscall(number, args) });
    }
}
