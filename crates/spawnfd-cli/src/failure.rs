// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the command fails: one line on standard error, and an exit code as env(1) has them.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use spawnfd::{Errno, Error, Stage};

/// The command itself failed, or how the program ended is not known.
pub const OURS: u8 = 125;
/// The program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub const NOT_FOUND: u8 = 127;
/// The program was killed as its time was over.
pub const TIMEOUT: u8 = 124;

/// Why the command ends early.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
    /// The flag to blame, as it was given.
    pub flag: Option<String>,
    /// What the library reported, if it was the library.
    pub source: Option<Error>,
}

impl Failure {
    /// A failure of the command itself.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { code: OURS, message: message.into(), flag: None, source: None }
    }

    /// A failure that one flag is to blame for.
    pub fn flag(flag: impl Into<String>, reason: impl fmt::Display) -> Failure {
        let flag = flag.into();
        Failure { code: OURS, message: format!("{flag}: {reason}"), flag: Some(flag), source: None }
    }

    /// The library's error, with the exit code that goes with it and the flag it comes from.
    pub fn spawn(error: Error, flag: Option<String>) -> Failure {
        let code = match (error.stage(), error.errno()) {
            (Stage::Template | Stage::Exec | Stage::Revalidate, Errno::ENOENT) => NOT_FOUND,
            (Stage::Exec, Errno::E2BIG | Errno::ENOMEM | Errno::EAGAIN) => OURS,
            (Stage::Template, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => OURS,
            (Stage::Template | Stage::Exec | Stage::Revalidate, _) => NOT_EXECUTABLE,
            _ => OURS,
        };
        let message = match &flag {
            Some(flag) => format!("{flag}: {error}"),
            None => error.to_string(),
        };
        Failure { code, message, flag, source: Some(error) }
    }

    /// An error about the program itself, by the name the user gave it.
    pub fn program(name: &OsStr, error: Error) -> Failure {
        let mut failure = Failure::spawn(error, None);
        let name = name.display();
        if let Some(error) = &failure.source {
            let searched = failure.code == NOT_FOUND && error.call().starts_with("search(");
            let words = name.to_string().contains(' ');
            failure.message = match (searched, words) {
                (true, false) => format!("{name}: not found in PATH"),
                (true, true) => format!("{name}: not found in PATH; arguments are words of their own"),
                (false, _) => format!("{name}: {error}"),
            };
        }
        failure
    }

    /// Prints the one line.
    pub fn print(&self) {
        // Nobody can be told that standard error is gone.
        let _ = complain(format!("spawnfd: {}\n", self.message).as_bytes());
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::spawn(error, None)
    }
}

/// Prints on standard output; a reader that has left is no failure, and ends the printing.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    write(io::stdout().as_fd(), bytes).map_err(|e| Failure::new(format!("standard output: {}", reason(&e))))
}

/// The same on standard error.
pub fn complain(bytes: &[u8]) -> Result<(), Failure> {
    write(io::stderr().as_fd(), bytes).map_err(|e| Failure::new(format!("standard error: {}", reason(&e))))
}

/// Writes all of it, waiting for room where the descriptor would not. (std's streams take a closed one for one that has taken all.)
fn write(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(rustix::io::Errno::PIPE) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(stream, PollFlags::OUT)], None);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// The kernel's reason without std's " (os error N)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
