// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls that the helper and the host use on a tree.
//!
//! This module has all unsafe code of the crate, except the system call instruction (`syscall.rs`), the helper's
//! start and its heap.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::syscall::syscall;

pub use crate::clock::now;

/// An error number of the kernel, as a positive number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

#[allow(missing_docs)]
impl Errno {
    pub const EPERM: Errno = Errno(1);
    pub const ENOENT: Errno = Errno(2);
    pub const ESRCH: Errno = Errno(3);
    pub const EINTR: Errno = Errno(4);
    pub const ECHILD: Errno = Errno(10);
    pub const EACCES: Errno = Errno(13);
    pub const EBUSY: Errno = Errno(16);
    pub const ENODEV: Errno = Errno(19);
    pub const ENOTDIR: Errno = Errno(20);
    pub const EINVAL: Errno = Errno(22);
    pub const EMFILE: Errno = Errno(24);
    pub const ENOTEMPTY: Errno = Errno(39);
}

/// Ends a process, which cannot prevent it.
pub const SIGKILL: i32 = 9;
/// Asks a process to end.
pub const SIGTERM: i32 = 15;
/// Tells a parent that a child has ended or stopped.
pub const SIGCHLD: i32 = 17;
/// Continues a stopped process.
pub const SIGCONT: i32 = 18;
/// Stops a process, which cannot prevent it.
pub const SIGSTOP: i32 = 19;

/// The result of a system call.
pub type Result<T> = core::result::Result<T, Errno>;

/// System call numbers, from asm/unistd_64.h.
#[cfg(target_arch = "x86_64")]
mod number {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const CLOSE: u32 = 3;
    pub const FSTAT: u32 = 5;
    pub const MMAP: u32 = 9;
    pub const MUNMAP: u32 = 11;
    pub const RT_SIGACTION: u32 = 13;
    pub const RT_SIGPROCMASK: u32 = 14;
    pub const IOCTL: u32 = 16;
    pub const NANOSLEEP: u32 = 35;
    pub const GETPID: u32 = 39;
    pub const SENDTO: u32 = 44;
    pub const RECVFROM: u32 = 45;
    pub const RECVMSG: u32 = 47;
    pub const CLONE: u32 = 56;
    pub const EXECVE: u32 = 59;
    pub const WAIT4: u32 = 61;
    pub const KILL: u32 = 62;
    pub const FCNTL: u32 = 72;
    pub const GETPPID: u32 = 110;
    pub const SETSID: u32 = 112;
    pub const GETPGID: u32 = 121;
    pub const GETSID: u32 = 124;
    pub const FSTATFS: u32 = 138;
    pub const PRCTL: u32 = 157;
    pub const GETDENTS64: u32 = 217;
    pub const EXIT_GROUP: u32 = 231;
    pub const OPENAT: u32 = 257;
    pub const UNLINKAT: u32 = 263;
    pub const READLINKAT: u32 = 267;
    pub const PPOLL: u32 = 271;
    pub const SIGNALFD4: u32 = 289;
    pub const DUP3: u32 = 292;
    pub const PIDFD_SEND_SIGNAL: u32 = 424;
    pub const PIDFD_OPEN: u32 = 434;
    pub const CLOSE_RANGE: u32 = 436;
}

/// System call numbers, from asm-generic/unistd.h.
#[cfg(target_arch = "aarch64")]
mod number {
    pub const DUP3: u32 = 24;
    pub const FCNTL: u32 = 25;
    pub const IOCTL: u32 = 29;
    pub const UNLINKAT: u32 = 35;
    pub const FSTATFS: u32 = 44;
    pub const OPENAT: u32 = 56;
    pub const CLOSE: u32 = 57;
    pub const GETDENTS64: u32 = 61;
    pub const READ: u32 = 63;
    pub const WRITE: u32 = 64;
    pub const PPOLL: u32 = 73;
    pub const SIGNALFD4: u32 = 74;
    pub const READLINKAT: u32 = 78;
    pub const FSTAT: u32 = 80;
    pub const EXIT_GROUP: u32 = 94;
    pub const NANOSLEEP: u32 = 101;
    pub const KILL: u32 = 129;
    pub const RT_SIGACTION: u32 = 134;
    pub const RT_SIGPROCMASK: u32 = 135;
    pub const GETPGID: u32 = 155;
    pub const GETSID: u32 = 156;
    pub const SETSID: u32 = 157;
    pub const PRCTL: u32 = 167;
    pub const GETPID: u32 = 172;
    pub const GETPPID: u32 = 173;
    pub const SENDTO: u32 = 206;
    pub const RECVFROM: u32 = 207;
    pub const RECVMSG: u32 = 212;
    pub const MUNMAP: u32 = 215;
    pub const CLONE: u32 = 220;
    pub const EXECVE: u32 = 221;
    pub const MMAP: u32 = 222;
    pub const WAIT4: u32 = 260;
    pub const PIDFD_SEND_SIGNAL: u32 = 424;
    pub const PIDFD_OPEN: u32 = 434;
    pub const CLOSE_RANGE: u32 = 436;
}

/// Makes a system call.
///
/// # Safety
/// The requirements of [`syscall`].
unsafe fn enter(number: u32, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller guarantees the arguments.
    let result = unsafe { syscall(number, args) };
    if -4096 < result && result < 0 { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// An open descriptor. Dropping this value closes it, unless it belongs to another owner.
#[derive(Debug)]
pub struct Fd {
    number: i32,
    owner: Option<Owner>,
}

/// The owner of a shared descriptor, and the inode number of the descriptor's file.
#[derive(Clone, Debug)]
struct Owner {
    _keeps_open: Arc<dyn Any + Send + Sync>,
    inode: u64,
}

impl Fd {
    /// Takes a number that the kernel has just returned.
    fn new(number: usize) -> Fd {
        Fd { number: number as i32, owner: None }
    }

    /// A descriptor that `owner` keeps open. `inode` is the inode number of its file.
    pub fn shared(number: i32, inode: u64, owner: Arc<dyn Any + Send + Sync>) -> Fd {
        Fd { number, owner: Some(Owner { _keeps_open: owner, inode }) }
    }

    /// The descriptor's number.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Shares the owner of this descriptor, or duplicates the descriptor.
    pub fn try_clone(&self) -> Result<Fd> {
        match &self.owner {
            Some(owner) => Ok(Fd { number: self.number, owner: Some(owner.clone()) }),
            None => Fd::duplicate(self.number),
        }
    }

    /// Duplicates a descriptor, with close-on-exec.
    pub fn duplicate(number: i32) -> Result<Fd> {
        const F_DUPFD_CLOEXEC: usize = 1030;
        // SAFETY: all arguments are numbers, not addresses.
        unsafe { enter(number::FCNTL, [number as usize, F_DUPFD_CLOEXEC, 3, 0, 0, 0]) }.map(Fd::new)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.owner.is_none() {
            close(self.number);
        }
    }
}

/// Closes a descriptor by its number, which need not belong to an [`Fd`].
pub fn close(number: i32) {
    // SAFETY: all arguments are numbers, not addresses.
    let _ = unsafe { enter(number::CLOSE, [number as usize, 0, 0, 0, 0, 0]) };
}

/// `AT_FDCWD`.
pub const CWD: i32 = -100;
/// `O_RDONLY | O_CLOEXEC`.
pub const READ: u32 = 0o2000000;
/// `O_WRONLY | O_CLOEXEC`.
pub const WRITE: u32 = 0o2000001;
/// `O_PATH | O_CLOEXEC`.
pub const PATH: u32 = 0o12000000;
/// `O_RDONLY | O_DIRECTORY | O_CLOEXEC`.
pub const DIRECTORY: u32 = if cfg!(target_arch = "aarch64") { 0o2040000 } else { 0o2200000 };

/// Opens a file below `dir`.
pub fn open(dir: i32, path: &CStr, flags: u32) -> Result<Fd> {
    // SAFETY: `path` is a C string.
    unsafe { enter(number::OPENAT, [dir as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0]) }.map(Fd::new)
}

/// Reads into `buffer`; returns the number of bytes, 0 at the end.
pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer is valid for its length.
    unsafe { enter(number::READ, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// Reads the target of a symbolic link into `buffer`; returns the number of bytes. Truncates a longer target.
pub fn read_link(path: &CStr, buffer: &mut [u8]) -> Result<usize> {
    let args = [CWD as usize, path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0];
    // SAFETY: `path` is a C string, and the buffer is valid for its length.
    unsafe { enter(number::READLINKAT, args) }
}

/// Reads directory entries (`struct linux_dirent64`) into `buffer`; returns the number of bytes, 0 at the end.
pub fn entries(dir: &Fd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer is valid for its length.
    unsafe { enter(number::GETDENTS64, [dir.number as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// Writes bytes to a descriptor.
pub fn write(fd: i32, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the bytes are valid for their length.
    unsafe { enter(number::WRITE, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// Removes an empty directory.
pub fn remove_directory(dir: i32, path: &CStr) -> Result<()> {
    const AT_REMOVEDIR: usize = 0x200;
    // SAFETY: `path` is a C string.
    unsafe { enter(number::UNLINKAT, [dir as usize, path.as_ptr() as usize, AT_REMOVEDIR, 0, 0, 0]) }.map(drop)
}

static PIDFD_OPEN_KILLS: AtomicBool = AtomicBool::new(false);
static PIDFD_SEND_SIGNAL_KILLS: AtomicBool = AtomicBool::new(false);

/// Disables pidfd_open or pidfd_send_signal in this process, because the host's seccomp filter kills the process for
/// the call.
///
/// From then on the disabled functions return EPERM.
pub fn disable_calls(pidfd_open: bool, pidfd_send_signal: bool) {
    PIDFD_OPEN_KILLS.fetch_or(pidfd_open, Ordering::Relaxed);
    PIDFD_SEND_SIGNAL_KILLS.fetch_or(pidfd_send_signal, Ordering::Relaxed);
}

fn refuse_if(kills: &AtomicBool) -> Result<()> {
    if kills.load(Ordering::Relaxed) { Err(Errno::EPERM) } else { Ok(()) }
}

/// Opens a pidfd of the process that has this pid now (Linux 5.3).
pub fn pidfd_open(pid: i32) -> Result<Fd> {
    refuse_if(&PIDFD_OPEN_KILLS)?;
    // SAFETY: all arguments are numbers, not addresses.
    unsafe { enter(number::PIDFD_OPEN, [pid as usize, 0, 0, 0, 0, 0]) }.map(Fd::new)
}

/// Sends a signal to the process behind a pidfd.
pub fn signal(pidfd: &Fd, signal: i32) -> Result<()> {
    refuse_if(&PIDFD_SEND_SIGNAL_KILLS)?;
    // SAFETY: the arguments are numbers, and NULL where the call permits it.
    unsafe { enter(number::PIDFD_SEND_SIGNAL, [pidfd.number as usize, signal as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Whether the process behind a pidfd still has its pid, that is, has not been reaped.
///
/// If pidfd_send_signal is disabled, returns whether the process still runs: a zombie counts as reaped.
pub fn has_pid(pidfd: &Fd) -> bool {
    if PIDFD_SEND_SIGNAL_KILLS.load(Ordering::Relaxed) {
        return !wait_for_end(pidfd.number, 0);
    }
    signal(pidfd, 0) != Err(Errno::ESRCH)
}

/// The inode of a pidfd, which no other process has until the next boot. `None` before Linux 6.9, where all pidfds
/// share an inode.
pub fn pidfd_inode(pidfd: &Fd) -> Option<u64> {
    /// Whether a pidfd has shown that this kernel has the file system of pidfds.
    static HAS_PIDFS: AtomicBool = AtomicBool::new(false);
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    if !HAS_PIDFS.load(Ordering::Relaxed) {
        // In struct statfs (120 bytes) f_type comes first.
        let mut system = [0u64; 15];
        // SAFETY: `system` has the size of the struct that the kernel stores.
        unsafe { enter(number::FSTATFS, [pidfd.number as usize, system.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
        if system[0] != PID_FS_MAGIC {
            return None;
        }
        HAS_PIDFS.store(true, Ordering::Relaxed);
    }
    if let Some(owner) = &pidfd.owner {
        return Some(owner.inode);
    }
    // In struct stat (144 bytes) st_ino comes second.
    let mut status = [0u64; 18];
    // SAFETY: `status` has the size of the struct that the kernel stores.
    unsafe { enter(number::FSTAT, [pidfd.number as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    Some(status[1])
}

/// Whether the process group that the process behind a pidfd leads, or led, has a member. Kernels before Linux 6.9
/// return EINVAL.
///
/// The pidfd identifies the group by the kernel's own object, so the call never reports on a later group with the
/// same number.
#[doc(alias = "PIDFD_SIGNAL_PROCESS_GROUP")]
pub fn group_has_members(pidfd: &Fd) -> Result<bool> {
    // EPERM would mean that the group has members, so turn the EPERM of a disabled call into EINVAL.
    refuse_if(&PIDFD_SEND_SIGNAL_KILLS).map_err(|_| Errno::EINVAL)?;
    match signal_group(pidfd, 0) {
        Err(Errno::ESRCH) => Ok(false),
        // EPERM means that the group has a member, but the caller may not signal it.
        Ok(()) | Err(Errno::EPERM) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Sends a signal to the process group that the process behind a pidfd leads, or led. Signal 0 only checks for
/// members.
#[doc(alias = "PIDFD_SIGNAL_PROCESS_GROUP")]
pub fn signal_group(pidfd: &Fd, signal: i32) -> Result<()> {
    const PIDFD_SIGNAL_PROCESS_GROUP: usize = 4;
    refuse_if(&PIDFD_SEND_SIGNAL_KILLS)?;
    let args = [pidfd.number as usize, signal as usize, 0, PIDFD_SIGNAL_PROCESS_GROUP, 0, 0];
    // SAFETY: the arguments are numbers, and NULL where the call permits it.
    unsafe { enter(number::PIDFD_SEND_SIGNAL, args) }.map(drop)
}

/// Waits at most `milliseconds` until the process behind a pidfd has ended. Returns whether the process has ended.
pub fn wait_for_end(pidfd: i32, milliseconds: u64) -> bool {
    wait_for_any([pidfd], Some(milliseconds)) == [true]
}

/// Waits until one of these descriptors is readable, at most `milliseconds` if given, and returns which descriptors are
/// readable. A pidfd is readable once its process has ended. The call ignores negative numbers.
pub fn wait_for_any<const N: usize>(fds: [i32; N], milliseconds: Option<u64>) -> [bool; N] {
    // Structs pollfd, each as two words: the descriptor, then `events` (POLLIN) in the low half and `revents` in the
    // high half.
    let mut watched = fds.map(|fd| [fd, 1]);
    let time = milliseconds.map(duration);
    let timeout = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    // SAFETY: the call gets N pollfds, and a timespec or NULL, which outlive it. There is no signal mask.
    let answer = unsafe { enter(number::PPOLL, [watched.as_mut_ptr() as usize, N, timeout, 0, 8, 0]) };
    watched.map(|[_, events]| answer.is_ok() && events >> 16 & 1 != 0)
}

/// A descriptor that is readable while a signal is pending, which the caller has blocked. A read takes the signal.
#[doc(alias = "signalfd")]
pub fn pending_signal(signal: i32) -> Result<Fd> {
    const NONBLOCK_CLOEXEC: usize = 0o2004000;
    let mask: u64 = 1 << (signal - 1);
    // SAFETY: the kernel reads a signal set of 8 bytes.
    unsafe { enter(number::SIGNALFD4, [usize::MAX, &raw const mask as usize, 8, NONBLOCK_CLOEXEC, 0, 0]) }.map(Fd::new)
}

const MSG_DONTWAIT: usize = 0x40;

/// Sends a message to a connected socket if it has space.
pub fn send_now(socket: i32, bytes: &[u8]) -> Result<()> {
    let args = [socket as usize, bytes.as_ptr() as usize, bytes.len(), MSG_DONTWAIT, 0, 0];
    // SAFETY: the bytes are valid for their length. Without a receiver's address, the call uses the connection.
    unsafe { enter(number::SENDTO, args) }.map(drop)
}

/// Receives a message from a socket if one has arrived; returns the number of bytes.
pub fn receive_now(socket: i32, buffer: &mut [u8]) -> Result<usize> {
    let args = [socket as usize, buffer.as_mut_ptr() as usize, buffer.len(), MSG_DONTWAIT, 0, 0];
    // SAFETY: the buffer is valid for its length. The call ignores NULL for the sender's address.
    unsafe { enter(number::RECVFROM, args) }
}

/// Reaps a child that has ended. Returns its pid, its wait status, and its CPU time in microseconds and largest resident
/// set in KiB. `None`: all children run, and `block` is false.
///
/// # References
/// wait4(2). ECHILD: the caller has no child.
pub fn wait_for_child(block: bool) -> Result<Option<(i32, i32, [u64; 2])>> {
    const WNOHANG: usize = 1;
    const WALL: usize = 0x4000_0000;
    let options = WALL | if block { 0 } else { WNOHANG };
    let mut status = 0i32;
    // The words of a struct rusage: seconds and microseconds of user and of system time, the largest resident set, and
    // fields that this function does not use.
    let mut usage = [0u64; 18];
    let args = [usize::MAX, &raw mut status as usize, options, usage.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel stores an int and a struct rusage, which have these sizes.
    let pid = unsafe { enter(number::WAIT4, args) }?;
    let [user, user_micros, system, system_micros, max_rss, ..] = usage;
    let cpu = (user + system) * 1_000_000 + user_micros + system_micros;
    Ok((pid != 0).then_some((pid as i32, status, [cpu, max_rss])))
}

/// Sends a signal to the process that has this pid now.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: all arguments are numbers, not addresses.
    let _ = unsafe { enter(number::KILL, [pid as usize, signal as usize, 0, 0, 0, 0]) };
}

/// Whether there is no other process that the caller could signal. For the first process of a pid namespace, this
/// means that the namespace has no other process.
pub fn is_alone() -> bool {
    // SAFETY: all arguments are numbers, and signal 0 has no effect.
    let answer = unsafe { enter(number::KILL, [usize::MAX, 0, 0, 0, 0, 0]) };
    answer == Err(Errno::ESRCH)
}

/// Converts a time to the two words of a `struct timespec`.
fn duration(milliseconds: u64) -> [i64; 2] {
    [(milliseconds / 1000) as i64, (milliseconds % 1000 * 1_000_000) as i64]
}

/// Sleeps for this time.
pub fn sleep(milliseconds: u64) {
    let time = duration(milliseconds);
    // SAFETY: `time` is a struct timespec. The call ignores NULL for the remaining time.
    let _ = unsafe { enter(number::NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Whether a number is in use as a pid, process group id or session id.
///
/// Sets the owner of `fd` (F_SETOWN), so `fd` must be a descriptor that no other code uses.
///
/// # References
/// fcntl(2): F_SETOWN returns ESRCH if there is no such group. The kernel accepts the number as a pid, group id or
/// session id (fs/fcntl.c, f_setown). It sends no signal, because the descriptor is not O_ASYNC.
#[doc(alias = "F_SETOWN")]
pub fn is_number_in_use(fd: i32, pid: i32) -> bool {
    const F_SETOWN: usize = 8;
    // SAFETY: all arguments are numbers, not addresses.
    let answer = unsafe { enter(number::FCNTL, [fd as usize, F_SETOWN, pid.wrapping_neg() as usize, 0, 0, 0]) };
    answer != Err(Errno::ESRCH)
}

/// The pid of the calling process.
pub fn getpid() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { enter(number::GETPID, [0; 6]) }.unwrap_or(0) as i32
}

/// The pid of the calling process's parent, 0 if the parent is in another pid namespace.
pub fn getppid() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { enter(number::GETPPID, [0; 6]) }.unwrap_or(0) as i32
}

/// The session of the process that has this pid now; pid 0 means the caller. The session is 0 if it comes from
/// another pid namespace.
pub fn getsid(pid: i32) -> Result<i32> {
    // SAFETY: all arguments are numbers, not addresses.
    unsafe { enter(number::GETSID, [pid as usize, 0, 0, 0, 0, 0]) }.map(|session| session as i32)
}

/// The process group of the process that has this pid now; pid 0 means the caller.
pub fn getpgid(pid: i32) -> Result<i32> {
    // SAFETY: all arguments are numbers, not addresses.
    unsafe { enter(number::GETPGID, [pid as usize, 0, 0, 0, 0, 0]) }.map(|group| group as i32)
}

/// Makes a process group the foreground group of the caller's terminal `fd`.
pub fn set_foreground(fd: i32, group: i32) -> Result<()> {
    const TIOCSPGRP: usize = 0x5410;
    // SAFETY: TIOCSPGRP reads the number of a group.
    unsafe { enter(number::IOCTL, [fd as usize, TIOCSPGRP, &raw const group as usize, 0, 0, 0]) }.map(drop)
}

/// Sets the name of the calling thread, which ps shows.
pub fn set_name(name: &CStr) {
    // SAFETY: PR_SET_NAME reads a C string.
    let _ = unsafe { enter(number::PRCTL, [15, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Permits or prevents that other processes of the same user trace the caller, copy its descriptors (pidfd_getfd), and
/// open its entry in /proc.
pub fn set_dumpable(dumpable: bool) {
    // SAFETY: PR_SET_DUMPABLE takes a number.
    let _ = unsafe { enter(number::PRCTL, [4, usize::from(dumpable), 0, 0, 0, 0]) };
}

/// Sets the caller's signal mask. Bit n-1 of a mask stands for signal n. Returns the mask before.
pub fn set_signal_mask(mask: u64) -> u64 {
    const SIG_SETMASK: usize = 2;
    let mut before = 0u64;
    // SAFETY: both addresses are those of a mask of 8 bytes.
    let _ = unsafe {
        enter(number::RT_SIGPROCMASK, [SIG_SETMASK, &raw const mask as usize, &raw mut before as usize, 8, 0, 0])
    };
    before
}

/// Sets a signal's disposition to its default action, or ignores the signal. Returns whether the caller ignored it before.
pub fn set_ignored(signal: i32, ignored: bool) -> bool {
    // The fields of the kernel's struct sigaction: handler (SIG_DFL is 0, SIG_IGN is 1), flags, restorer, mask.
    let (action, mut before) = ([usize::from(ignored), 0, 0, 0], [0usize; 4]);
    let args = [signal as usize, action.as_ptr() as usize, before.as_mut_ptr() as usize, 8, 0, 0];
    // SAFETY: both addresses are those of a struct sigaction, and no disposition runs code.
    let _ = unsafe { enter(number::RT_SIGACTION, args) };
    before[0] == 1
}

/// Makes `to` a close-on-exec duplicate of the descriptor `from`.
pub fn duplicate_to(from: i32, to: i32) -> Result<()> {
    const O_CLOEXEC: usize = 0o2_000_000;
    // SAFETY: all arguments are numbers, not addresses.
    unsafe { enter(number::DUP3, [from as usize, to as usize, O_CLOEXEC, 0, 0, 0]) }.map(drop)
}

/// Makes exec close a descriptor.
pub fn set_close_on_exec(fd: i32) {
    const F_SETFD: usize = 2;
    // SAFETY: all arguments are numbers, not addresses.
    let _ = unsafe { enter(number::FCNTL, [fd as usize, F_SETFD, 1, 0, 0, 0]) };
}

/// Closes all descriptors from `first` to `last`. Before Linux 5.9, closes only numbers below 1024.
pub fn close_range(first: i32, last: i32) {
    // SAFETY: all arguments are numbers, not addresses.
    if unsafe { enter(number::CLOSE_RANGE, [first as usize, last as usize, 0, 0, 0, 0]) }.is_err() {
        (first..=last.min(1023)).for_each(close);
    }
}

/// Receives a message of 32-bit words, and its descriptors, which are close-on-exec. Returns the numbers of words and of
/// descriptors. No words: the other end is closed.
///
/// # References
/// recvmsg(2), unix(7). EMFILE: some of the descriptors did not arrive; the others stay open.
#[doc(alias = "recvmsg")]
pub fn receive_files(socket: i32, words: &mut [i32], fds: &mut [i32; 8]) -> Result<(usize, usize)> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    const MSG_CTRUNC: usize = 8;
    const HEADER: usize = 16;
    // A struct cmsghdr (length, level, type) of two words, and then the descriptors.
    let mut control = [0u64; 2 + 4];
    let mut vector = [words.as_mut_ptr() as usize, size_of_val(words)];
    // The words of a struct msghdr: address, its length, vector, its length, control data, their length, flags.
    let mut message =
        [0, 0, vector.as_mut_ptr() as usize, 1, control.as_mut_ptr() as usize, size_of_val(&control), 0usize];
    let args = [socket as usize, message.as_mut_ptr() as usize, MSG_CMSG_CLOEXEC, 0, 0, 0];
    // SAFETY: message, vector, words and control data have the stated sizes and outlive the call.
    let length = unsafe { enter(number::RECVMSG, args) }?;
    let received = if message[5] < HEADER { 0 } else { (control[0] as usize).saturating_sub(HEADER) / 4 };
    for (index, fd) in fds.iter_mut().take(received).enumerate() {
        *fd = (control[2 + index / 2] >> (index % 2 * 32)) as i32;
    }
    if message[6] & MSG_CTRUNC != 0 { Err(Errno::EMFILE) } else { Ok((length / 4, received.min(8))) }
}

/// The C strings of an argument list or of an environment, in the form that execve(2) takes.
#[derive(Clone, Debug)]
pub struct Words(Vec<*const u8>);

impl Words {
    /// Takes over an array from the caller's initial stack.
    ///
    /// # Safety
    /// `array` contains pointers to C strings, then NULL. The array and the strings live as long as the process.
    pub unsafe fn from_stack(mut array: *const *const u8) -> Words {
        let mut words = Vec::new();
        // SAFETY: the loop ends at NULL, so it stays within the array.
        while let word = unsafe { *array }
            && !word.is_null()
        {
            words.push(word);
            array = array.wrapping_add(1);
        }
        words.push(core::ptr::null());
        Words(words)
    }

    /// The strings.
    pub fn iter(&self) -> impl Iterator<Item = &'static CStr> {
        // SAFETY: all elements but the last point to C strings that live as long as the process.
        self.0.iter().take(self.0.len() - 1).map(|&word| unsafe { CStr::from_ptr(word.cast()) })
    }

    /// Removes the first strings.
    pub fn skip(&self, count: usize) -> Words {
        Words(self.0.get(count..).unwrap_or(&[core::ptr::null()]).to_vec())
    }

    /// Adds a string at the front.
    pub fn prepend(&mut self, word: &'static CStr) {
        self.0.insert(0, word.as_ptr().cast());
    }
}

/// Executes a program in place of the calling one. Returns only on failure.
#[doc(alias = "execve")]
pub fn exec(path: &CStr, arguments: &Words, environment: &Words) -> Errno {
    let args = [path.as_ptr() as usize, arguments.0.as_ptr() as usize, environment.0.as_ptr() as usize, 0, 0, 0];
    // SAFETY: `path` is a C string, and the arrays contain C strings and end with NULL.
    unsafe { enter(number::EXECVE, args) }.err().unwrap_or(Errno::EINVAL)
}

/// Creates a child with a copy of the caller's memory. The child's end sends SIGCONT to the caller. Returns 0 in the
/// child.
pub fn fork() -> Result<i32> {
    // SAFETY: without CLONE_VM the child has memory of its own, and continues on a copy of the caller's stack.
    unsafe { enter(number::CLONE, [SIGCONT as usize, 0, 0, 0, 0, 0]) }.map(|pid| pid as i32)
}

/// Lets the kernel send SIGCONT to the caller when the caller's parent, or the parent's thread that started the caller,
/// ends.
#[doc(alias = "PR_SET_PDEATHSIG")]
pub fn continue_at_parent_death() {
    // SAFETY: PR_SET_PDEATHSIG takes a number.
    let _ = unsafe { enter(number::PRCTL, [1, SIGCONT as usize, 0, 0, 0, 0]) };
}

/// Makes the caller, which leads no process group, the leader of a new session.
#[doc(alias = "setsid")]
pub fn start_session() {
    // SAFETY: the call has no arguments.
    let _ = unsafe { enter(number::SETSID, [0; 6]) };
}

/// Creates a child with a copy of the caller's memory, and waits until the child has called exec or has ended. Returns 0
/// in the child.
pub fn fork_until_exec() -> Result<i32> {
    const CLONE_VFORK: usize = 0x4000;
    // SAFETY: without CLONE_VM the child has memory of its own, and continues on a copy of the caller's stack.
    unsafe { enter(number::CLONE, [CLONE_VFORK | SIGCHLD as usize, 0, 0, 0, 0, 0]) }.map(|pid| pid as i32)
}

/// Ends the calling process.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: all arguments are numbers, not addresses.
        let _ = unsafe { enter(number::EXIT_GROUP, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

const PROTECTION: usize = 3;

/// Maps memory for an allocator; null on failure.
pub fn map_pages(size: usize) -> *mut u8 {
    const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
    // SAFETY: the kernel chooses the address, so a new mapping overlaps no other memory.
    let address = unsafe { enter(number::MMAP, [0, size, PROTECTION, MAP_PRIVATE_ANONYMOUS, usize::MAX, 0]) };
    address.map_or(core::ptr::null_mut(), |address| address as *mut u8)
}

/// Words that several processes share.
#[derive(Debug)]
pub struct SharedMemory {
    words: *mut AtomicU64,
    length: usize,
}

// SAFETY: this value owns the mapping, and all access goes through atomics.
unsafe impl Send for SharedMemory {}
// SAFETY: threads share only atomics.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps the first `length` words of a file. The file must be sealed against shrinking, or not accessible to other
    /// code.
    pub fn map(file: i32, length: usize) -> Result<SharedMemory> {
        const MAP_SHARED: usize = 1;
        // SAFETY: the kernel chooses the address, so a new mapping overlaps no other memory.
        let address = unsafe { enter(number::MMAP, [0, length * 8, PROTECTION, MAP_SHARED, file as usize, 0]) }?;
        Ok(SharedMemory { words: address as *mut AtomicU64, length })
    }

    /// The shared words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the words are mapped for reading and writing and page-aligned, and the mapping lives as long as
        // `self`. Any bits are a valid AtomicU64.
        unsafe { core::slice::from_raw_parts(self.words, self.length) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: `words` borrows from `self`, so no user of the mapping is left.
        let _ = unsafe { enter(number::MUNMAP, [self.words as usize, self.length * 8, 0, 0, 0, 0]) };
    }
}
