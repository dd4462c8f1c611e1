// SPDX-License-Identifier: MIT OR Apache-2.0
//! The methods of starting a program that the benchmark compares.

mod ours;
mod raw;
pub mod same_calls;
mod standard;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

pub use raw::Raw;
pub use standard::Standard;

/// The program that a method starts.
#[derive(Debug, Clone)]
pub enum Target {
    /// An absolute path.
    Path(PathBuf),
    /// A name. The method itself searches the name in the environment's PATH.
    Name(String),
}

/// The destination of the child's standard output.
#[derive(Debug)]
pub enum Output<'fd> {
    /// This descriptor, which the method closes in the parent.
    Owned(OwnedFd),
    /// This descriptor, which stays open for the next call.
    Borrowed(BorrowedFd<'fd>),
    /// /dev/null, requested in the method's usual way.
    Null,
}

/// A method of starting a program. It has at most one child at a time: `start`, then `finish`.
///
/// The child inherits this process's environment, stdin and stderr, and gets the given stdout.
pub trait Method: Send {
    /// Starts the program.
    ///
    /// # Errors
    ///
    /// The method's own errors. The C baselines report a failed exec only by the exit code 127.
    fn start(&mut self, stdout: Output<'_>) -> io::Result<()>;

    /// Waits for the child, and returns its exit code.
    ///
    /// # Errors
    ///
    /// The wait fails, or the child was killed by a signal.
    fn finish(&mut self) -> io::Result<i32>;

    /// Creates the same method for another thread. It shares the state that a caller would share between threads.
    ///
    /// # Errors
    ///
    /// The same errors as [`open`].
    fn for_thread(&self) -> io::Result<Box<dyn Method>>;
}

/// Prepares the method `name` to start `target`.
///
/// # Errors
///
/// The method does not exist, or it cannot open the target.
pub fn open(name: &str, target: &Target) -> io::Result<Box<dyn Method>> {
    match name {
        "vfork" => Raw::open(raw::Call::Vfork, target),
        "fork_exec" => Raw::open(raw::Call::Fork, target),
        "posix_spawn" => Raw::open(raw::Call::PosixSpawn, target),
        "std" => Ok(Box::new(Standard::open(target))),
        "ours" => ours::open(target),
        "same_calls" => same_calls::open(target),
        _ => Err(io::Error::other(format!("unknown method {name}"))),
    }
}

fn killed() -> io::Error {
    io::Error::other("the child was killed by a signal")
}
