// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a child tells what became of it: one word, packed.

use spawnfd_sys::Errno;

/// Where a child that did not become the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Getting a descriptor table of its own, or the sources into it.
    Descriptors,
    /// Step with this index.
    Action(u16),
    /// Resetting signals.
    Signals,
    /// The check with this place in the list: errno ESTALE, or why it could not be made.
    Check(u16),
    /// The seccomp filter.
    Filter,
    /// execve itself.
    Exec,
}

/// A stage and the errno that ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Where.
    pub stage: Stage,
    /// Why.
    pub errno: Errno,
}

/// The word before the child has come as far as exec.
pub(crate) const PENDING: u64 = 1 << 63;
/// The word while exec is under way, and after it has succeeded.
pub(crate) const EXEC: u64 = 0;

impl Failure {
    pub(crate) fn pack(self) -> u64 {
        let (stage, index) = match self.stage {
            Stage::Descriptors => (1, 0),
            Stage::Action(index) => (2, index),
            Stage::Signals => (3, 0),
            Stage::Check(index) => (4, index),
            Stage::Filter => (5, 0),
            Stage::Exec => (6, 0),
        };
        stage << 48 | u64::from(index) << 32 | self.errno.raw() as u64
    }

    pub(crate) fn unpack(word: u64) -> Failure {
        let index = (word >> 32) as u16;
        let stage = match word >> 48 {
            1 => Stage::Descriptors,
            2 => Stage::Action(index),
            3 => Stage::Signals,
            4 => Stage::Check(index),
            5 => Stage::Filter,
            _ => Stage::Exec,
        };
        Failure { stage, errno: Errno::from_raw(word as u32 as i32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_without_loss_and_never_as_success() {
        let stages = [
            Stage::Descriptors,
            Stage::Action(0),
            Stage::Action(u16::MAX),
            Stage::Signals,
            Stage::Check(7),
            Stage::Filter,
            Stage::Exec,
        ];
        for stage in stages {
            for errno in [Errno::EPERM, Errno::ESTALE, Errno::from_raw(4095)] {
                let failure = Failure { stage, errno };
                let word = failure.pack();
                assert!(word != EXEC && word != PENDING);
                assert_eq!(Failure::unpack(word), failure);
            }
        }
    }
}
