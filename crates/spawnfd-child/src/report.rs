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
    /// Closing what the program is not to have, or marking it close-on-exec. Steps have been performed.
    Closing,
    /// Entering the pid namespace, or being born there.
    Namespace,
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

/// The word before the child has come as far as exec; the other bits say how far it has come, or are 0.
pub const PENDING: u64 = 1 << 63;
/// The word while exec is under way, and after it has succeeded.
pub(crate) const EXEC: u64 = 0;
/// The same, of another file than was recorded.
pub(crate) const EXEC_RENEWED: u64 = 1;

/// What became of a child that has left its parent's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It exec'd. `renewed`: what a new search found, as the recorded file was not there any more.
    Program {
        /// The record is out of date.
        renewed: bool,
    },
    /// It exited, for this reason.
    Failed(Failure),
    /// A signal ended it in this stage, before it came to exec.
    Killed(Stage),
}

impl Outcome {
    /// Reads the word that a child has left.
    pub fn of(word: u64) -> Outcome {
        match word {
            EXEC | EXEC_RENEWED => Outcome::Program { renewed: word == EXEC_RENEWED },
            PENDING => Outcome::Killed(Stage::Descriptors),
            word if is_pending(word) => Outcome::Killed(Failure::unpack(word & !PENDING).stage),
            word => Outcome::Failed(Failure::unpack(word)),
        }
    }
}

/// Whether the child has neither come to exec nor failed.
pub(crate) fn is_pending(word: u64) -> bool {
    word & PENDING != 0
}

impl Stage {
    /// The word of a child that is about to begin this stage.
    pub(crate) fn progress(self) -> u64 {
        PENDING | self.pack()
    }

    fn pack(self) -> u64 {
        let (stage, index) = match self {
            Stage::Descriptors => (1, 0),
            Stage::Action(index) => (2, index),
            Stage::Signals => (3, 0),
            Stage::Check(index) => (4, index),
            Stage::Filter => (5, 0),
            Stage::Exec => (6, 0),
            Stage::Namespace => (7, 0),
            Stage::Closing => (8, 0),
        };
        stage << 48 | u64::from(index) << 32
    }
}

impl Failure {
    pub(crate) fn pack(self) -> u64 {
        self.stage.pack() | self.errno.raw() as u64
    }

    fn unpack(word: u64) -> Failure {
        let index = (word >> 32) as u16;
        let stage = match word >> 48 {
            1 => Stage::Descriptors,
            2 => Stage::Action(index),
            3 => Stage::Signals,
            4 => Stage::Check(index),
            5 => Stage::Filter,
            7 => Stage::Namespace,
            8 => Stage::Closing,
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
            Stage::Namespace,
            Stage::Closing,
        ];
        for stage in stages {
            assert_eq!(Outcome::of(stage.progress()), Outcome::Killed(stage));
            for errno in [Errno::EPERM, Errno::ESTALE, Errno::from_raw(4095)] {
                let failure = Failure { stage, errno };
                let word = failure.pack();
                assert_eq!(Outcome::of(word), Outcome::Failed(failure));
            }
        }
    }
}
