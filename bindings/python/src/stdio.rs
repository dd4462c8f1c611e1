// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments for the standard streams: keywords, constants of subprocess, and descriptors.

use std::borrow::Cow;
use std::fmt::Display;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};
use spawnfd::internal::stream_number;
use spawnfd::options::{Call, OptionSpec, Word};

use crate::arguments::{descriptor_number, quoted, wrong_type, wrong_value};

/// The constants of subprocess and asyncio, which are negative numbers from -1 down.
const CONSTANTS: [&str; 3] = ["subprocess.PIPE", "subprocess.STDOUT", "subprocess.DEVNULL"];

/// Returns the name of a constant of subprocess; `None` for any other value.
fn constant(value: &Bound<'_, PyAny>) -> Option<&'static str> {
    let number: i32 = value.cast::<PyInt>().ok()?.extract().ok()?;
    let index = usize::try_from(-1 - i64::from(number)).ok()?;
    CONSTANTS.get(index).copied()
}

/// Returns the word that a value is or stands for; `None` for a descriptor, a file, or a constant that has no meaning for
/// this stream.
fn keyword<'a>(name: &str, call: Call, value: &'a Bound<'_, PyAny>) -> Option<Cow<'a, str>> {
    if let Ok(word) = value.cast::<PyString>() {
        return Some(word.to_string_lossy());
    }
    let word = match (constant(value)?, call, name) {
        ("subprocess.DEVNULL", _, _) => "null",
        ("subprocess.STDOUT", _, "stderr") => "merge",
        ("subprocess.PIPE", Call::Spawn, _) => "pipe",
        ("subprocess.PIPE", Call::Start | Call::Command, "stdin") => "stream",
        ("subprocess.PIPE", Call::Run | Call::Start, "stdout") => "capture",
        ("subprocess.PIPE", Call::Run | Call::Start, "stderr") => "separate",
        _ => return None,
    };
    Some(Cow::Borrowed(word))
}

/// The argument for a standard stream.
pub enum Stream {
    Word(&'static str),
    /// A descriptor of the caller.
    Descriptor(i32),
}

/// Converts the argument for the stream of this option. `words` has the words that the option accepts.
pub fn stream(option: &OptionSpec, words: &[Word], call: Call, value: &Bound<'_, PyAny>) -> PyResult<Stream> {
    let (name, all) = (option.name, quoted(words));
    let refused = |given: &dyn Display, instead: &str| {
        Err(wrong_value(&name, format_args!("expected one of {all}, got {given}{instead}")))
    };
    let instead_of_pipe = match (call, name) {
        (Call::Run, "stdin") => r#"; to pass data use input=, or start(stdin="stream")"#,
        (Call::Start, "stdin") => r#"; to write to the program use "stream""#,
        (Call::Run | Call::Start, _) => "; the stream is captured by default",
        _ => "",
    };
    let Some(word) = keyword(name, call, value) else {
        if matches!(call, Call::Session | Call::Command) {
            return Err(wrong_type(&name, &format!("one of {all}"), value));
        }
        if let Some(constant) = constant(value) {
            return refused(&constant, if constant == "subprocess.PIPE" { instead_of_pipe } else { "" });
        }
        let (py, expected) = (value.py(), format!("{all}, a descriptor or a file"));
        return descriptor_number(value, &name).map(Stream::Descriptor).map_err(|error| {
            if error.is_instance_of::<PyTypeError>(py) {
                wrong_type(&name, &expected, value)
            } else if error.is_instance_of::<PyValueError>(py) {
                PyValueError::new_err(format!("{}; expected {expected}", error.value(py)))
            } else {
                error
            }
        });
    };
    match (words.iter().find(|(known, _)| *known == word), &*word, stream_number(name)) {
        // The check of all descriptors reports a closed one.
        (Some(_), "inherit", Some(number)) if call != Call::Spawn => Ok(Stream::Descriptor(number as i32)),
        (Some((known, _)), ..) => Ok(Stream::Word(known)),
        (None, "pipe", _) => refused(&r#""pipe""#, instead_of_pipe),
        (None, "stdout", Some(2)) if call != Call::Session => {
            refused(&r#""stdout""#, r#"; to send it to stdout use "merge""#)
        }
        (None, word, _) => refused(&format_args!("{word:?}"), ""),
    }
}
