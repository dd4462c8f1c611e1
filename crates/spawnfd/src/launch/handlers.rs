// SPDX-License-Identifier: MIT OR Apache-2.0
//! The set of signals that have a handler in the host. The library uses it only if clone3, which clears the handlers
//! in a child (CLONE_CLEAR_SIGHAND), is not available. One child reads the handlers, and other children use the
//! result for 10 ms.
//!
//! Reading the handlers of all signals takes 62 system calls, a sixth of a spawn. A child that finds a fresh result
//! resets only the signals with a known handler. If a signal is pending, the child reads all handlers.
//!
//! The cache has a race. It happens if the host installs the first handler for a signal less than 10 ms before a
//! spawn, and the signal reaches the child between the child's last two system calls before exec (0.3 us). The
//! handler then runs once in the child, on the parent's memory. See decision record 0003.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use spawnfd_child::Handlers;

/// The time for which the handlers that a child has read are valid.
const FRESH: Duration = Duration::from_millis(10);

/// All signals for which a child has found a handler.
static CAUGHT: AtomicU64 = AtomicU64::new(0);
/// The time at which a child last read the handlers, as [`now`] returns it. 0 if no child has read them.
static READ: AtomicU64 = AtomicU64::new(0);

/// Microseconds of the monotonic clock, plus one.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000 + 1
}

/// Returns the known handlers for a child that is about to be cloned, and the present time, which the caller
/// later passes to [`learn`].
pub(super) fn before_clone(clone3: bool) -> (Handlers, u64) {
    if clone3 {
        return (Handlers::Cleared, 0);
    }
    let now = now();
    let read = READ.load(Ordering::Acquire);
    let fresh = read != 0 && now.saturating_sub(read) < FRESH.as_micros() as u64;
    (if fresh { Handlers::Known(CAUGHT.load(Ordering::Acquire)) } else { Handlers::Unknown }, now)
}

/// Records the handlers that a child found. `caught` is `None` if the child has not read them.
/// `begun` is the time at which the library cloned the child.
pub(super) fn learn(caught: Option<u64>, begun: u64) {
    let Some(caught) = caught else { return };
    // The host may install a removed handler again, so the signal stays in the set.
    CAUGHT.fetch_or(caught, Ordering::AcqRel);
    READ.fetch_max(begun, Ordering::Release);
}
