// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments for the standard streams: keywords, constants of subprocess, and descriptors.

use std::borrow::Cow;
use std::fmt::Display;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use spawnfd::Stdio;
use spawnfd::command::Descriptor;
use spawnfd::options::Call;

use crate::arguments::{borrow, descriptor_number, wrong_type, wrong_value};

const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

/// The constants of subprocess and asyncio, which are negative numbers from -1 down.
const CONSTANTS: [&str; 3] = ["subprocess.PIPE", "subprocess.STDOUT", "subprocess.DEVNULL"];

/// Returns the name of a constant of subprocess; `None` for any other value.
fn constant(value: &Bound<'_, PyAny>) -> Option<&'static str> {
    let number: i32 = value.cast::<PyInt>().ok()?.extract().ok()?;
    let index = usize::try_from(-1 - i64::from(number)).ok()?;
    CONSTANTS.get(index).copied()
}

/// Returns the keyword that a value is or stands for; `None` for a descriptor, a file, or a constant that has no
/// meaning for this stream.
fn keyword<'a>(number: usize, kind: Call, value: &'a Bound<'_, PyAny>) -> Option<Cow<'a, str>> {
    if let Ok(word) = value.cast::<PyString>() {
        return Some(word.to_string_lossy());
    }
    let word = match (constant(value)?, kind, number) {
        ("subprocess.DEVNULL", _, _) => "null",
        ("subprocess.STDOUT", _, 2) => "merge",
        ("subprocess.PIPE", Call::Spawn, _) => "pipe",
        ("subprocess.PIPE", Call::Start | Call::Command, 0) => "stream",
        ("subprocess.PIPE", Call::Run | Call::Start, 1) => "capture",
        ("subprocess.PIPE", Call::Run | Call::Start, 2) => "separate",
        _ => return None,
    };
    Some(Cow::Borrowed(word))
}

/// Whether a value stands for the stream's default.
pub fn is_default(number: usize, kind: Call, value: &Bound<'_, PyAny>) -> bool {
    let default = match (kind, number) {
        (Call::Spawn, _) => "inherit",
        (_, 0) => "null",
        (_, 1) => "capture",
        _ => "separate",
    };
    keyword(number, kind, value).is_some_and(|word| word == default)
}

/// Whether the argument for a job's standard input makes write() possible.
pub fn is_stream(stdin: &Bound<'_, PyAny>) -> bool {
    keyword(0, Call::Start, stdin).is_some_and(|word| word == "stream")
}

/// Converts the argument `stdin` of a session's command. Returns whether write() is possible.
pub fn is_command_stream(stdin: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(word) = keyword(0, Call::Command, stdin) else {
        return Err(wrong_type(&"stdin", r#"one of "null", "stream""#, stdin));
    };
    match &*word {
        "null" => Ok(false),
        "stream" => Ok(true),
        word => Err(wrong_value(&"stdin", format_args!(r#"expected one of "null", "stream", got {word:?}"#))),
    }
}

/// Converts the argument `stderr` of a session. Returns whether commands write standard error to standard output.
pub fn is_session_merge(stderr: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(word) = keyword(2, Call::Session, stderr) else {
        return Err(wrong_type(&"stderr", r#"one of "separate", "merge""#, stderr));
    };
    match &*word {
        "separate" => Ok(false),
        "merge" => Ok(true),
        word => Err(wrong_value(&"stderr", format_args!(r#"expected one of "separate", "merge", got {word:?}"#))),
    }
}

/// Converts the argument for one stream. Returns `None` for the core's default: a child inherits the stream, and a run
/// captures output and provides the input.
pub fn stream(number: usize, kind: Call, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Stdio<'static>>> {
    let name = NAMES[number];
    let Some(value) = value else { return Ok(None) };
    let refused = |given: &dyn Display, instead: &str| {
        Err(wrong_value(&name, format_args!("expected one of {}, got {given}{instead}", keywords(number, kind))))
    };
    let instead_of_pipe = match (kind, number) {
        (Call::Run, 0) => r#"; to pass data use input=, or start(stdin="stream")"#,
        (Call::Start, 0) => r#"; to write to the program use "stream""#,
        (Call::Run | Call::Start, _) => "; the stream is captured by default",
        _ => "",
    };
    let Some(word) = keyword(number, kind, value) else {
        if let Some(constant) = constant(value) {
            return refused(&constant, if constant == "subprocess.PIPE" { instead_of_pipe } else { "" });
        }
        return match descriptor_number(value, &name) {
            Ok(fd) => Ok(Some(borrowed(fd))),
            Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
                Err(wrong_type(&name, &format!("{}, a descriptor or a file", keywords(number, kind)), value))
            }
            Err(error) if error.is_instance_of::<PyValueError>(value.py()) => {
                let expected = keywords(number, kind);
                Err(PyValueError::new_err(format!(
                    "{}; expected {expected}, a descriptor or a file",
                    error.value(value.py())
                )))
            }
            Err(error) => Err(error),
        };
    };
    match (&*word, kind) {
        ("null", _) => Ok(Some(Stdio::Null)),
        ("inherit", Call::Run | Call::Start) => Ok(Some(borrowed(number as i32))),
        ("inherit", Call::Spawn) => Ok(Some(Stdio::Inherit)),
        ("pipe", Call::Spawn) => Ok(Some(Stdio::Piped)),
        ("stream", Call::Start) if number == 0 => Ok(None),
        ("capture", Call::Run | Call::Start) if number == 1 => Ok(None),
        ("separate", Call::Run | Call::Start) if number == 2 => Ok(None),
        ("merge", _) if number == 2 => Ok(Some(Stdio::SameAsStdout)),
        ("pipe", _) => refused(&r#""pipe""#, instead_of_pipe),
        ("stdout", _) if number == 2 => refused(&r#""stdout""#, r#"; to send it to stdout use "merge""#),
        (word, _) => refused(&format_args!("{word:?}"), ""),
    }
}

fn borrowed(fd: i32) -> Stdio<'static> {
    Stdio::Descriptor(Descriptor::Borrowed(borrow(fd)))
}

fn keywords(number: usize, kind: Call) -> &'static str {
    match (kind, number) {
        (Call::Run, 0) => r#""null", "inherit""#,
        (Call::Start, 0) => r#""null", "inherit", "stream""#,
        (Call::Run | Call::Start, 1) => r#""capture", "null", "inherit""#,
        (Call::Run | Call::Start, _) => r#""separate", "merge", "null", "inherit""#,
        (_, 2) => r#""inherit", "null", "pipe", "merge""#,
        _ => r#""inherit", "null", "pipe""#,
    }
}
