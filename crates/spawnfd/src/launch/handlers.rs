// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which signals have handlers, where clone3 is not there to clear them: read by a child, remembered for a moment.
//!
//! Asking the kernel for all signals costs 62 system calls, as much as a sixth of a spawn. So a child that finds the reading fresh
//! resets just the signals known to be caught, and goes through all of them if any signal is pending.
//! See docs/adr/0003-handlers-without-clone3.md.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use spawnfd_child::Handlers;

/// How long a reading holds.
const FRESH: Duration = Duration::from_millis(10);

/// The signals found caught by any reading so far.
static CAUGHT: AtomicU64 = AtomicU64::new(0);
/// When, as [`now`] has it; 0 for never.
static READ: AtomicU64 = AtomicU64::new(0);

/// Microseconds of the monotonic clock, and one.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000 + 1
}

/// What is known of the handlers a child is about to be born with, and the moment, for [`learn`].
pub(super) fn at_birth(clone3: bool) -> (Handlers, u64) {
    if clone3 {
        return (Handlers::Cleared, 0);
    }
    let now = now();
    let read = READ.load(Ordering::Acquire);
    let fresh = read != 0 && now.saturating_sub(read) < FRESH.as_micros() as u64;
    (if fresh { Handlers::Known(CAUGHT.load(Ordering::Acquire)) } else { Handlers::Unknown }, now)
}

/// A child that was born at `begun` has read them.
pub(super) fn learn(caught: u64, begun: u64) {
    // What was caught once may be again: handlers that come and go cost a reset, not a gap.
    CAUGHT.fetch_or(caught, Ordering::AcqRel);
    READ.fetch_max(begun, Ordering::Release);
}
