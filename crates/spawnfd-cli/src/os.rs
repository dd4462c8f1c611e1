// SPDX-License-Identifier: MIT OR Apache-2.0
//! The unsafe code of this command: inherited descriptors, and system calls that have no suitable safe wrapper.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::net::{SendFlags, send};
use spawnfd::error::Errno;
use spawnfd::internal::call;

/// Borrows a descriptor that this process inherited.
///
/// # Errors
/// EBADF: the descriptor is closed, or this process itself opened it.
pub fn inherited(number: i32) -> Result<BorrowedFd<'static>, Errno> {
    // This process opens all its descriptors with close-on-exec. An inherited descriptor cannot have that flag.
    if was_closed_at_start(number) || call::descriptor_flags(number) != Ok(0) {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor was open when the process began, and this process closes only descriptors that it
    // opened.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Returns the process group of `pid`, or of this process for 0.
///
/// The result is 0 if the group is outside this pid namespace. `rustix::process::Pid` cannot represent 0.
pub fn process_group(pid: i32) -> Option<i32> {
    // SAFETY: the call takes and returns a number, and accesses no memory.
    Some(unsafe { libc::getpgid(pid) }).filter(|group| *group >= 0)
}

/// Returns the session of `pid`, with the same special values as `process_group`.
pub fn session(pid: i32) -> Option<i32> {
    // SAFETY: the call takes and returns a number, and accesses no memory.
    Some(unsafe { libc::getsid(pid) }).filter(|session| *session >= 0)
}

/// The foreground process group of the terminal, if this process is in that group.
pub fn foreground_group() -> Option<i32> {
    let terminal = std::fs::File::open("/dev/tty").ok()?;
    let group = rustix::termios::tcgetpgrp(terminal).ok()?.as_raw_pid();
    process_group(0).filter(|own| *own == group)
}

/// Whether SIGPIPE was ignored when this process began. Rust's runtime changes this: it ignores
/// SIGPIPE before main().
pub fn sigpipe_was_ignored_at_start() -> bool {
    SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed)
}

/// Whether a standard stream was closed when this process began. Rust's runtime opens /dev/null in its place before
/// main().
pub fn was_closed_at_start(stream: i32) -> bool {
    (0..3).contains(&stream) && CLOSED_STREAMS.load(Ordering::Relaxed) >> stream & 1 == 1
}

/// Closes the streams that were closed when this process began, so that the program finds them closed.
///
/// Call it only when this process opens no more descriptors: a new descriptor could get such a number.
pub fn close_streams_closed_at_start() {
    for stream in (0..3).filter(|stream| was_closed_at_start(*stream)) {
        // SAFETY: the number is the runtime's /dev/null, which the runtime does not use again.
        unsafe { libc::close(stream) };
    }
}

/// Makes this process ignore a signal.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN installs no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Restores the default action of a signal.
pub fn make_default(signal: i32) {
    // SAFETY: SIG_DFL installs no handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Bit n is set if descriptor n was closed when this process began.
static CLOSED_STREAMS: AtomicU8 = AtomicU8::new(0);

/// Records the state that Rust's runtime is about to change.
extern "C" fn record_initial_state() {
    SIGPIPE_WAS_IGNORED.store(call::is_ignored(libc::SIGPIPE as u32), Ordering::Relaxed);
    let is_closed = |stream: &i32| call::descriptor_flags(*stream).is_err();
    let closed = (0..3).filter(is_closed).fold(0, |closed, stream| closed | 1 << stream);
    CLOSED_STREAMS.store(closed, Ordering::Relaxed);
}

/// Makes libc call the function before Rust's runtime starts.
// SAFETY: the section contains pointers to functions, and this function does not need the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = record_initial_state;

/// Installs a handler that writes one byte to `socket` each time the signal arrives.
///
/// The byte is 1 if the kernel generated the signal, as for Ctrl-C at the terminal, and 0 if a process sent it.
///
/// # Errors
/// The errors of sigaction(2).
pub fn on_signal(signal: i32, socket: UnixStream) -> io::Result<()> {
    let handler = move |info: &libc::siginfo_t| {
        let _ = send(&socket, &[u8::from(info.si_code == libc::SI_KERNEL)], SendFlags::DONTWAIT);
    };
    // SAFETY: the handler makes one async-signal-safe system call, and does not change errno.
    unsafe { signal_hook_registry::register_sigaction(signal, handler) }.map(drop)
}

/// Returns the kernel's release and the machine's architecture.
pub fn system() -> io::Result<[String; 2]> {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the call fills in NUL-terminated strings, and a zeroed utsname is valid.
    unsafe {
        if libc::uname(names.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let names = names.assume_init();
        let text = |text: &[libc::c_char]| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
        Ok([text(&names.release), text(&names.machine)])
    }
}

/// Returns the soft and hard value of a resource limit; `None` means unlimited.
pub fn limit(resource: u32) -> Result<[Option<u64>; 2], Errno> {
    let limit = call::limit(resource)?;
    Ok([limit.rlim_cur, limit.rlim_max].map(|limit| Some(limit).filter(|limit| *limit != libc::RLIM_INFINITY)))
}

/// A probe of a kernel feature by a system call that changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// clone3 without arguments. The errno is EINVAL if the call exists.
    Clone3,
    /// clone3 into a cgroup with an impossible descriptor. The errno is EBADF if the kernel knows the flag.
    CloneIntoCgroup,
    /// close_range of a range that has no open descriptor, with these flags.
    CloseRange(u32),
    /// faccessat2 of `/`.
    Faccessat2,
    /// madvise of no bytes, with MADV_WIPEONFORK.
    WipeOnFork,
    /// The version of Landlock.
    Landlock,
    /// Whether seccomp filters may return SECCOMP_RET_ERRNO.
    Seccomp,
    /// io_uring_setup without parameters. The errno is EFAULT if the call is permitted.
    IoUring,
}

/// Performs a probe. Returns the call's result, or 0 if the call fails with the errno that proves the feature.
pub fn probe(probe: Probe) -> Result<usize, Errno> {
    const HIGHEST: usize = u32::MAX as usize;
    // struct clone_args (Linux 5.7): flags first, cgroup last.
    let mut request = [0u64; 11];
    request[0] = 0x2_0000_0000;
    request[10] = i32::MAX as u64;
    // The action SECCOMP_RET_ERRNO. The probe asks seccomp(2) whether filters may return it.
    let action: u32 = 0x0005_0000;
    let root = [libc::AT_FDCWD as usize, c"/".as_ptr() as usize, libc::X_OK as usize];
    // The call, and the errno with which a kernel that has the call rejects the arguments.
    let (number, args, rejection) = match probe {
        Probe::Clone3 => (libc::SYS_clone3, [0; 3], Some(Errno::EINVAL)),
        Probe::CloneIntoCgroup => {
            (libc::SYS_clone3, [request.as_ptr() as usize, size_of_val(&request), 0], Some(Errno::EBADF))
        }
        Probe::CloseRange(flags) => (libc::SYS_close_range, [HIGHEST, HIGHEST, flags as usize], None),
        Probe::Faccessat2 => (libc::SYS_faccessat2, root, None),
        Probe::WipeOnFork => (libc::SYS_madvise, [0, 0, libc::MADV_WIPEONFORK as usize], None),
        Probe::Landlock => (libc::SYS_landlock_create_ruleset, [0, 0, 1], None),
        // The operation is SECCOMP_GET_ACTION_AVAIL.
        Probe::Seccomp => (libc::SYS_seccomp, [2, 0, &raw const action as usize], None),
        Probe::IoUring => (libc::SYS_io_uring_setup, [0; 3], Some(Errno::EFAULT)),
    };
    // SAFETY: each call has invalid or empty arguments, so it changes nothing. Pointers are null, or valid until the
    // call returns. An old kernel may fork for CloneIntoCgroup, which is handled below.
    match unsafe { call::make(number as u32, args) } {
        // A kernel that ignores the flag forked this process. The forked copy ends.
        Ok(0) if probe == Probe::CloneIntoCgroup => call::exit(0),
        Ok(_) if probe == Probe::CloneIntoCgroup => Err(Errno::EINVAL),
        Err(errno) if rejection == Some(errno) => Ok(0),
        result => result,
    }
}
