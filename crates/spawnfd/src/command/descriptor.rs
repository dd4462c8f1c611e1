// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors on the two sides of a spawn: the caller's, and the numbers of the child's table.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A descriptor of the caller that a command uses, owned or borrowed for as long as the command lives.
#[derive(Debug)]
pub enum Descriptor<'fd> {
    /// Closed with the command.
    Owned(OwnedFd),
    /// Someone else's.
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
    std::net::TcpStream,
    std::os::unix::net::UnixStream
);

/// A descriptor number in the *child's* table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChildFd(pub i32);

impl From<i32> for ChildFd {
    fn from(number: i32) -> ChildFd {
        ChildFd(number)
    }
}

/// What one of the child's standard streams is.
#[derive(Debug, Default)]
pub enum Stdio<'fd> {
    /// The caller's own.
    #[default]
    Inherit,
    /// `/dev/null`.
    Null,
    /// A new pipe, of which the [`Child`](crate::Child) holds the other end.
    Piped,
    /// For standard error: whatever standard output is.
    SameAsStdout,
    /// This descriptor.
    Descriptor(Descriptor<'fd>),
}

impl<'fd, T: Into<Descriptor<'fd>>> From<T> for Stdio<'fd> {
    fn from(descriptor: T) -> Self {
        Stdio::Descriptor(descriptor.into())
    }
}
