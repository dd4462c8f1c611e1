// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ending what stays for a while after its last use.

use std::time::{Duration, Instant};

use crate::host::thread;
use crate::host::thread::GOING;
use crate::{job, reaper, tree};

/// How often it is looked whether they are gone.
const LOOK: Duration = Duration::from_micros(20);

/// Ends the library's threads that have nothing to do, and returns when they are gone.
///
/// Those that move runs on, and wait for the guard of process trees, end by themselves soon after the last run; this is for what a process
/// with threads should not, or may not, do: fork, `unshare` and `setns` with a user namespace. Those that have something to do stay, and
/// nobody waits for them. The next run has what it needs again.
pub fn end_idle_threads() {
    // Nothing is gained where one stays.
    if thread::is_engine() || !job::end_if_idle() {
        return;
    }
    let until = Instant::now() + GOING;
    tree::end_guard_if_idle();
    // In this order: it is the guard's end that ends the reaper.
    while (job::is_leaving() || tree::is_guard_leaving() || reaper::is_leaving()) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}
