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
use std::process::ExitStatus;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};

use spawnfd::error::{Errno, Stage};
use spawnfd::internal::error;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run, Stdio};

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

/// Starts a server as a process of its own, which calls [`serve`], and waits for its end. Returns its status, or `None` if
/// that was lost.
///
/// The server inherits the standard streams, and leads a session of its own. When it has ended, or if this process or the
/// server is killed, all processes below the server are killed. These include processes that have left their session and
/// lost their parent, because the server is the program of a tree with the tier `subreaper`. Without /proc, the tier is
/// `guard`.
///
/// # Errors
/// The server could not be started.
pub fn supervise(server: &mut Command<'_>) -> spawnfd::Result<Option<ExitStatus>> {
    let (input, output) = take_streams().map_err(|errno| not_taken(errno.raw_os_error()))?;
    server.setsid().stdin(input).stdout(output).stderr(Stdio::Inherit);
    let start = |server: &Command<'_>, tree| server.start(&Run::new().tree(tree));
    let job = start(server, TreeControl::Subreaper).or_else(|_| start(server, TreeControl::Guard))?;
    // The end of the server must be the end of the pipe.
    server.stdin(Stdio::Null).stdout(Stdio::Null);
    Ok(job.wait()?.status)
}

fn not_taken(errno: i32) -> spawnfd::Error {
    error(Stage::Descriptors, Errno::from_raw(errno), "fcntl(F_DUPFD_CLOEXEC)", "cannot pass the standard streams on")
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
