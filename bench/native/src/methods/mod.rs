// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways to start a program that are compared.

mod ours;
mod raw;
mod standard;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

pub use raw::Raw;
pub use standard::Standard;

/// The program that a method starts.
#[derive(Debug, Clone)]
pub enum Target {
    /// By absolute path.
    Path(PathBuf),
    /// By name, searched in the environment's PATH by the method's own means.
    Name(String),
}

/// Where the child's stdout goes.
#[derive(Debug)]
pub enum Output<'fd> {
    /// Into this descriptor, which the method closes in the parent.
    To(OwnedFd),
    /// Into this descriptor, which stays open for the next call.
    Into(BorrowedFd<'fd>),
    /// To /dev/null, as the method's users would say it.
    Null,
}

/// One way to start a program. At most one child at a time: `start`, then `finish`.
///
/// The child gets this process's environment, its stdin and stderr, and the given stdout.
pub trait Method: Send {
    /// Starts the program.
    ///
    /// # Errors
    ///
    /// As the method reports them; the raw ones learn of a failed exec only by the exit code 127.
    fn start(&mut self, stdout: Output<'_>) -> io::Result<()>;

    /// Waits for what `start` started, and returns its exit code.
    ///
    /// # Errors
    ///
    /// The wait fails, or the child was killed by a signal.
    fn finish(&mut self) -> io::Result<i32>;

    /// The same for another thread; what a caller would share between threads is shared.
    ///
    /// # Errors
    ///
    /// As for [`open`].
    fn another(&self) -> io::Result<Box<dyn Method>>;
}

/// Makes the method called `name` ready to start `target`.
///
/// # Errors
///
/// No such method is built, or it cannot open the target.
pub fn open(name: &str, target: &Target) -> io::Result<Box<dyn Method>> {
    match name {
        "vfork" => Raw::open(raw::Call::Vfork, target),
        "fork_exec" => Raw::open(raw::Call::Fork, target),
        "posix_spawn" => Raw::open(raw::Call::PosixSpawn, target),
        "std" => Ok(Box::new(Standard::open(target))),
        "ours" => ours::open(target),
        _ => Err(io::Error::other(format!("no method is called {name}"))),
    }
}

fn killed() -> io::Error {
    io::Error::other("the child was killed by a signal")
}
