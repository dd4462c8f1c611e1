// SPDX-License-Identifier: MIT OR Apache-2.0
//! CLOCK_MONOTONIC in nanoseconds. Parent and child both read this clock.

use rustix::time::{ClockId, clock_gettime};

/// Reads the clock.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Decodes the `struct timespec` that the first-instruction child writes.
pub fn timespec_ns(raw: [u8; 16]) -> u64 {
    let (sec, nsec) = raw.split_at(8);
    let field = |bytes: &[u8]| i64::from_ne_bytes(bytes.try_into().expect("8 bytes")) as u64;
    field(sec) * 1_000_000_000 + field(nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timespec_is_decoded_from_two_native_words() {
        let mut raw = [0u8; 16];
        raw[..8].copy_from_slice(&3i64.to_ne_bytes());
        raw[8..].copy_from_slice(&7i64.to_ne_bytes());
        assert_eq!(timespec_ns(raw), 3_000_000_007);
    }
}
