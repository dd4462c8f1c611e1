// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a child by its pidfd, with what it used.

use core::mem::MaybeUninit;

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::{RawFd, arch};

/// How a child ended, and what it used.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The status word of wait(2).
    pub status: i32,
    /// User and system time of the child and the descendants it has waited for, in microseconds.
    pub cpu_micros: u64,
    /// The largest resident set among them, in KiB.
    pub max_rss_kib: u64,
}

/// Reaps the child behind a pidfd if it has ended: `None` when it has not and `block` is false.
///
/// `block` waits through signals (EINTR is not reported).
///
/// # Errors
/// ECHILD: no child of this process, or its status is already taken. EBADF: no pidfd.
///
/// # References
/// waitid(2) with P_PIDFD, Linux 5.4; the fifth argument is the kernel's, not libc's.
#[doc(alias = "waitid")]
pub fn wait_pidfd(pidfd: RawFd, block: bool) -> Result<Option<Ended>, Errno> {
    const P_PIDFD: usize = 3;
    // siginfo_t of a SIGCHLD: si_signo, si_errno, si_code, padding, si_pid, si_uid, si_status.
    let mut info = [0i32; 32];
    let mut usage = MaybeUninit::<abi::rusage>::zeroed();
    let options = abi::WEXITED | abi::__WALL | if block { 0 } else { abi::WNOHANG };
    let args = [P_PIDFD, pidfd as usize, info.as_mut_ptr() as usize, options as usize, usage.as_mut_ptr() as usize, 0];
    loop {
        // SAFETY: `info` has the 128 bytes of a siginfo_t, `usage` is a struct rusage.
        match Errno::check(unsafe { arch::syscall(abi::__NR_waitid, args) }) {
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    let [signo, _, code, _, _, _, value, ..] = info;
    if signo == 0 {
        return Ok(None);
    }
    let status = match code as u32 {
        abi::CLD_EXITED => (value & 0xff) << 8,
        abi::CLD_DUMPED => value | 0x80,
        _ => value,
    };
    // SAFETY: zeroed is a valid value, and the kernel has filled it in.
    let usage = unsafe { usage.assume_init() };
    let micros = |time: abi::__kernel_old_timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Ok(Some(Ended {
        status,
        cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss as u64,
    }))
}
