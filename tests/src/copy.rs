// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks of the test process, as in a host program that calls fork(2).

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Forks; the child runs `body` and exits with 0, or 1 if `body` panics. Returns the child's pid.
pub fn fork(body: impl FnOnce()) -> i32 {
    // SAFETY: the child has only the calling thread. Either no other thread holds a lock at the fork, or the library
    // promises that a fork is safe at that moment. The child ends by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: _exit ends the child without running this process's destructors.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    pid
}

/// Waits for a child of [`fork`], and fails if the child's body has panicked.
pub fn wait_for(copy: i32) {
    let mut status = 0;
    // SAFETY: waitpid stores an int, and the child belongs to this test.
    while unsafe { libc::waitpid(copy, &raw mut status, 0) } != copy {}
    assert_eq!(status, 0, "the forked child failed");
}
