// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C program of baseline/same_calls.c, which makes the library's system calls and does nothing else.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

use super::{Method, Output, Target};

/// The opaque state of the C program.
#[repr(C)]
struct State {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn spawnfd_same_calls_open(program: *const libc::c_char) -> *mut State;
    fn spawnfd_same_calls_close(state: *mut State);
    fn spawnfd_same_calls_start(state: *mut State, out: libc::c_int) -> libc::c_int;
    fn spawnfd_same_calls_finish(state: *mut State) -> libc::c_int;
}

/// Whether the library makes the system calls of the C program on this machine: the kernel has pidfds of threads
/// (Linux 6.9), and no seccomp filter applies.
pub fn is_supported() -> bool {
    const PIDFD_THREAD: libc::c_int = libc::O_EXCL;
    // SAFETY: PR_GET_SECCOMP has no further arguments.
    if unsafe { libc::prctl(libc::PR_GET_SECCOMP) } != 0 {
        return false;
    }
    // SAFETY: pidfd_open takes two integers. A new descriptor is closed here, before other code can use its number.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, libc::gettid(), PIDFD_THREAD);
        fd >= 0 && libc::close(fd as libc::c_int) == 0
    }
}

/// The C program bound to a program that it starts.
struct SameCalls {
    program: CString,
    state: NonNull<State>,
    is_running: bool,
}

// SAFETY: this value owns the state. The state's functions accept calls from any thread, one at a time.
unsafe impl Send for SameCalls {}

pub(super) fn open(target: &Target) -> io::Result<Box<dyn Method>> {
    match target {
        Target::Path(path) => Ok(Box::new(SameCalls::new(CString::new(path.as_os_str().as_bytes())?)?)),
        Target::Name(_) => Err(io::Error::other("same_calls does not search PATH")),
    }
}

impl SameCalls {
    fn new(program: CString) -> io::Result<Self> {
        // SAFETY: `program` is a valid string, which the function copies.
        let state = NonNull::new(unsafe { spawnfd_same_calls_open(program.as_ptr()) });
        let state = state.ok_or_else(io::Error::last_os_error)?;
        Ok(Self { program, state, is_running: false })
    }
}

fn check(result: libc::c_int) -> io::Result<i32> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

impl Method for SameCalls {
    fn start(&mut self, stdout: Output<'_>) -> io::Result<()> {
        let out = match &stdout {
            Output::Owned(fd) => fd.as_raw_fd(),
            Output::Borrowed(fd) => fd.as_raw_fd(),
            Output::Null => return Err(io::Error::other("same_calls needs an open stdout")),
        };
        // SAFETY: the state is valid until drop. Its child runs on a stack of its own and uses this process's memory
        // only until exec, and the function returns after exec.
        check(unsafe { spawnfd_same_calls_start(self.state.as_ptr(), out) })?;
        self.is_running = true;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<i32> {
        self.is_running = false;
        // SAFETY: the state is valid until drop.
        check(unsafe { spawnfd_same_calls_finish(self.state.as_ptr()) })
    }

    fn for_thread(&self) -> io::Result<Box<dyn Method>> {
        Ok(Box::new(Self::new(self.program.clone())?))
    }
}

impl Drop for SameCalls {
    fn drop(&mut self) {
        if self.is_running {
            let _ = self.finish();
        }
        // SAFETY: this value owns the state, and no other code uses it after the drop.
        unsafe { spawnfd_same_calls_close(self.state.as_ptr()) };
    }
}
