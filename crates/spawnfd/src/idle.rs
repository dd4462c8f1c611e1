// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the library's idle threads at once. Without a call, each thread ends some time after its last use.

use crate::host::thread;
use crate::{job, tree};

/// Ends the library's idle threads, and returns when they have exited.
///
/// The library has engine threads, which drive runs and wake tasks, and reaper threads, which wait for the guard (the
/// helper process that ends the process trees of a dead owner). Threads and guard end by themselves soon after the last
/// run. Call this before operations that a process with threads should not or may not do: fork, and `unshare` or `setns`
/// with a user namespace. Busy threads stay, and the call does not wait for them. The next run starts new threads.
pub fn end_idle_threads() {
    // An engine thread, which drives runs, stays if it is busy or calls this. Then the process keeps a thread anyway,
    // so ending the others gains nothing.
    if thread::is_engine() || !job::end_if_idle() {
        return;
    }
    tree::drop_template();
    job::end_idle_helpers();
}
