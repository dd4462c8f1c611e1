// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments for the standard streams: keywords and descriptors.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use spawnfd::{Descriptor, Stdio};

use crate::arguments::{borrow, descriptor_number, wrong_type, wrong_value};

/// The function that the options belong to. Each variant accepts the options of the variants before it. A plain spawn
/// has other keywords and defaults for its streams than a captured run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Use {
    Spawn,
    Run,
    Start,
}

const NAMES: [&str; 3] = ["stdin", "stdout", "stderr"];

/// Converts the argument for one stream. In a run the core treats `Stdio::Inherit` as captured, and as empty for
/// standard input.
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
