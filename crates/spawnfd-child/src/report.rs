// SPDX-License-Identifier: MIT OR Apache-2.0
//! The word in which a child reports its progress and its failure.

use spawnfd_sys::Errno;

/// The stage in which a child failed or was killed before exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildStage {
    /// The child sets up its descriptor table and the sources in it.
    Descriptors,
    /// The child performs the step with this index.
    Action(u16),
    /// After the steps, the child closes descriptors that the program does not inherit, or sets
    /// close-on-exec on them.
    Closing,
    /// The intermediate process enters the pid namespace, or creates the child in it.
    Namespace,
    /// The intermediate process becomes a subreaper, or creates the child below it.
    Subreaper,
    /// The child resets signals.
    Signals,
    /// The child makes the check with this index. The errno ESTALE means that the check failed.
    /// Another errno means that the child could not make the check.
    Check(u16),
    /// The child installs the seccomp filter.
    Filter,
    /// The child calls execve.
    Exec,
}

/// A stage and the errno that ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The failed stage.
    pub stage: ChildStage,
    /// The errno of the call that failed.
    pub errno: Errno,
}

/// The bit that is set until the child calls exec. The other bits contain the stage, or are 0.
pub const PENDING: u64 = 1 << 63;
/// The value of the report word once the child has called exec.
pub(crate) const EXEC: u64 = 0;
/// The value of the report word once the child has called exec, if a new search found another file
/// than the recorded one.
pub(crate) const EXEC_RENEWED: u64 = 1;

/// The outcome of a child that has left its parent's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The child exec'd.
    Program {
        /// True if the recorded file had changed, and the child executed the file that a new search found.
        renewed: bool,
    },
    /// The child failed and exited.
    Failed(Failure),
    /// A signal killed the child in this stage, before exec.
    Killed(ChildStage),
}

impl Outcome {
    /// Decodes the word of a child that has exec'd or ended.
    pub fn of(word: u64) -> Outcome {
        match word {
            EXEC | EXEC_RENEWED => Outcome::Program { renewed: word == EXEC_RENEWED },
            PENDING => Outcome::Killed(ChildStage::Descriptors),
            word if is_pending(word) => Outcome::Killed(Failure::unpack(word & !PENDING).stage),
            word => Outcome::Failed(Failure::unpack(word)),
        }
    }
}

/// Whether the child has neither called exec nor failed.
pub(crate) fn is_pending(word: u64) -> bool {
    word & PENDING != 0
}

impl ChildStage {
    /// The value of the report word of a child that is about to begin this stage.
    pub(crate) fn progress(self) -> u64 {
        PENDING | self.pack()
    }

    fn pack(self) -> u64 {
        let (stage, index) = match self {
            ChildStage::Descriptors => (1, 0),
            ChildStage::Action(index) => (2, index),
            ChildStage::Signals => (3, 0),
            ChildStage::Check(index) => (4, index),
            ChildStage::Filter => (5, 0),
            ChildStage::Exec => (6, 0),
            ChildStage::Namespace => (7, 0),
            ChildStage::Subreaper => (9, 0),
            ChildStage::Closing => (8, 0),
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
            1 => ChildStage::Descriptors,
            2 => ChildStage::Action(index),
            3 => ChildStage::Signals,
            4 => ChildStage::Check(index),
            5 => ChildStage::Filter,
            7 => ChildStage::Namespace,
            9 => ChildStage::Subreaper,
            8 => ChildStage::Closing,
            _ => ChildStage::Exec,
        };
        Failure { stage, errno: Errno::from_raw(word as u32 as i32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_lossless_and_never_means_success() {
        let stages = [
            ChildStage::Descriptors,
            ChildStage::Action(0),
            ChildStage::Action(u16::MAX),
            ChildStage::Signals,
            ChildStage::Check(7),
            ChildStage::Filter,
            ChildStage::Exec,
            ChildStage::Namespace,
            ChildStage::Subreaper,
            ChildStage::Closing,
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
