// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: starts programs for the other side of a pipe.
//!
//! `server.rs` has the main thread, which reads frames and begins calls. `calls/` has the calls, and `connection.rs` the
//! way out. The library's thread, which drives the runs, sends their output and results. No call has a thread of its own.

mod calls;
mod connection;
mod server;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};

use crate::frame::Malformed;
use server::Server;

/// Why a server has ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The other side has closed the pipe, or has ended.
    Closed,
    /// The other side has sent no frame for the time of its lease.
    Silent,
}

/// Why a server cannot go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A system call failed.
    Io(io::Error),
    /// The other side does not speak the protocol.
    Malformed(Malformed),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Io(error) => fmt::Display::fmt(error, f),
            ServeError::Malformed(malformed) => write!(f, "the other side does not speak the protocol: {malformed}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<rustix::io::Errno> for ServeError {
    fn from(errno: rustix::io::Errno) -> ServeError {
        ServeError::Io(errno.into())
    }
}

/// The options of a server.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The command that packs and unpacks files, as `spawnfd files` does. Empty: there is none.
    pub files: Vec<OsString>,
}

/// Serves standard input and standard output until the other side ends. All programs have been told to end then. Exit
/// this process next, so that the guard kills those that have not ended.
///
/// The programs get neither stream: from now on, standard input and output of this process are /dev/null.
///
/// # Errors
/// A system call failed, or the other side does not speak the protocol.
pub fn serve(options: &ServeOptions) -> Result<Ended, ServeError> {
    let (input, output) = take_streams()?;
    Server::new(input, output, &options.files)?.serve()
}

/// Takes standard input and output away from the programs that this process starts.
fn take_streams() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (input, output) = (fcntl_dupfd_cloexec(stdin(), 3)?, fcntl_dupfd_cloexec(stdout(), 3)?);
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    // A closed standard error would get the number of a descriptor of this process.
    if rustix::io::fcntl_getfd(stderr()).is_err() {
        dup2_stderr(&null)?;
    }
    Ok((input, output))
}
