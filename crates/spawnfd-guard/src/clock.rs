// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of the host, read without a system call where the kernel has a vDSO.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since boot (CLOCK_BOOTTIME).
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
