// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stages in which an operation can fail.

/// The stage in which an operation failed.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::error::Stage;
/// let error = Command::new("true").current_dir("/nonexistent").run().unwrap_err();
/// assert_eq!(error.stage(), Stage::CurrentDir);
/// assert_eq!(error.stage().name(), "cwd");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// The library rejected an argument before it did anything.
    Validate,
    /// The library finds, opens or reads the executable.
    Template,
    /// The caller or the child compares the executable with the file that the template recorded.
    Revalidate,
    /// The caller compares its credentials with those of the template's creator.
    Credentials,
    /// The caller creates the child.
    Clone,
    /// The child gets a descriptor table of its own.
    Descriptors,
    /// The child connects standard input, output or error (0, 1, 2).
    Stdio(u8),
    /// The child changes to the working directory.
    CurrentDir,
    /// The child performs the caller's action with this index, counted from 0.
    Action(usize),
    /// The child resets signals, or requests the parent-death signal.
    Signals,
    /// The child installs the seccomp filter.
    Filter,
    /// The child calls execve.
    Exec,
    /// A signal killed the child before exec. Actions may have run.
    ///
    /// The errno is ECANCELED, because only the sender of the signal knows whether a retry makes sense. The text of
    /// the failed call names the signal if it is known. ESRCH: a parked process was killed before it began to start
    /// the program.
    ///
    /// A SIGSYS comes from a seccomp filter. Such a child is not reported as `Killed`: the error has the stage that
    /// the child was in, and ECANCELED.
    Killed,
    /// The caller waits for the child.
    Wait,
    /// The library reads the child's output or writes its input.
    Capture,
    /// The library copies the executable into a snapshot.
    Snapshot,
    /// The library sets up control of the program's process tree.
    Tree,
    /// The library applies resource limits, or waits for a limiter's permit.
    Limit,
    /// The library starts or keeps parked processes.
    Warm,
    /// The program started, and its run was not [`ok`](crate::Output::ok): the error is an
    /// [`ExitError`](crate::job::ExitError).
    Exit,
}

impl Stage {
    /// The stages, with an index of 0.
    #[cfg(feature = "serde")]
    const ALL: [Stage; 22] = [
        Stage::Validate,
        Stage::Template,
        Stage::Revalidate,
        Stage::Credentials,
        Stage::Clone,
        Stage::Descriptors,
        Stage::Stdio(0),
        Stage::Stdio(1),
        Stage::Stdio(2),
        Stage::CurrentDir,
        Stage::Action(0),
        Stage::Signals,
        Stage::Filter,
        Stage::Exec,
        Stage::Killed,
        Stage::Wait,
        Stage::Capture,
        Stage::Snapshot,
        Stage::Tree,
        Stage::Limit,
        Stage::Warm,
        Stage::Exit,
    ];

    /// The stage with this name; an action gets the index.
    #[cfg(feature = "serde")]
    pub(crate) fn from_name(name: &str, index: usize) -> Option<Stage> {
        let stage = Stage::ALL.into_iter().find(|stage| stage.name() == name)?;
        Some(if stage == Stage::Action(0) { Stage::Action(index) } else { stage })
    }

    /// A short lower-case name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Validate => "validate",
            Stage::Template => "template",
            Stage::Revalidate => "revalidate",
            Stage::Credentials => "credentials",
            Stage::Clone => "clone",
            Stage::Descriptors => "descriptors",
            Stage::Stdio(0) => "stdin",
            Stage::Stdio(1) => "stdout",
            Stage::Stdio(_) => "stderr",
            Stage::CurrentDir => "cwd",
            Stage::Action(_) => "action",
            Stage::Signals => "signals",
            Stage::Filter => "filter",
            Stage::Exec => "exec",
            Stage::Killed => "killed",
            Stage::Wait => "wait",
            Stage::Capture => "capture",
            Stage::Snapshot => "snapshot",
            Stage::Tree => "tree",
            Stage::Limit => "limit",
            Stage::Warm => "warm",
            Stage::Exit => "exit",
        }
    }
}
