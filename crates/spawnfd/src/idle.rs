// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends threads that stay for a while after their last use.

use std::time::{Duration, Instant};

use crate::host::thread;
use crate::host::thread::GOING;
use crate::{job, reaper, tree};

/// The interval at which to check whether the threads are gone.
const LOOK: Duration = Duration::from_micros(20);

/// Ends the library's idle threads, and returns when they are gone.
///
/// The threads that drive runs, and those that wait for the guard of process trees, end by themselves soon after
/// the last run. Call this before operations that a process with threads should not or may not do: fork, and
/// `unshare` or `setns` with a user namespace. Busy threads stay, and the call does not wait for them. The next run
/// starts the threads that it needs.
pub fn end_idle_threads() {
    // If one thread stays, ending the others gains nothing.
    if thread::is_engine() || !job::end_if_idle() {
        return;
    }
    let until = Instant::now() + GOING;
    tree::end_guard_if_idle();
    // The reaper ends only after the guard has ended.
    while (job::is_leaving() || tree::is_guard_leaving() || reaper::is_leaving()) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}
