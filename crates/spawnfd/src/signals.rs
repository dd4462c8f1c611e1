// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of signals.

use std::ops::BitOr;

use crate::error::{Error, Result};

/// Checks the number of a signal to send: 0 (no signal) to 64.
pub(crate) fn check_number(signal: i32) -> Result<()> {
    if (0..=64).contains(&signal) {
        return Ok(());
    }
    let message = format!("a signal must be between 0 and 64, got {signal}");
    Err(Error::invalid(format!("signal({signal})")).saying(message))
}

/// A set of signals, 1 to 64.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::signal::{self, SignalSet};
/// let mut command = Command::new("daemon");
/// command.signal_mask(SignalSet::EMPTY).default_signals(SignalSet::of(signal::HUP).unwrap());
/// ```
#[must_use = "a set has no effect until a command uses it"]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[doc(alias = "sigset_t")]
pub struct SignalSet(pub(crate) u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: SignalSet = SignalSet(0);
    /// Every signal.
    pub const ALL: SignalSet = SignalSet(u64::MAX);

    /// The set with one [signal](crate::signal); `None` for numbers outside 1 to 64.
    pub const fn of(signal: i32) -> Option<SignalSet> {
        if 1 <= signal && signal <= 64 { Some(SignalSet(1 << (signal - 1))) } else { None }
    }

    /// A set from the kernel's representation: bit n-1 for signal n.
    pub const fn from_bits(bits: u64) -> SignalSet {
        SignalSet(bits)
    }

    /// The kernel's representation.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl BitOr for SignalSet {
    type Output = SignalSet;

    fn bitor(self, other: SignalSet) -> SignalSet {
        SignalSet(self.0 | other.0)
    }
}
