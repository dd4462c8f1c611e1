// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error of a confinement.

use std::fmt;

use syscalls::Errno;

/// The reason why a confinement could not be set up.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This architecture has no system call with this name.
    UnknownSyscall(String),
    /// The text is neither the name nor the number of an errno.
    UnknownErrno(String),
    /// seccompiler does not know this architecture.
    Architecture,
    /// The filter could not be compiled.
    Filter(seccompiler::BackendError),
    /// No [`Profile`] has this name.
    UnknownProfile(String),
    /// The file of a profile is malformed.
    Profile(serde_json::Error),
    /// The kernel refused a step.
    System {
        /// The system call.
        step: &'static str,
        /// Its errno.
        errno: Errno,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::UnknownSyscall(name) => write!(f, "no system call {name:?} on this architecture"),
            Error::UnknownErrno(text) => write!(f, "no errno {text:?}"),
            Error::Architecture => f.write_str("no seccomp filter for this architecture"),
            Error::Filter(error) => write!(f, "seccomp filter: {error}"),
            Error::UnknownProfile(name) => {
                write!(f, "no profile {name:?} (docker, podman, system-service or flatpak)")
            }
            Error::Profile(error) => write!(f, "seccomp profile: {error}"),
            Error::System { step, errno } => write!(f, "{step}: {errno}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<seccompiler::BackendError> for Error {
    fn from(error: seccompiler::BackendError) -> Error {
        Error::Filter(error)
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Error {
        Error::Profile(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_the_cause() {
        let shown = |error: Error| error.to_string();
        assert_eq!(shown(Error::UnknownErrno("EX".to_owned())), "no errno \"EX\"");
        assert_eq!(shown(Error::UnknownSyscall("spawn".to_owned())), "no system call \"spawn\" on this architecture");
        let refused = shown(Error::System { step: "seccomp", errno: Errno::EPERM });
        assert!(refused.starts_with("seccomp: ") && refused.contains("EPERM"), "{refused}");
        let malformed = serde_json::from_str::<u8>("{").map_err(Error::from).expect_err("not JSON");
        assert!(shown(malformed).starts_with("seccomp profile: "));
    }
}
