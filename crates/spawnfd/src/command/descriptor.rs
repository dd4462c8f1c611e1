// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors on the two sides of a spawn: the caller's descriptors, and the numbers in the
//! child's table.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use spawnfd_sys::{Errno, call};

use super::Command;
use crate::error::{Error, Result, Stage};

/// A descriptor of the caller that a command uses, owned or borrowed for as long as the command lives.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// let file = std::fs::File::open("/etc/hostname")?;
/// // The program finds the file at number 3.
/// let output = Command::new("sh").args(["-c", "cat <&3"]).descriptor(&file, 3).run()?;
/// assert!(output.ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Descriptor<'fd> {
    /// The command owns the descriptor, and closes it when the command is dropped.
    Owned(OwnedFd),
    /// The descriptor belongs to the caller.
    Borrowed(BorrowedFd<'fd>),
}

impl AsFd for Descriptor<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Descriptor::Owned(fd) => fd.as_fd(),
            Descriptor::Borrowed(fd) => fd.as_fd(),
        }
    }
}

impl Descriptor<'_> {
    pub(crate) fn number(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }
}

impl<'fd> From<BorrowedFd<'fd>> for Descriptor<'fd> {
    fn from(fd: BorrowedFd<'fd>) -> Self {
        Descriptor::Borrowed(fd)
    }
}

impl<'fd, T: AsFd> From<&'fd T> for Descriptor<'fd> {
    fn from(fd: &'fd T) -> Self {
        Descriptor::Borrowed(fd.as_fd())
    }
}

macro_rules! owned {
    ($($type:ty),*) => {
        $(impl From<$type> for Descriptor<'_> {
            fn from(fd: $type) -> Self {
                Descriptor::Owned(fd.into())
            }
        })*
    };
}
owned!(
    OwnedFd,
    std::fs::File,
    std::io::PipeReader,
    std::io::PipeWriter,
    std::net::TcpListener,
    std::net::TcpStream,
    std::net::UdpSocket,
    std::os::unix::net::UnixDatagram,
    std::os::unix::net::UnixListener,
    std::os::unix::net::UnixStream,
    std::process::ChildStderr,
    std::process::ChildStdin,
    std::process::ChildStdout
);

/// A descriptor number in the *child's* table.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::command::ChildFd;
/// let file = std::fs::File::open("/etc/hostname")?;
/// // The program finds the file at 3, whatever number it has here.
/// let output = Command::new("sh").args(["-c", "cat <&3"]).descriptor(&file, ChildFd(3)).run()?;
/// assert!(output.ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChildFd(pub i32);

impl From<i32> for ChildFd {
    fn from(number: i32) -> ChildFd {
        ChildFd(number)
    }
}

/// The source of one of the child's standard streams.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Stdio};
/// let log = std::fs::File::create("/dev/null")?;
/// let mut command = Command::new("make");
/// command.stdin(Stdio::null()).stdout(&log).stderr(Stdio::SameAsStdout);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Stdio<'fd> {
    /// The stream is the caller's descriptor of the same number.
    #[default]
    Inherit,
    /// The stream is `/dev/null`.
    Null,
    /// The stream is a new pipe. The [`Child`](crate::Child) has the other end.
    Piped,
    /// Standard error is the same as standard output. The other streams cannot have this value.
    SameAsStdout,
    /// The stream is this descriptor.
    Descriptor(Descriptor<'fd>),
}

impl Stdio<'_> {
    /// The same as [`Stdio::Inherit`], for callers used to [`std::process::Stdio`].
    pub fn inherit() -> Self {
        Stdio::Inherit
    }

    /// The same as [`Stdio::Null`].
    pub fn null() -> Self {
        Stdio::Null
    }

    /// The same as [`Stdio::Piped`].
    pub fn piped() -> Self {
        Stdio::Piped
    }
}

impl<'fd, T: Into<Descriptor<'fd>>> From<T> for Stdio<'fd> {
    fn from(descriptor: T) -> Self {
        Stdio::Descriptor(descriptor.into())
    }
}

impl Command<'_> {
    /// Checks that all descriptors of the command are open. Call this before a start: a start may open a file at
    /// the number of a closed descriptor.
    ///
    /// This function is for callers that have only numbers, such as bindings for other languages. A Rust caller does
    /// not need it, because Rust's types keep borrowed and owned descriptors open.
    ///
    /// # Errors
    /// EBADF, with the stage of the stream or action that names the descriptor. Numbers in the child's table are
    /// checked only if the child inherits the caller's descriptors and no earlier action provides the number.
    pub fn check_descriptors(&self) -> Result<()> {
        let is_closed = |number: i32| call::identify(number) == Err(Errno::EBADF);
        for (to, stdio) in (0..).zip(&self.stdio) {
            if let Some(Stdio::Descriptor(source)) = stdio
                && is_closed(source.number())
            {
                let call = format!("dup2({}, {to})", source.number());
                let message = format!("descriptor {} is not open", source.number());
                return Err(Error::refused(Stage::Stdio(to), Errno::EBADF, call).saying(message));
            }
        }
        let mut provided: Vec<i32> = self.given().iter().map(|given| given.number).collect();
        for (index, action) in self.actions.iter().enumerate() {
            let Ok(action) = action else { continue };
            let named = action.source().map(|source| self.source_number(source));
            let inherited = action.reads().filter(|fd| self.inherit_descriptors && *fd > 2 && !provided.contains(fd));
            if let Some(closed) = named.or(inherited).filter(|&number| is_closed(number)) {
                let message = format!("descriptor {closed} is not open");
                return Err(Error::refused(Stage::Action(index), Errno::EBADF, self.print(action)).saying(message));
            }
            provided.extend(action.makes());
        }
        Ok(())
    }
}
