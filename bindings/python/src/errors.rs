// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the core's error to the exceptions of `spawnfd._errors`.

use std::ffi::OsStr;

use pyo3::prelude::*;
use spawnfd::Errno;

use crate::classes::Class;

/// An error in the caller's terms.
pub struct Failure<'a> {
    pub errno: Errno,
    pub stage: &'a str,
    /// The index in the caller's own list of actions.
    pub action: Option<usize>,
    /// The program, directory or action's path it is about.
    pub file: Option<&'a OsStr>,
    pub call: &'a str,
    /// Instead of what strerror(3) has to say.
    pub why: Option<&'a str>,
}

impl<'a> Failure<'a> {
    pub fn of(error: &'a spawnfd::Error) -> Failure<'a> {
        Failure {
            errno: error.errno(),
            stage: error.stage().name(),
            action: error.action(),
            file: None,
            call: error.call(),
            why: None,
        }
    }

    pub fn exception(&self, py: Python<'_>) -> PyErr {
        static MAKE: Class = Class::of("spawnfd._errors", "make");
        let fields = (self.errno.raw(), self.why, self.file, self.stage, self.action, self.call);
        let made = MAKE.get(py).and_then(|make| make.call1(fields));
        match made {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    }
}

/// The exception for an error that is about one file, or none.
pub fn exception(py: Python<'_>, error: &spawnfd::Error, file: Option<&OsStr>) -> PyErr {
    Failure { file, ..Failure::of(error) }.exception(py)
}
