// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of the calls.

/// A small deterministic generator (xorshift64*), so that each run has the same order.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeds the generator. Sets the lowest bit, because xorshift never leaves the state 0.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`. The remainder is slightly biased, which does not matter for
    /// the order of calls.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.bits() >> 33) % bound as u64) as usize
    }

    /// Shuffles in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
