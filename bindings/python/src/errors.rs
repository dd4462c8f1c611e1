// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the core's errors to the exceptions of `spawnfd._errors`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use pyo3::prelude::*;
use spawnfd::error::{Errno, Stage};

use crate::classes::PythonClass;

/// An error in terms of the caller's arguments.
pub struct Failure<'a> {
    pub errno: Errno,
    pub stage: &'a str,
    /// The index of the failed action in the caller's list.
    pub action: Option<usize>,
    /// The program, the directory or the action's path that the error concerns.
    pub file: Option<&'a OsStr>,
    pub call: &'a str,
    /// One sentence that says what happened. If it is empty, the exception has the text of strerror(3).
    pub message: Cow<'a, str>,
    /// The text that replaces the text of strerror(3).
    pub reason: Option<&'a str>,
}

impl<'a> Failure<'a> {
    pub fn of(error: &'a spawnfd::Error) -> Failure<'a> {
        Failure {
            errno: error.errno(),
            stage: error.stage().name(),
            action: error.action(),
            file: None,
            call: error.call(),
            message: error.message(),
            reason: None,
        }
    }

    pub fn exception(&self, py: Python<'_>) -> PyErr {
        static MAKE_ERROR: PythonClass = PythonClass::of("spawnfd._errors", "make_error");
        let fields = (self.errno.raw(), self.reason, self.file, self.stage, self.action, self.call, &*self.message);
        let exception = MAKE_ERROR.get(py).and_then(|make_error| make_error.call1(fields));
        match exception {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    }
}

/// Returns the exception for an error of the core. `file` is the file that the error concerns, if there is one.
pub fn exception(py: Python<'_>, error: &spawnfd::Error, file: Option<&OsStr>) -> PyErr {
    Failure { file, ..Failure::of(error) }.exception(py)
}

/// The caller's argument from which an action of the command was made.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The argument `cwd`, given as a descriptor.
    CurrentDir,
    /// An item of the caller's list of actions, and the path that it names.
    Action(usize, Option<OsString>),
}

/// The names that errors of one command refer to.
#[derive(Debug)]
pub struct ErrorContext {
    pub program: OsString,
    pub cwd: Option<OsString>,
    /// The origin of each of the command's actions.
    pub origins: Vec<Origin>,
}

impl ErrorContext {
    /// The context for errors of a command in a shell, which this context started.
    pub fn of_shell(&self) -> ErrorContext {
        ErrorContext { program: self.program.clone(), cwd: None, origins: Vec::new() }
    }

    /// Returns the exception for an error of the core that concerns this command.
    pub fn exception(&self, py: Python<'_>, error: &spawnfd::Error) -> PyErr {
        let mut failure = Failure::of(error);
        match error.stage() {
            Stage::Action(index) => match self.origins.get(index) {
                Some(Origin::CurrentDir) => {
                    failure = Failure { stage: Stage::CurrentDir.name(), action: None, ..failure }
                }
                Some(Origin::Action(index, path)) => {
                    (failure.action, failure.file) = (Some(*index), path.as_deref());
                }
                None => {}
            },
            Stage::CurrentDir => failure.file = self.cwd.as_deref(),
            Stage::Template | Stage::Revalidate | Stage::Credentials | Stage::Exec | Stage::Killed => {
                failure.file = Some(&self.program);
            }
            _ => {}
        }
        let advice = match failure.file {
            Some(file) if error.errno() == Errno::ENOENT => advice(error.stage(), file),
            _ => None,
        };
        let reason = advice.as_ref().map(|advice| format!("No such file or directory; {advice}"));
        if let Some(advice) = advice {
            failure.message = format!("{}; {advice}", failure.message).into();
        }
        failure.reason = reason.as_deref();
        failure.exception(py)
    }
}

/// Returns advice for a program or a directory that does not exist.
fn advice(stage: Stage, file: &OsStr) -> Option<String> {
    let is_program = !matches!(stage, Stage::CurrentDir | Stage::Action(_));
    let has_space = is_program && file.as_bytes().contains(&b' ');
    home_advice(file).or_else(|| has_space.then(|| "each argument must be an item of argv".to_owned()))
}

/// Returns advice for a path that a shell would expand, such as "~/bin/x".
pub fn home_advice(path: &OsStr) -> Option<String> {
    path.as_bytes().starts_with(b"~").then(|| format!("no shell expands \"~\"; pass os.path.expanduser({path:?})"))
}
