// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the idle helpers of runs: the engine threads, the guards, and the reaper threads that wait for guards.

use std::time::{Duration, Instant};

use super::engine;
use crate::host::thread::{self, EXIT_TIMEOUT};
use crate::{reaper, tree};

/// The interval at which to check whether the helpers have ended.
const CHECK_INTERVAL: Duration = Duration::from_micros(20);

/// Ends the idle helpers, and returns when they have ended. Busy ones stay. An engine thread cannot wait for itself, so
/// there the call does nothing.
pub(crate) fn end_idle_helpers() {
    if thread::is_engine() {
        return;
    }
    let deadline = Instant::now() + EXIT_TIMEOUT;
    engine::end_if_idle();
    tree::end_guard_if_idle();
    // The reaper ends only after the guard has ended.
    while (engine::is_leaving() || tree::is_guard_exiting() || reaper::is_exiting()) && Instant::now() < deadline {
        std::thread::sleep(CHECK_INTERVAL);
    }
    tree::forget_ended_guards();
}
