// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls as functions that use only their arguments: no errno variable, no cancellation point, no lock.
//!
//! A child may call them between clone and exec. A call that changes attributes changes only the calling thread.
//!
//! Descriptors are plain numbers, in the descriptor table of the calling task.

use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU32;

use linux_raw_sys::general as abi;

use crate::calls::{Call, CallSet};
use crate::errno::Errno;
use crate::{RawFd, arch};

/// A value that fits the register of a system call argument.
trait Arg {
    fn arg(self) -> usize;
}

macro_rules! numbers {
    ($($number:ty),*) => { $(impl Arg for $number { fn arg(self) -> usize { self as isize as usize } })* };
}
numbers!(i32, u32, usize, u64);

impl Arg for &CStr {
    fn arg(self) -> usize {
        self.as_ptr() as usize
    }
}
impl<T> Arg for *const T {
    fn arg(self) -> usize {
        self as usize
    }
}
impl<T> Arg for *mut T {
    fn arg(self) -> usize {
        self as usize
    }
}

macro_rules! enter {
    ($number:ident $(, $arg:expr)*) => {{
        let mut args = [0usize; 6];
        let given = [$(Arg::arg($arg)),*];
        let mut at = 0;
        while at < given.len() {
            args[at] = given[at];
            at += 1;
        }
        // SAFETY: the enclosing function builds the arguments from references and slices that are valid for what the
        // call reads and writes, or is itself unsafe.
        Errno::check(unsafe { arch::syscall(abi::$number, args) })
    }};
}

mod thread;

pub use thread::*;

/// A signal set in the kernel's form: bit n-1 for signal n.
pub type SignalSet = u64;

pub use linux_raw_sys::ioctl::TIOCSCTTY;

/// Makes a system call by its number, with three arguments. The other arguments are 0.
///
/// # Safety
/// Addresses among the arguments are valid for what the call reads, and the call writes to no memory.
pub unsafe fn make(number: u32, [first, second, third]: [usize; 3]) -> Result<usize, Errno> {
    // SAFETY: the caller keeps this function's contract.
    Errno::check(unsafe { arch::syscall(number, [first, second, third, 0, 0, 0]) })
}

/// Makes a system call with all-zero arguments and returns its errno, which tells whether the call exists.
pub(crate) fn probe(number: u32) -> Errno {
    // SAFETY: the callers pass only calls that refuse all-zero arguments before doing anything.
    failure(Errno::check(unsafe { arch::syscall(number, [0; 6]) }))
}

/// Returns the errno of a system call that returns only on failure, such as execve.
fn failure(result: Result<usize, Errno>) -> Errno {
    result.err().unwrap_or(Errno::EIO)
}

/// Closes one descriptor.
pub fn close(fd: RawFd) -> Result<usize, Errno> {
    enter!(__NR_close, fd)
}

/// Closes the descriptors `first..=last` (Linux 5.9).
///
/// Flag 2 (CLOSE_RANGE_UNSHARE) first gives the task a copy of the table, without these descriptors. Flag 4
/// (CLOSE_RANGE_CLOEXEC, Linux 5.11) sets close-on-exec instead of closing.
pub fn close_range(killed_calls: CallSet, first: u32, last: u32, flags: u32) -> Result<usize, Errno> {
    killed_calls.refuse(Call::CloseRange)?;
    enter!(__NR_close_range, first, last, flags)
}

/// `CLOSE_RANGE_UNSHARE` of close_range(2).
pub const CLOSE_RANGE_UNSHARE: u32 = 2;

/// Makes `to` a copy of `from`. `to` and `from` must differ. `flags` is 0 or O_CLOEXEC.
pub fn dup3(from: RawFd, to: RawFd, flags: u32) -> Result<usize, Errno> {
    enter!(__NR_dup3, from, to, flags)
}

/// Changes the working directory.
pub fn fchdir(directory: RawFd) -> Result<usize, Errno> {
    enter!(__NR_fchdir, directory)
}

/// Duplicates a descriptor to the lowest free number that is at least `least`, close-on-exec.
pub fn dup_above(fd: RawFd, least: RawFd) -> Result<RawFd, Errno> {
    enter!(__NR_fcntl, fd, abi::F_DUPFD_CLOEXEC, least).map(|fd| fd as RawFd)
}

/// Gives the calling task a descriptor table of its own.
#[doc(alias = "unshare")]
pub fn unshare_descriptors() -> Result<usize, Errno> {
    enter!(__NR_unshare, abi::CLONE_FILES)
}

/// Sets a descriptor's flags (FD_CLOEXEC or none).
pub fn set_descriptor_flags(fd: RawFd, flags: u32) -> Result<usize, Errno> {
    enter!(__NR_fcntl, fd, abi::F_SETFD, flags)
}

/// A descriptor's access mode and status flags.
pub fn status_flags(fd: RawFd) -> Result<i32, Errno> {
    enter!(__NR_fcntl, fd, abi::F_GETFL).map(|flags| flags as i32)
}

/// The file offset of a descriptor.
#[doc(alias = "lseek")]
pub fn position(fd: RawFd) -> Result<u64, Errno> {
    enter!(__NR_lseek, fd, 0usize, abi::SEEK_CUR).map(|position| position as u64)
}

/// Whether two descriptors refer to one open file description.
///
/// Uses F_DUPFD_QUERY (Linux 6.10). Older kernels use kcmp(2).
///
/// # Errors
/// The errno of kcmp, on an older kernel whose filter blocks kcmp. EBADF.
pub fn is_same_file(killed_calls: CallSet, one: RawFd, other: RawFd) -> Result<bool, Errno> {
    const KCMP_FILE: u32 = 0;
    match enter!(__NR_fcntl, one, abi::F_DUPFD_QUERY, other) {
        Err(Errno::EINVAL | Errno::EPERM | Errno::ENOSYS) => {
            killed_calls.refuse(Call::Kcmp)?;
            let own = getpid()?;
            enter!(__NR_kcmp, own, own, KCMP_FILE, one, other).map(|order| order == 0)
        }
        answer => answer.map(|same| same == 1),
    }
}

/// Returns device and inode number of the file that a descriptor refers to.
pub fn identify(fd: RawFd) -> Result<(u64, u64), Errno> {
    fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns device and inode number of a descriptor's file, and its number of links.
pub fn identify_and_count_links(fd: RawFd) -> Result<((u64, u64), u64), Errno> {
    // `st_nlink` has 32 bits on aarch64.
    #[allow(clippy::unnecessary_cast)]
    fstat(fd).map(|stat| ((stat.st_dev, stat.st_ino), stat.st_nlink as u64))
}

/// The size in bytes of the file that a descriptor refers to.
pub fn size(fd: RawFd) -> Result<u64, Errno> {
    fstat(fd).map(|stat| stat.st_size as u64)
}

fn fstat(fd: RawFd) -> Result<abi::stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<abi::stat>::uninit();
    enter!(__NR_fstat, fd, stat.as_mut_ptr())?;
    // SAFETY: the call succeeded and has filled it.
    Ok(unsafe { stat.assume_init() })
}

/// Opens a file below `dir` (AT_FDCWD: the working directory) as openat2 does. Linux 5.6.
pub fn openat2(killed_calls: CallSet, dir: RawFd, path: &CStr, how: &abi::open_how) -> Result<RawFd, Errno> {
    killed_calls.refuse(Call::Openat2)?;
    enter!(__NR_openat2, dir, path, core::ptr::from_ref(how), size_of::<abi::open_how>()).map(|fd| fd as RawFd)
}

/// Opens a file below `dir`.
pub fn openat(dir: RawFd, path: &CStr, flags: u32, mode: u32) -> Result<RawFd, Errno> {
    enter!(__NR_openat, dir, path, flags, mode).map(|fd| fd as RawFd)
}

/// Writes bytes, and returns the number of bytes that the kernel has written.
pub fn write(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    enter!(__NR_write, fd, bytes.as_ptr(), bytes.len())
}

/// Reads directory entries into `buffer`; returns the number of bytes, 0 at the end.
pub fn getdents(fd: RawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    enter!(__NR_getdents64, fd, buffer.as_mut_ptr(), buffer.len())
}

/// The attributes of the file that `path` names, following symbolic links. An empty path names `dir` itself.
pub fn statx(killed_calls: CallSet, dir: RawFd, path: &CStr) -> Result<abi::statx, Errno> {
    killed_calls.refuse(Call::Statx)?;
    let mut stat = core::mem::MaybeUninit::<abi::statx>::zeroed();
    let flags = if path.is_empty() { abi::AT_EMPTY_PATH } else { 0 };
    enter!(__NR_statx, dir, path, flags, abi::STATX_BASIC_STATS, stat.as_mut_ptr())?;
    // SAFETY: all-zero is a valid value, and the kernel has written the rest.
    Ok(unsafe { stat.assume_init() })
}

/// The attributes of a file as in `statx`, by newfstatat, for kernels before statx (Linux 4.11).
pub fn stat(dir: RawFd, path: &CStr) -> Result<abi::stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<abi::stat>::uninit();
    let flags = if path.is_empty() { abi::AT_EMPTY_PATH } else { 0 };
    enter!(__NR_newfstatat, dir, path, stat.as_mut_ptr(), flags)?;
    // SAFETY: the call succeeded and has filled it.
    Ok(unsafe { stat.assume_init() })
}

/// Checks that the effective ids may execute (or search) `path`.
///
/// Uses faccessat2 (Linux 5.8). If the call is missing or blocked, checks the real ids instead.
pub fn may_execute(killed_calls: CallSet, path: &CStr) -> Result<usize, Errno> {
    may_access(killed_calls, path, abi::X_OK)
}

/// Checks that the effective ids may write to `path`, with the same fallback as `may_execute`.
pub fn may_write(killed_calls: CallSet, path: &CStr) -> Result<usize, Errno> {
    may_access(killed_calls, path, abi::W_OK)
}

fn may_access(killed_calls: CallSet, path: &CStr, mode: u32) -> Result<usize, Errno> {
    let permitted = killed_calls.refuse(Call::Faccessat2);
    match permitted.and_then(|()| enter!(__NR_faccessat2, abi::AT_FDCWD, path, mode, abi::AT_EACCESS)) {
        Err(Errno::ENOSYS | Errno::EPERM) => enter!(__NR_faccessat, abi::AT_FDCWD, path, mode),
        answer => answer,
    }
}

/// The caller's process group.
pub fn getpgid() -> Result<i32, Errno> {
    enter!(__NR_getpgid, 0u32).map(|group| group as i32)
}

/// The process id of the caller's parent. It is 0 if the parent is in another pid namespace.
pub fn getppid() -> Result<i32, Errno> {
    enter!(__NR_getppid).map(|pid| pid as i32)
}

/// The caller's own process id.
pub fn getpid() -> Result<i32, Errno> {
    enter!(__NR_getpid).map(|pid| pid as i32)
}

/// Makes `group` the foreground process group of a terminal.
pub fn tcsetpgrp(terminal: RawFd, group: i32) -> Result<usize, Errno> {
    enter!(__NR_ioctl, terminal, linux_raw_sys::ioctl::TIOCSPGRP, &raw const group)
}

/// A resource limit of the caller.
pub fn limit(resource: u32) -> Result<abi::rlimit64, Errno> {
    let mut limit = abi::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    enter!(__NR_prlimit64, 0u32, resource, core::ptr::null::<u8>(), &raw mut limit)?;
    Ok(limit)
}

/// The kernel's release. The bytes after its NUL are unspecified.
#[doc(alias = "uname")]
pub fn release() -> Result<[u8; 65], Errno> {
    // struct new_utsname: six strings of 65 bytes each; the third is the release.
    let mut names = [[0u8; 65]; 6];
    enter!(__NR_uname, names.as_mut_ptr())?;
    Ok(names[2])
}

/// Sets a resource limit of the caller.
pub fn set_limit(resource: u32, limit: &abi::rlimit64) -> Result<usize, Errno> {
    enter!(__NR_prlimit64, 0u32, resource, core::ptr::from_ref(limit), core::ptr::null::<u8>())
}

/// Sets the capability sets of the calling task: bit n for capability n.
pub fn set_capabilities(effective: u64, permitted: u64, inheritable: u64) -> Result<usize, Errno> {
    #[repr(C)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = abi::__user_cap_header_struct { version: abi::_LINUX_CAPABILITY_VERSION_3, pid: 0 };
    let half = |shift: u32| Data {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    enter!(__NR_capset, &raw const header, data.as_ptr())
}

/// Calls prctl with up to two arguments, for options that take only numbers.
pub fn prctl(option: u32, second: usize, third: usize) -> Result<usize, Errno> {
    enter!(__NR_prctl, option, second, third, 0usize, 0usize)
}

/// The calling task's seccomp mode: 0 without a filter, 2 with a filter. The call takes 0.1 us. On a
/// kernel without seccomp the result is also 0.
#[doc(alias = "PR_GET_SECCOMP")]
pub fn seccomp_mode() -> usize {
    prctl(linux_raw_sys::prctl::PR_GET_SECCOMP, 0, 0).unwrap_or(0)
}

/// Disables core dumps of the calling process, which must have memory of its own.
///
/// The kernel keeps the dumpable flag (PR_SET_DUMPABLE) with the memory.
#[doc(alias = "PR_SET_DUMPABLE")]
pub fn leave_no_core() -> Result<usize, Errno> {
    prctl(linux_raw_sys::prctl::PR_SET_DUMPABLE, 0, 0)
}

/// Returns a random number other than 0.
#[doc(alias = "getrandom")]
pub fn random() -> Result<u64, Errno> {
    let mut number = 0u64;
    while number == 0 {
        // The kernel fills up to 256 bytes without interruption.
        enter!(__NR_getrandom, &raw mut number, size_of::<u64>(), 0u32)?;
    }
    Ok(number)
}

/// Waits until another process or the kernel wakes the word, at most for this time. Returns at once if the word no longer
/// has `value`.
///
/// # References
/// futex(2), FUTEX_WAIT. The kernel wakes the word of CLONE_CHILD_CLEARTID. Processes may share the word.
#[doc(alias = "futex")]
pub fn futex_wait(word: &AtomicU32, value: u32, nanoseconds: i64) {
    let timeout = abi::__kernel_timespec { tv_sec: 0, tv_nsec: nanoseconds };
    let answer: Result<usize, Errno> =
        enter!(__NR_futex, word.as_ptr(), abi::FUTEX_WAIT, value, &raw const timeout, core::ptr::null::<u8>(), 0u32);
    // EAGAIN, EINTR and ETIMEDOUT: the caller reads the word again.
    let _ = answer;
}

/// Wakes all threads, in any process, that wait for the word.
#[doc(alias = "futex")]
pub fn futex_wake(word: &AtomicU32) {
    let (timeout, other) = (core::ptr::null::<u8>(), core::ptr::null::<u8>());
    let answer: Result<usize, Errno> =
        enter!(__NR_futex, word.as_ptr(), abi::FUTEX_WAKE, i32::MAX as u32, timeout, other, 0u32);
    // The call fails only for an invalid address.
    let _ = answer;
}

/// Sends a signal to a process, or for a negative `pid` to a process group.
pub fn kill(pid: i32, signal: u32) -> Result<usize, Errno> {
    enter!(__NR_kill, pid, signal)
}

/// Sends a signal to the process behind a pidfd. Linux 5.1.
pub fn pidfd_send_signal(killed_calls: CallSet, pidfd: RawFd, signal: i32) -> Result<usize, Errno> {
    killed_calls.refuse(Call::PidfdSendSignal)?;
    enter!(__NR_pidfd_send_signal, pidfd, signal, core::ptr::null::<u8>(), 0u32)
}

/// A pidfd of one thread (PIDFD_THREAD), close-on-exec. Linux 6.9.
pub fn pidfd_open_thread(killed_calls: CallSet, thread: i32) -> Result<RawFd, Errno> {
    killed_calls.refuse(Call::PidfdOpen)?;
    enter!(__NR_pidfd_open, thread, abi::O_EXCL).map(|fd| fd as RawFd)
}

/// Copies descriptor `fd` of the task behind a pidfd, close-on-exec. Linux 5.6. Requires the right to ptrace the
/// task.
pub fn pidfd_getfd(killed_calls: CallSet, pidfd: RawFd, fd: RawFd) -> Result<RawFd, Errno> {
    killed_calls.refuse(Call::PidfdGetfd)?;
    enter!(__NR_pidfd_getfd, pidfd, fd, 0u32).map(|fd| fd as RawFd)
}

/// The calling thread's id.
pub fn gettid() -> Result<i32, Errno> {
    enter!(__NR_gettid).map(|tid| tid as i32)
}

/// Moves the calling task into the namespaces that a descriptor refers to.
pub fn setns(fd: RawFd, kinds: u32) -> Result<usize, Errno> {
    enter!(__NR_setns, fd, kinds)
}

/// One instruction of classic BPF (`struct sock_filter`); a seccomp filter is a list of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FilterInstruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

impl FilterInstruction {
    /// Decodes an instruction from its 8 bytes, in native byte order.
    pub fn from_bytes(&[c0, c1, jt, jf, k0, k1, k2, k3]: &[u8; 8]) -> FilterInstruction {
        FilterInstruction { code: u16::from_ne_bytes([c0, c1]), jt, jf, k: u32::from_ne_bytes([k0, k1, k2, k3]) }
    }
}

/// Sets a seccomp filter for the calling task. The kernel validates the program.
pub fn set_seccomp_filter(program: &[FilterInstruction]) -> Result<usize, Errno> {
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const FilterInstruction,
    }
    let Ok(length) = u16::try_from(program.len()) else {
        return Err(Errno::EINVAL);
    };
    let program = Program { length, filter: program.as_ptr() };
    // SECCOMP_SET_MODE_FILTER is 1.
    enter!(__NR_seccomp, 1u32, 0u32, &raw const program)
}

/// All signals except those that libc uses internally. A thread that the library starts in the host
/// blocks this set.
///
/// setuid(3) sends such a signal to every thread and waits until each has handled it. glibc reserves 32 and 33, musl
/// also 34.
pub const SIGNALS_OF_THE_HOST: SignalSet = !(if cfg!(target_env = "musl") { 7 << 31 } else { 3 << 31 });

/// Waits until a descriptor is ready or the timeout (seconds, nanoseconds) ends. Returns the number of ready
/// descriptors.
///
/// # Errors
/// EINTR: a signal handler has run. EINVAL, ENOMEM: see poll(2).
#[doc(alias = "ppoll")]
pub fn poll(fds: &mut [abi::pollfd], timeout: Option<(i64, i64)>) -> Result<usize, Errno> {
    // Copy the timeout, because the kernel writes the remaining time to it.
    let mut timeout = timeout.map(|(tv_sec, tv_nsec)| abi::__kernel_timespec { tv_sec, tv_nsec });
    let timeout = timeout.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
    let mask: *const SignalSet = core::ptr::null();
    enter!(__NR_ppoll, fds.as_mut_ptr(), fds.len(), timeout, mask, size_of::<SignalSet>())
}

/// Changes the calling task's signal mask, unless `set` is `None`. Returns the previous mask.
fn change_signal_mask(how: u32, set: Option<&SignalSet>) -> Result<SignalSet, Errno> {
    let mut old: SignalSet = 0;
    let set = set.map_or(core::ptr::null(), core::ptr::from_ref);
    enter!(__NR_rt_sigprocmask, how, set, &raw mut old, size_of::<SignalSet>())?;
    Ok(old)
}

/// Replaces the calling task's signal mask, and returns the previous mask.
pub fn set_signal_mask(mask: SignalSet) -> Result<SignalSet, Errno> {
    change_signal_mask(abi::SIG_SETMASK, Some(&mask))
}

/// Adds signals to the calling task's mask, and returns the previous mask.
pub fn block_signals(signals: SignalSet) -> Result<SignalSet, Errno> {
    change_signal_mask(abi::SIG_BLOCK, Some(&signals))
}

/// The calling task's signal mask.
pub fn signal_mask() -> SignalSet {
    change_signal_mask(abi::SIG_SETMASK, None).unwrap_or(0)
}

/// Signals that have been sent to the calling task and are blocked.
pub fn pending_signals() -> Result<SignalSet, Errno> {
    let mut pending: SignalSet = 0;
    enter!(__NR_rt_sigpending, &raw mut pending, size_of::<SignalSet>())?;
    Ok(pending)
}

/// Writes bytes, [without a signal](without_signal).
pub fn write_without_signal(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    without_signal(|| write(fd, bytes))
}

/// Makes a system call, and discards the SIGPIPE or SIGXFSZ that the kernel sends with EPIPE or EFBIG.
///
/// EPIPE means a pipe without readers, EFBIG a file beyond RLIMIT_FSIZE. By default the signals would kill the host.
/// The function does not discard a signal that was pending before, or a signal sent to the process. The kernel sends
/// its signal to the calling thread, and sigtimedwait takes the thread's signals before the process's signals.
pub fn without_signal<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    const SIGPIPE: SignalSet = 1 << (abi::SIGPIPE - 1);
    const SIGXFSZ: SignalSet = 1 << (abi::SIGXFSZ - 1);
    let mask = block_signals(SIGPIPE | SIGXFSZ)?;
    // A signal that was not blocked before cannot have been pending, so skip the system call.
    let pending = if mask & (SIGPIPE | SIGXFSZ) == 0 { 0 } else { pending_signals().unwrap_or(0) };
    let outcome = call();
    let sent = match outcome {
        Err(Errno::EPIPE) => SIGPIPE,
        Err(Errno::EFBIG) => SIGXFSZ,
        _ => 0,
    };
    let set = sent & !pending;
    if set != 0 {
        let now = [0u64; 2];
        let _ =
            enter!(__NR_rt_sigtimedwait, &raw const set, core::ptr::null::<u8>(), now.as_ptr(), size_of::<SignalSet>());
    }
    set_signal_mask(mask)?;
    outcome
}

/// Whether `signal` has a handler in the calling task's table of handlers.
pub fn has_handler(signal: u32) -> Result<bool, Errno> {
    handler(signal).map(|handler| handler > SIG_IGN)
}

/// Whether the calling task ignores `signal`.
pub fn is_ignored(signal: u32) -> bool {
    handler(signal) == Ok(SIG_IGN)
}

const SIG_IGN: usize = 1;

/// The handler of a signal: an address, `SIG_IGN`, or 0 for the default disposition.
fn handler(signal: u32) -> Result<usize, Errno> {
    let mut old = core::mem::MaybeUninit::<[usize; 4]>::zeroed();
    enter!(__NR_rt_sigaction, signal, core::ptr::null::<u8>(), old.as_mut_ptr(), size_of::<SignalSet>())?;
    // SAFETY: all-zero is a valid value, and struct sigaction is no larger.
    Ok(unsafe { old.assume_init() }[0])
}

/// Sets a signal to its default disposition in the calling task's table of handlers.
pub fn make_default(signal: u32) -> Result<usize, Errno> {
    let new = [0usize; 4];
    enter!(__NR_rt_sigaction, signal, new.as_ptr(), core::ptr::null::<u8>(), size_of::<SignalSet>())
}

/// Executes a program. Returns only on failure.
///
/// # Safety
/// `argv` and `envp` must be NULL-terminated arrays of C strings.
pub unsafe fn execve(path: &CStr, argv: *const *const c_char, envp: *const *const c_char) -> Errno {
    failure(enter!(__NR_execve, path, argv, envp))
}

/// Executes the program in an open file. Returns only on failure.
///
/// # Safety
/// The requirements of [`execve`].
pub unsafe fn execve_descriptor(
    killed_calls: CallSet,
    fd: RawFd,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> Errno {
    let permitted = killed_calls.refuse(Call::Execveat);
    failure(permitted.and_then(|()| enter!(__NR_execveat, fd, c"", argv, envp, abi::AT_EMPTY_PATH)))
}

/// Ends the calling process.
pub fn exit(status: i32) -> ! {
    loop {
        let _ = enter!(__NR_exit_group, status);
    }
}

/// The real, effective and saved ids: first the user ids, then the group ids.
pub fn ids() -> [u32; 6] {
    let mut ids = [0u32; 6];
    let at = ids.as_mut_ptr();
    let _ = enter!(__NR_getresuid, at, at.wrapping_add(1), at.wrapping_add(2));
    let _ = enter!(__NR_getresgid, at.wrapping_add(3), at.wrapping_add(4), at.wrapping_add(5));
    ids
}

/// The file system ids: first the user id, then the group id.
#[doc(alias("setfsuid", "setfsgid"))]
pub fn file_ids(killed_calls: CallSet) -> [u32; 2] {
    // An invalid id changes nothing, and the calls return the current id.
    let unchanged = |answer: Result<usize, Errno>| answer.map_or(u32::MAX, |id| id as u32);
    let permitted = killed_calls.refuse(Call::FileIds);
    [
        unchanged(permitted.and_then(|()| enter!(__NR_setfsuid, u32::MAX))),
        unchanged(permitted.and_then(|()| enter!(__NR_setfsgid, u32::MAX))),
    ]
}

/// Writes the supplementary groups to the start of `buffer`; returns their number.
pub fn groups(buffer: &mut [u32]) -> Result<usize, Errno> {
    enter!(__NR_getgroups, buffer.len(), buffer.as_mut_ptr())
}

/// Effective, permitted and inheritable capabilities of the calling task.
pub fn capabilities() -> Result<[u64; 3], Errno> {
    let header = abi::__user_cap_header_struct { version: abi::_LINUX_CAPABILITY_VERSION_3, pid: 0 };
    let mut data = [[0u32; 3]; 2];
    enter!(__NR_capget, &raw const header, data.as_mut_ptr())?;
    Ok(core::array::from_fn(|set| u64::from(data[0][set]) | u64::from(data[1][set]) << 32))
}
