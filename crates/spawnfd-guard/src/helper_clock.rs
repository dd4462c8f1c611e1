// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clock of the helper, which has no vDSO.

use crate::syscall::syscall;

#[cfg(target_arch = "x86_64")]
const CLOCK_GETTIME: u32 = 228;
#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: u32 = 113;
const CLOCK_BOOTTIME: usize = 7;

/// Milliseconds since boot (CLOCK_BOOTTIME).
pub fn now() -> u64 {
    let mut time = [0i64; 2];
    // SAFETY: the kernel writes a struct timespec, which has the size of `time`.
    unsafe { syscall(CLOCK_GETTIME, [CLOCK_BOOTTIME, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    time[0] as u64 * 1000 + time[1] as u64 / 1_000_000
}
