// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's errno.

use core::ffi::c_int;

/// Sets errno.
pub fn set(errno: i32) {
    // SAFETY: the function returns the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns what a C function returns: a number, or -1 with this errno.
pub fn answer(result: Result<c_int, i32>) -> c_int {
    result.unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}
