// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls that the helper and the host use on a tree.
//!
//! This module has all unsafe code of the crate, except the system call instruction (`syscall.rs`), the helper's
//! start and its heap.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::syscall::syscall;

/// An error number of the kernel, as a positive number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

#[allow(missing_docs)]
impl Errno {
    pub const EPERM: Errno = Errno(1);
    pub const ENOENT: Errno = Errno(2);
    pub const ESRCH: Errno = Errno(3);
    pub const EBUSY: Errno = Errno(16);
    pub const ENODEV: Errno = Errno(19);
    pub const EINVAL: Errno = Errno(22);
    pub const ENOTEMPTY: Errno = Errno(39);
}

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
    pub const NANOSLEEP: u32 = 35;
    pub const GETPID: u32 = 39;
    pub const FCNTL: u32 = 72;
    pub const KILL: u32 = 62;
    pub const GETPPID: u32 = 110;
    pub const GETPGID: u32 = 121;
    pub const GETSID: u32 = 124;
    pub const FSTATFS: u32 = 138;
    pub const PRCTL: u32 = 157;
    pub const GETDENTS64: u32 = 217;
    pub const CLOCK_GETTIME: u32 = 228;
    pub const EXIT_GROUP: u32 = 231;
    pub const OPENAT: u32 = 257;
    pub const UNLINKAT: u32 = 263;
    pub const READLINKAT: u32 = 267;
    pub const PPOLL: u32 = 271;
    pub const PIDFD_SEND_SIGNAL: u32 = 424;
    pub const PIDFD_OPEN: u32 = 434;
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

/// An open descriptor. Dropping this value closes it.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// The descriptor's number.
    pub fn number(&self) -> i32 {
        self.0
    }

    /// Duplicates a descriptor, with close-on-exec.
    pub fn duplicate(number: i32) -> Result<Fd> {
        const F_DUPFD_CLOEXEC: usize = 1030;
        // SAFETY: all arguments are numbers, not addresses.
        unsafe { enter(number::FCNTL, [number as usize, F_DUPFD_CLOEXEC, 3, 0, 0, 0]) }.map(|fd| Fd(fd as i32))
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        close(self.0);
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
/// `O_RDONLY | O_DIRECTORY | O_CLOEXEC`.
pub const DIRECTORY: u32 = 0o2200000;

/// Opens a file below `dir`.
pub fn open(dir: i32, path: &CStr, flags: u32) -> Result<Fd> {
    // SAFETY: `path` is a C string.
    unsafe { enter(number::OPENAT, [dir as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0]) }
        .map(|fd| Fd(fd as i32))
}

/// Reads into `buffer`; returns the number of bytes, 0 at the end.
pub fn read(fd: &Fd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer is valid for its length.
    unsafe { enter(number::READ, [fd.0 as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
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
    unsafe { enter(number::GETDENTS64, [dir.0 as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
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
    unsafe { enter(number::PIDFD_OPEN, [pid as usize, 0, 0, 0, 0, 0]) }.map(|fd| Fd(fd as i32))
}

/// Sends a signal to the process behind a pidfd.
pub fn signal(pidfd: &Fd, signal: i32) -> Result<()> {
    refuse_if(&PIDFD_SEND_SIGNAL_KILLS)?;
    // SAFETY: the arguments are numbers, and NULL where the call permits it.
    unsafe { enter(number::PIDFD_SEND_SIGNAL, [pidfd.0 as usize, signal as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Whether the process behind a pidfd still has its pid, that is, has not been reaped.
///
/// If pidfd_send_signal is disabled, returns whether the process still runs: a zombie counts as reaped.
pub fn has_pid(pidfd: &Fd) -> bool {
    if PIDFD_SEND_SIGNAL_KILLS.load(Ordering::Relaxed) {
        return !wait_for_end(pidfd.0, 0);
    }
    signal(pidfd, 0) != Err(Errno::ESRCH)
}

/// The inode of a pidfd, which no other process has until the next boot. `None` before Linux 6.9, where all pidfds
/// share an inode.
pub fn pidfd_inode(pidfd: &Fd) -> Option<u64> {
    const PID_FS_MAGIC: u64 = 0x5049_4446;
    // In struct statfs (120 bytes) f_type comes first; in struct stat (144 bytes) st_ino comes
    // second.
    let (mut system, mut status) = ([0u64; 15], [0u64; 18]);
    // SAFETY: each buffer has the size of the struct that the kernel stores.
    unsafe { enter(number::FSTATFS, [pidfd.0 as usize, system.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    // SAFETY: `status` has the size of the struct that the kernel stores.
    unsafe { enter(number::FSTAT, [pidfd.0 as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    (system[0] == PID_FS_MAGIC).then_some(status[1])
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
    let args = [pidfd.0 as usize, signal as usize, 0, PIDFD_SIGNAL_PROCESS_GROUP, 0, 0];
    // SAFETY: the arguments are numbers, and NULL where the call permits it.
    unsafe { enter(number::PIDFD_SEND_SIGNAL, args) }.map(drop)
}

/// Waits at most `milliseconds` until the process behind a pidfd has ended. Returns whether the process has ended.
pub fn wait_for_end(pidfd: i32, milliseconds: u64) -> bool {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        returned: i16,
    }
    let mut watched = PollFd { fd: pidfd, events: 1, returned: 0 };
    let time = duration(milliseconds);
    // SAFETY: the call gets one pollfd and one timespec, which outlive it, and no signal mask.
    let answer = unsafe { enter(number::PPOLL, [&raw mut watched as usize, 1, time.as_ptr() as usize, 0, 8, 0]) };
    matches!(answer, Ok(1)) && watched.returned & 1 != 0
}

/// Waits until one of two descriptors is readable, and returns which descriptors are readable. A pidfd is readable once
/// its process has ended.
pub fn wait_for_either(fds: [i32; 2]) -> [bool; 2] {
    // Two structs pollfd, each as two words: the descriptor, then `events` (POLLIN) in the low half and `revents` in
    // the high half.
    let mut watched = fds.map(|fd| [fd, 1]);
    // SAFETY: the call gets two pollfds, which outlive it. There is no timeout and no signal mask.
    let _ = unsafe { enter(number::PPOLL, [watched.as_mut_ptr() as usize, 2, 0, 0, 8, 0]) };
    watched.map(|[_, events]| events >> 16 & 1 != 0)
}

/// Makes the kernel reap the caller's children as they end, so that none becomes a zombie.
pub fn autoreap_children() {
    const SIGCHLD: usize = 17;
    const SIG_IGN: usize = 1;
    // The fields of the kernel's struct sigaction: handler, flags, restorer, mask.
    let action = [SIG_IGN, 0, 0, 0];
    // SAFETY: ignoring a signal runs no code.
    let _ = unsafe { enter(number::RT_SIGACTION, [SIGCHLD, action.as_ptr() as usize, 0, 8, 0, 0]) };
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

/// Milliseconds since boot (CLOCK_BOOTTIME).
pub fn now() -> u64 {
    let mut time = [0i64; 2];
    // SAFETY: the kernel writes a struct timespec, which has the size of `time`.
    let _ = unsafe { enter(number::CLOCK_GETTIME, [7, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    time[0] as u64 * 1000 + time[1] as u64 / 1_000_000
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

/// Sets the name of the calling thread, which ps shows.
pub fn set_name(name: &CStr) {
    // SAFETY: PR_SET_NAME reads a C string.
    let _ = unsafe { enter(number::PRCTL, [15, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Prevents other processes of the same user from tracing the caller and from copying its descriptors (pidfd_getfd).
pub fn set_undumpable() {
    // SAFETY: PR_SET_DUMPABLE takes a number.
    let _ = unsafe { enter(number::PRCTL, [4, 0, 0, 0, 0, 0]) };
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
