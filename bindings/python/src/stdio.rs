// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments for the standard streams: keywords and descriptors.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use spawnfd::{Descriptor, Stdio};

use crate::arguments::{borrow, descriptor_number, wrong_type, wrong_value};

/// The Python function that was called: spawn(), run() or start(). Each accepts the options of the previous ones, but
/// spawn() has other keywords and defaults for the standard streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum CallKind {
    Spawn,
    Run,
    Start,
}

const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

/// Converts the argument for one stream. In a run the core treats `Stdio::Inherit` as captured, and as empty for
/// standard input.
pub fn stream(number: i32, kind: CallKind, value: Option<&Bound<'_, PyAny>>) -> PyResult<Stdio<'static>> {
    let name = NAMES[number as usize];
    let Some(value) = value else { return Ok(Stdio::Inherit) };
    let Ok(word) = value.cast::<PyString>() else {
        return match descriptor_number(value, &name) {
            Ok(fd) => Ok(borrowed(fd)),
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
    match (&*word.to_string_lossy(), kind) {
        ("null", _) => Ok(Stdio::Null),
        ("inherit", CallKind::Run | CallKind::Start) => Ok(borrowed(number)),
        ("inherit", CallKind::Spawn) => Ok(Stdio::Inherit),
        ("pipe", CallKind::Spawn) => Ok(Stdio::Piped),
        ("stream", CallKind::Start) if number == 0 => Ok(Stdio::Inherit),
        ("capture", CallKind::Run | CallKind::Start) if number == 1 => Ok(Stdio::Inherit),
        ("separate", CallKind::Run | CallKind::Start) if number == 2 => Ok(Stdio::Inherit),
        ("merge", _) if number == 2 => Ok(Stdio::SameAsStdout),
        (word, _) => {
            let instead = match (word, kind, number) {
                ("pipe", CallKind::Run, 0) => r#"; to pass data use input=, or start(stdin="stream")"#,
                ("pipe", CallKind::Start, 0) => r#"; to write to the program use "stream""#,
                ("pipe", CallKind::Run | CallKind::Start, _) => "; the stream is captured by default",
                ("stdout", _, 2) => r#"; to send it to stdout use "merge""#,
                _ => "",
            };
            Err(wrong_value(&name, format_args!("expected one of {}, got {word:?}{instead}", keywords(number, kind))))
        }
    }
}

fn borrowed(fd: i32) -> Stdio<'static> {
    Stdio::Descriptor(Descriptor::Borrowed(borrow(fd)))
}

fn keywords(number: i32, kind: CallKind) -> &'static str {
    match (kind, number) {
        (CallKind::Run, 0) => r#""null", "inherit""#,
        (CallKind::Start, 0) => r#""null", "inherit", "stream""#,
        (CallKind::Run | CallKind::Start, 1) => r#""capture", "null", "inherit""#,
        (CallKind::Run | CallKind::Start, _) => r#""separate", "merge", "null", "inherit""#,
        (CallKind::Spawn, 2) => r#""inherit", "null", "pipe", "merge""#,
        (CallKind::Spawn, _) => r#""inherit", "null", "pipe""#,
    }
}
