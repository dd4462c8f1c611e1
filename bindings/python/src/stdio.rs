// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the standard streams can be, by keyword or descriptor.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use spawnfd::{Descriptor, Stdio};

use crate::arguments::{borrow, descriptor_number, wrong_type, wrong_value};

/// Whose the options are: each has those of the ones before it. A plain spawn has other words for its streams, and other
/// defaults, than what is captured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Use {
    Spawn,
    Run,
    Start,
}

const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

/// One stream. In a run, `Stdio::Inherit` means captured (for standard input: nothing to read), as the core has it.
pub fn stream(number: i32, usage: Use, value: Option<&Bound<'_, PyAny>>) -> PyResult<Stdio<'static>> {
    let name = NAMES[number as usize];
    let Some(value) = value else { return Ok(Stdio::Inherit) };
    let Ok(word) = value.cast::<PyString>() else {
        return match descriptor_number(value, &name) {
            Ok(fd) => Ok(place(fd)),
            Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
                Err(wrong_type(&name, &format!("{}, a descriptor or a file", words(number, usage)), value))
            }
            Err(error) if error.is_instance_of::<PyValueError>(value.py()) => {
                let expected = words(number, usage);
                Err(PyValueError::new_err(format!(
                    "{}; expected {expected}, a descriptor or a file",
                    error.value(value.py())
                )))
            }
            Err(error) => Err(error),
        };
    };
    match (&*word.to_string_lossy(), usage) {
        ("null", _) => Ok(Stdio::Null),
        ("inherit", Use::Run | Use::Start) => Ok(place(number)),
        ("inherit", Use::Spawn) => Ok(Stdio::Inherit),
        ("pipe", Use::Spawn) => Ok(Stdio::Piped),
        ("stream", Use::Start) if number == 0 => Ok(Stdio::Inherit),
        ("capture", Use::Run | Use::Start) if number == 1 => Ok(Stdio::Inherit),
        ("separate", Use::Run | Use::Start) if number == 2 => Ok(Stdio::Inherit),
        ("merge", _) if number == 2 => Ok(Stdio::SameAsStdout),
        (word, _) => {
            let instead = match (word, usage, number) {
                ("pipe", Use::Run, 0) => r#"; input= gives it something, start(stdin="stream") over time"#,
                ("pipe", Use::Start, 0) => r#"; "stream" is what write() gives it"#,
                ("pipe", Use::Run | Use::Start, _) => "; it is captured unless told otherwise",
                ("stdout", _, 2) => r#"; "merge" puts it there"#,
                _ => "",
            };
            Err(wrong_value(&name, format_args!("{word:?} is not one of {}{instead}", words(number, usage))))
        }
    }
}

fn place(fd: i32) -> Stdio<'static> {
    Stdio::Descriptor(Descriptor::Borrowed(borrow(fd)))
}

fn words(number: i32, usage: Use) -> &'static str {
    match (usage, number) {
        (Use::Run, 0) => r#""null", "inherit""#,
        (Use::Start, 0) => r#""null", "inherit", "stream""#,
        (Use::Run | Use::Start, 1) => r#""capture", "null", "inherit""#,
        (Use::Run | Use::Start, _) => r#""separate", "merge", "null", "inherit""#,
        (Use::Spawn, 2) => r#""inherit", "null", "pipe", "merge""#,
        (Use::Spawn, _) => r#""inherit", "null", "pipe""#,
    }
}
