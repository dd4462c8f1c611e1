// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for a child by its pidfd, and reads the child's resource usage. Also reads the status of a child that other
//! code has reaped.

use core::mem::MaybeUninit;

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::{RawFd, arch, call};

/// The way in which a child ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The status word of wait(2).
    pub status: i32,
    /// The child's resource usage; `None` if other code has reaped the child.
    pub used: Option<Used>,
}

/// The resource usage of a child.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// User and system time of the child and of the descendants for which it has waited, in microseconds.
    pub cpu_micros: u64,
    /// The largest resident set of these processes, in KiB.
    pub max_rss_kib: u64,
}

/// Reaps the child behind a pidfd if the child has ended. Returns `None` if the child still runs and `block` is false.
///
/// With `block` the function waits until the child ends, and continues after EINTR. From Linux 6.15 on it also
/// returns the status of a child that other code has reaped, or that the kernel has reaped because SIGCHLD is
/// ignored, if the pidfd was open before.
///
/// # Errors
/// ECHILD: the process is no child of the caller, or it is already reaped and its status is lost. EBADF: not a pidfd.
///
/// # References
/// waitid(2) with P_PIDFD, Linux 5.4. The system call has a fifth argument, rusage, which libc's function lacks.
/// PIDFD_GET_INFO, Linux 6.13; PIDFD_INFO_EXIT, 6.15.
#[doc(alias = "waitid")]
pub fn wait_pidfd(pidfd: RawFd, block: bool) -> Result<Option<Ended>, Errno> {
    let options = abi::__WALL | if block { 0 } else { abi::WNOHANG };
    match wait(pidfd, options) {
        Err(Errno::ECHILD) => {
            let status = status_of_reaped(pidfd).ok_or(Errno::ECHILD)?;
            Ok(Some(Ended { status, used: None }))
        }
        outcome => outcome,
    }
}

/// Reaps the child behind a pidfd if the child has no exit signal, that is, if it never exec'd. Otherwise returns
/// `None`.
///
/// Call this function only after the child has left its parent's memory. Then either the child has exec'd and has an
/// exit signal, or the child ends soon.
///
/// # References
/// `__WCLONE` in wait(2); fs/exec.c, de_thread().
#[doc(alias = "waitid")]
pub fn reap_unsignalled(pidfd: RawFd) -> Option<Ended> {
    match wait(pidfd, abi::__WCLONE | abi::WNOHANG) {
        Ok(None) => wait(pidfd, abi::__WCLONE).ok()?,
        outcome => outcome.ok()?,
    }
}

/// Waits until the child behind a pidfd has ended, without reaping it, and returns the signal that killed it.
///
/// Returns `None` if the child exited, or if other code has reaped it.
///
/// # References
/// `WNOWAIT` in waitid(2).
#[doc(alias = "WNOWAIT")]
pub fn signal_that_ended(pidfd: RawFd) -> Option<i32> {
    let ended = wait(pidfd, abi::__WALL | abi::WNOWAIT).ok()??;
    Some(ended.status & 0x7f).filter(|&signal| signal != 0)
}

/// Reaps the child with this pid if it has ended. Returns `None` if the child still runs and `block` is false.
///
/// # Errors
/// ECHILD: the process is no child of the caller, or the kernel has reaped it because the caller ignores SIGCHLD.
#[doc(alias = "waitid")]
pub fn wait_pid(pid: i32, block: bool) -> Result<Option<Ended>, Errno> {
    const P_PID: usize = 1;
    wait_for(P_PID, pid, abi::__WALL | if block { 0 } else { abi::WNOHANG })
}

/// Calls waitid(2) for a child by its pidfd.
fn wait(pidfd: RawFd, options: u32) -> Result<Option<Ended>, Errno> {
    const P_PIDFD: usize = 3;
    wait_for(P_PIDFD, pidfd, options)
}

/// Calls waitid(2), and repeats the call after EINTR.
fn wait_for(kind: usize, id: i32, options: u32) -> Result<Option<Ended>, Errno> {
    // The fields of the siginfo_t of a SIGCHLD: si_signo, si_errno, si_code, padding, si_pid,
    // si_uid, si_status.
    let mut info = [0i32; 32];
    let mut usage = MaybeUninit::<abi::rusage>::zeroed();
    let options = abi::WEXITED | options;
    let args = [kind, id as usize, info.as_mut_ptr() as usize, options as usize, usage.as_mut_ptr() as usize, 0];
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
    let used =
        Used { cpu_micros: micros(usage.ru_utime) + micros(usage.ru_stime), max_rss_kib: usage.ru_maxrss as u64 };
    Ok(Some(Ended { status, used: Some(used) }))
}

/// The first version of struct pidfd_info.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ids: [u32; 8],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;

impl PidfdInfo {
    /// The status of a process that has been reaped.
    fn status(&self) -> Option<i32> {
        (self.mask & PIDFD_INFO_EXIT != 0).then_some(self.exit_code)
    }
}

/// The request PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info).
const PIDFD_GET_INFO: u32 = 3 << 30 | (size_of::<PidfdInfo>() as u32) << 16 | 0xff << 8 | 11;

/// The longest wait until another thread or the kernel has reaped an ended child.
const REAPING: abi::__kernel_timespec = abi::__kernel_timespec { tv_sec: 1, tv_nsec: 0 };

/// Returns the status of a child that other code has reaped. Waits at most [`REAPING`] for the end of that reaping.
///
/// The status is the exit code of the child's first thread, also if other threads ended later with other codes.
fn status_of_reaped(pidfd: RawFd) -> Option<i32> {
    let first = info(pidfd);
    if let Some(status) = first.as_ref().ok().and_then(PidfdInfo::status) {
        return Some(status);
    }
    match first {
        // The child still has its pid. It has ended, and another thread, or the kernel if SIGCHLD is ignored, is
        // reaping it.
        Ok(PidfdInfo { ppid, .. }) if call::getpid() == Ok(ppid as i32) => wait_until_reaped(pidfd),
        Err(Errno::ESRCH) => wait_until_reaped(pidfd),
        // The process is the child of another process, or the kernel lacks PIDFD_GET_INFO.
        _ => return None,
    }
    info(pidfd).ok()?.status()
}

/// The status of a reaped process, which the pidfd keeps.
///
/// # Errors
/// ENOTTY: a kernel before Linux 6.15, or the process has not been reaped. ESRCH: the process is being reaped.
#[doc(alias = "PIDFD_INFO_EXIT")]
pub fn kept_status(pidfd: RawFd) -> Result<i32, Errno> {
    info(pidfd)?.status().ok_or(Errno::ENOTTY)
}

fn info(pidfd: RawFd) -> Result<PidfdInfo, Errno> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    let args = [pidfd as usize, PIDFD_GET_INFO as usize, &raw mut info as usize, 0, 0, 0];
    // SAFETY: the request contains the size of `info`.
    Errno::check(unsafe { arch::syscall(abi::__NR_ioctl, args) })?;
    Ok(info)
}

/// Waits for the POLLHUP that a pidfd reports once its process has been reaped, at most `REAPING`.
fn wait_until_reaped(pidfd: RawFd) {
    let mut watched = abi::pollfd { fd: pidfd, events: 0, revents: 0 };
    let (mut timeout, mask) = (REAPING, u64::MAX);
    // Block signals during the wait, which is short.
    let args = [&raw mut watched as usize, 1, &raw mut timeout as usize, &raw const mask as usize, size_of::<u64>(), 0];
    // SAFETY: the call gets one pollfd, a timespec that it may change, and a signal set of the
    // kernel's size.
    let _ = Errno::check(unsafe { arch::syscall(abi::__NR_ppoll, args) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// The layout equals that in include/uapi/linux/pidfd.h: PIDFD_INFO_SIZE_VER0, and the order of
    /// the fields.
    #[test]
    fn the_layout_equals_that_of_the_kernel() {
        assert_eq!((size_of::<PidfdInfo>(), align_of::<PidfdInfo>()), (64, 8));
        assert_eq!((offset_of!(PidfdInfo, mask), offset_of!(PidfdInfo, cgroupid)), (0, 8));
        assert_eq!(
            (offset_of!(PidfdInfo, pid), offset_of!(PidfdInfo, tgid), offset_of!(PidfdInfo, ppid)),
            (16, 20, 24)
        );
        assert_eq!((offset_of!(PidfdInfo, ids), offset_of!(PidfdInfo, exit_code)), (28, 60));
        assert_eq!(PIDFD_GET_INFO, 0xc040_ff0b);
    }
}
