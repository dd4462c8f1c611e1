// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of the calling process, as a host that forks has them.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Forks; the copy runs `body` and exits with 0, or 1 if it panics. Gives its pid.
pub fn fork(body: impl FnOnce()) -> i32 {
    // SAFETY: the copy has this thread only; it goes on with locks that nobody else held (or, where other threads run, with
    // what the library promises), and leaves by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the copy without running this process's destructors.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    pid
}

/// Waits for a copy, which must not have panicked.
pub fn wait_for(copy: i32) {
    let mut status = 0;
    // SAFETY: stores an int; the child is this test's own.
    while unsafe { libc::waitpid(copy, &raw mut status, 0) } != copy {}
    assert_eq!(status, 0, "the copy failed");
}
