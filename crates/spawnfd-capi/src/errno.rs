// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error numbers, and the calling thread's errno.

use core::ffi::c_int;

use spawnfd_sys::Errno;

/// Sets errno.
pub fn set(errno: i32) {
    // SAFETY: the function returns the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Converts an errno of rustix.
pub fn of(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// Returns what a C function returns: a number, or -1 with this errno.
pub fn answer(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        set(errno.raw());
        -1
    })
}
