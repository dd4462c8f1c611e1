// SPDX-License-Identifier: MIT OR Apache-2.0
//! What takes unsafe code: descriptors this process was started with, and questions to the kernel that no safe wrapper asks
//! without an answer of its own.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::net::{SendFlags, send};

/// A descriptor this process was started with.
///
/// # Errors
/// EBADF: it is not open, or one that this process has opened since.
pub fn inherited(number: i32) -> io::Result<BorrowedFd<'static>> {
    let closed = || io::Error::from_raw_os_error(libc::EBADF);
    if number < 0 || began_without(number) {
        return Err(closed());
    }
    // SAFETY: only looked at, by a call that answers EBADF if it is not open.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    // What this process opens is close-on-exec, and nothing it was started with can be.
    if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
        return Err(closed());
    }
    // SAFETY: it was open when the process began, and nothing in this process closes a number it has not opened.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// The process group of `pid`, 0 for the calling process; the group is 0 if it began outside this pid namespace, which
/// `rustix::process::Pid` could not hold.
pub fn process_group(pid: i32) -> Option<i32> {
    // SAFETY: a number goes in, a number comes out.
    Some(unsafe { libc::getpgid(pid) }).filter(|group| *group >= 0)
}

/// The session of `pid`, likewise.
pub fn session(pid: i32) -> Option<i32> {
    // SAFETY: a number goes in, a number comes out.
    Some(unsafe { libc::getsid(pid) }).filter(|session| *session >= 0)
}

/// Whether SIGPIPE was ignored when this process began. Rust's runtime ignores it before main().
pub fn began_without_sigpipe() -> bool {
    BEGAN_WITHOUT_SIGPIPE.load(Ordering::Relaxed)
}

/// Whether a standard stream was closed when this process began. Rust's runtime puts /dev/null there before main().
pub fn began_without(stream: i32) -> bool {
    (0..3).contains(&stream) && BEGAN_WITHOUT.load(Ordering::Relaxed) >> stream & 1 == 1
}

/// Closes the streams that were, for the program to find them so: once nothing is opened any more that could come to stand there.
pub fn close_as_it_began() {
    for stream in (0..3).filter(|stream| began_without(*stream)) {
        // SAFETY: /dev/null, which the runtime has opened and never looks at again.
        unsafe { libc::close(stream) };
    }
}

/// Whether a signal is ignored.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks, and changes nothing; zeroed is a valid value.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Has a signal do nothing.
pub fn ignore(signal: i32) {
    // SAFETY: no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Has a signal do by itself what it does by default.
pub fn make_default(signal: i32) {
    // SAFETY: no handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

static BEGAN_WITHOUT_SIGPIPE: AtomicBool = AtomicBool::new(false);
static BEGAN_WITHOUT: AtomicU8 = AtomicU8::new(0);

extern "C" fn look_at_what_is_given() {
    BEGAN_WITHOUT_SIGPIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    // SAFETY: asks, and changes nothing.
    let is_closed = |stream: &i32| unsafe { libc::fcntl(*stream, libc::F_GETFD) } < 0;
    let closed = (0..3).filter(is_closed).fold(0, |closed, stream| closed | 1 << stream);
    BEGAN_WITHOUT.store(closed, Ordering::Relaxed);
}

/// Called by libc before the runtime begins.
// SAFETY: the section holds pointers to functions; this one needs nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_THE_RUNTIME: extern "C" fn() = look_at_what_is_given;

/// Has a byte sent into `socket` for each such signal: 1 if it comes from the kernel, as the terminal's do, 0 if somebody has sent it.
///
/// # Errors
/// As sigaction(2).
pub fn on_signal(signal: i32, socket: UnixStream) -> io::Result<()> {
    let tell = move |info: &libc::siginfo_t| {
        let _ = send(&socket, &[u8::from(info.si_code == libc::SI_KERNEL)], SendFlags::DONTWAIT);
    };
    // SAFETY: a handler may make system calls; this one does not change errno.
    unsafe { signal_hook_registry::register_sigaction(signal, tell) }.map(drop)
}

/// The kernel's release, and the machine's architecture.
pub fn system() -> io::Result<[String; 2]> {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the call fills in texts, each with its end; zeroed is a valid value.
    unsafe {
        if libc::uname(names.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let names = names.assume_init();
        let text = |text: &[libc::c_char]| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
        Ok([text(&names.release), text(&names.machine)])
    }
}

/// A limit of this process, soft and hard; none is unlimited.
pub fn limit(resource: u32) -> io::Result<[Option<u64>; 2]> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills in the structure.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok([limit.rlim_cur, limit.rlim_max].map(|limit| Some(limit).filter(|limit| *limit != libc::RLIM_INFINITY)))
}

/// A question to the kernel that changes nothing, whatever the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// clone3 with no arguments at all: EINVAL where it exists.
    Clone3,
    /// clone3 into a cgroup given by a descriptor that cannot be: EBADF where the flag is known.
    CloneIntoCgroup,
    /// close_range of nothing, with these flags.
    CloseRange(u32),
    /// faccessat2 of `/`.
    Faccessat2,
    /// madvise of no bytes, MADV_WIPEONFORK.
    WipeOnFork,
    /// The version of Landlock.
    Landlock,
    /// Whether seccomp filters may return SECCOMP_RET_ERRNO.
    Seccomp,
    /// io_uring_setup without parameters: EFAULT where it may be used.
    IoUring,
}

/// Asks. The number is the call's result; for those that describe an error as the sign of being there, that error.
pub fn ask(question: Question) -> io::Result<i64> {
    let root = c"/".as_ptr();
    // struct clone_args (Linux 5.7): flags first, cgroup last.
    let mut request = [0u64; 11];
    request[0] = 0x2_0000_0000;
    request[10] = i32::MAX as u64;
    // SECCOMP_RET_ERRNO
    let action: u32 = 0x0005_0000;
    // SAFETY: no call here starts, opens or changes anything: each has arguments that make it end at its checks, or that
    // name nothing. Pointers are null or to what lives until the call returns.
    let result = unsafe {
        match question {
            Question::Clone3 => libc::syscall(libc::SYS_clone3, 0usize, 0usize),
            Question::CloneIntoCgroup => libc::syscall(libc::SYS_clone3, request.as_ptr(), size_of_val(&request)),
            Question::CloseRange(flags) => libc::syscall(libc::SYS_close_range, u32::MAX, u32::MAX, flags),
            Question::Faccessat2 => {
                libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, root, libc::X_OK, libc::AT_EACCESS)
            }
            Question::WipeOnFork => libc::syscall(libc::SYS_madvise, 0usize, 0usize, libc::MADV_WIPEONFORK),
            Question::Landlock => libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0usize, 1u32),
            // SECCOMP_GET_ACTION_AVAIL
            Question::Seccomp => libc::syscall(libc::SYS_seccomp, 2u32, 0u32, &raw const action),
            Question::IoUring => libc::syscall(libc::SYS_io_uring_setup, 0u32, 0usize),
        }
    };
    let sign = match question {
        Question::Clone3 => libc::EINVAL,
        Question::CloneIntoCgroup => libc::EBADF,
        Question::IoUring => libc::EFAULT,
        _ => 0,
    };
    if question == Question::CloneIntoCgroup && result >= 0 {
        // A kernel that takes the flag for nothing has made a copy of this process.
        if result == 0 {
            // SAFETY: ends the copy, which has done nothing, at once.
            unsafe { libc::_exit(0) };
        }
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    if result >= 0 {
        return Ok(result);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(sign) { Ok(0) } else { Err(error) }
}

/// The wait status of a process that has been reaped, which its pidfd keeps from Linux 6.15 on (PIDFD_GET_INFO, PIDFD_INFO_EXIT).
pub fn status_of_reaped(pidfd: impl AsFd) -> io::Result<i32> {
    // struct pidfd_info of Linux 6.15, 64 bytes: mask, cgroup id, pid, …, exit code.
    let mut info = [0u32; 16];
    const PIDFD_INFO_EXIT: u32 = 1 << 3;
    info[0] = PIDFD_INFO_EXIT;
    // _IOWR(0xFF, 11, struct pidfd_info)
    const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;
    // SAFETY: the request writes at most the 64 bytes its number states.
    let result = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_INFO, info.as_mut_ptr()) };
    match result {
        0.. if info[0] & PIDFD_INFO_EXIT != 0 => Ok(info[15] as i32),
        0.. => Err(io::Error::from_raw_os_error(libc::ENOTTY)),
        _ => Err(io::Error::last_os_error()),
    }
}
