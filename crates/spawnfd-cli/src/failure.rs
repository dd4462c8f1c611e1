// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of the command: one line on standard error, and the exit codes of env(1) and timeout(1).

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, poll};
use spawnfd::Error;
use spawnfd::error::{Errno, Stage};
pub use spawnfd::internal::os_text as reason;
use spawnfd::job::Stream;

/// The exit code if the command itself failed, or if the program's exit status is unknown.
pub const FAILED: u8 = 125;
/// The exit code if the program exists, but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The exit code if the program does not exist.
pub const NOT_FOUND: u8 = 127;
/// The exit code if the timeout expired, and this command ended the program.
pub const TIMEOUT: u8 = 124;

/// Returns the exit code for a program's status: the program's own, or 128 and the signal's number.
pub fn code_of(status: ExitStatus) -> u8 {
    let signalled = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(signalled)).unwrap_or(u8::MAX)
}

/// The reason why the command fails, and its exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
    /// The flag that caused the failure, as the user wrote it.
    pub flag: Option<String>,
    /// The library's error, if the library failed.
    pub source: Option<Error>,
}

impl Failure {
    /// Creates a failure of the command itself.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { code: FAILED, message: message.into(), flag: None, source: None }
    }

    /// Creates a failure that one flag caused.
    pub fn flag(flag: impl Into<String>, reason: impl fmt::Display) -> Failure {
        let flag = flag.into();
        Failure { code: FAILED, message: format!("{flag}: {reason}"), flag: Some(flag), source: None }
    }

    /// Creates a failure from the library's error, with its exit code and the flag that caused it.
    pub fn spawn(error: Error, flag: Option<String>) -> Failure {
        let code = match (error.stage(), error.errno()) {
            (Stage::Template | Stage::Exec | Stage::Revalidate, Errno::ENOENT) => NOT_FOUND,
            (Stage::Exec, Errno::E2BIG | Errno::ENOMEM | Errno::EAGAIN) => FAILED,
            (Stage::Template, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => FAILED,
            (Stage::Template | Stage::Exec | Stage::Revalidate, _) => NOT_EXECUTABLE,
            _ => FAILED,
        };
        let message = match &flag {
            Some(flag) => format!("{flag}: {error}"),
            None => error.to_string(),
        };
        Failure { code, message, flag, source: Some(error) }
    }

    /// Creates a failure that concerns the program. The message has the name that the user gave.
    pub fn program(name: &OsStr, error: Error) -> Failure {
        let mut failure = Failure::spawn(error, None);
        let has_space = name.as_bytes().contains(&b' ');
        let name = name.display();
        if let Some(error) = &failure.source {
            let searched = failure.code == NOT_FOUND && error.call().starts_with("search(");
            let message = error.message();
            failure.message = if searched {
                let hint = if has_space { "; pass each argument as a separate word" } else { "" };
                format!("{message}{hint}")
            } else if message.contains(&name.to_string()) {
                error.to_string()
            } else {
                format!("{name}: {error}")
            };
        }
        failure
    }

    /// Prints the line on standard error.
    pub fn print(&self) {
        // Ignore a failure of standard error, because this command has no other stream to report it.
        let _ = eprint(format!("spawnfd: {}\n", self.message).as_bytes());
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::spawn(error, None)
    }
}

/// Prints on standard output. A closed pipe is no failure, because the reader wants no more output.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    print_to(Stream::Stdout, bytes).map(drop)
}

/// Prints on standard error, like `print`.
pub fn eprint(bytes: &[u8]) -> Result<(), Failure> {
    print_to(Stream::Stderr, bytes).map(drop)
}

/// Prints on a stream. Returns `false` if the stream is a pipe that its reader has closed.
pub fn print_to(stream: Stream, bytes: &[u8]) -> Result<bool, Failure> {
    let (written, name) = match stream {
        Stream::Stdout => (write(io::stdout().as_fd(), bytes), "standard output"),
        Stream::Stderr => (write(io::stderr().as_fd(), bytes), "standard error"),
    };
    written.map_err(|e| Failure::new(format!("{name}: {}", reason(&e))))
}

/// Writes all bytes. If the descriptor is nonblocking, polls until it is writable. Returns `false`
/// if the reader has closed the pipe.
///
/// This function does not use std's streams, because those report success for a closed descriptor.
fn write(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<bool> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(rustix::io::Errno::PIPE) => return Ok(false),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(stream, PollFlags::OUT)], None);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}
