// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts Python values to the core's types, with errors that name the argument.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyMapping, PySequence, PyString};
use spawnfd::error::{Errno, Stage};

use crate::errors::{Failure, home_advice};

/// Returns a TypeError with the argument's name, the expected type and the actual type.
pub fn wrong_type(name: &dyn Display, expected: &str, value: &Bound<'_, PyAny>) -> PyErr {
    match value.get_type().qualname() {
        Ok(found) => PyTypeError::new_err(format!("{name}: expected {expected}, not {}", found.to_string_lossy())),
        Err(error) => error,
    }
}

/// Returns a ValueError with the argument's name and the reason.
pub fn wrong_value(name: &dyn Display, reason: impl Display) -> PyErr {
    PyValueError::new_err(format!("{name}: {reason}"))
}

/// Converts a str (by the file system encoding), bytes or an os.PathLike. Refuses a value with a NUL.
pub fn os_string(value: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<OsString> {
    os_string_or(value, name, "str, bytes or os.PathLike")
}

/// Converts a value as [`os_string`] does. `expected` describes the accepted types.
pub fn os_string_or(value: &Bound<'_, PyAny>, name: &dyn Display, expected: &str) -> PyResult<OsString> {
    let Some(path) = plain_path(value)? else { return Err(wrong_type(name, expected, value)) };
    let string = if let Ok(string) = path.cast::<PyString>() {
        from_str(string, name)?
    } else if let Ok(bytes) = path.cast::<PyBytes>() {
        OsString::from_vec(bytes.as_bytes().to_vec())
    } else {
        return Err(wrong_type(name, "__fspath__() to return str or bytes", &path));
    };
    if string.as_bytes().contains(&0) {
        return Err(wrong_value(name, "embedded null byte"));
    }
    Ok(string)
}

/// Returns a str or bytes unchanged, and of an os.PathLike the result of its method; `None` for any other value.
pub fn plain_path<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if is_plain(value) {
        return Ok(Some(value.clone()));
    }
    match value.get_type().getattr(intern!(value.py(), "__fspath__")) {
        Ok(method) => method.call1((value,)).map(Some),
        Err(_) => Ok(None),
    }
}

/// Whether a value is a str or bytes.
pub fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>()
}

fn from_str(string: &Bound<'_, PyString>, name: &dyn Display) -> PyResult<OsString> {
    // Fast path: ASCII has the same bytes in every file system encoding.
    match string.to_str() {
        Ok(text) if text.is_ascii() => Ok(OsString::from(text)),
        _ => string.extract().map_err(|error| encoding_error(&error, string, name)),
    }
}

/// Returns the error for a str with a character that cannot be encoded.
fn encoding_error(error: &PyErr, string: &Bound<'_, PyString>, name: &dyn Display) -> PyErr {
    match error.value(string.py()).str() {
        Ok(reason) => wrong_value(name, reason.to_string_lossy()),
        Err(error) => error,
    }
}

/// Converts a sequence of arguments; refuses a single string.
pub fn os_strings(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<OsString>> {
    let expected = "a sequence of str, bytes or os.PathLike";
    if is_plain(value) {
        return Err(single_string_error(value, name, expected));
    }
    let Ok(sequence) = value.cast::<PySequence>() else { return Err(wrong_type(&name, expected, value)) };
    // collect() would import the module operator, which fails while the interpreter is being finalized.
    let mut strings = Vec::new();
    for (index, item) in sequence.try_iter()?.enumerate() {
        strings.push(os_string(&item?, &format_args!("{name}[{index}]"))?);
    }
    Ok(strings)
}

/// Returns the error for a single string in place of a sequence, with a correct example.
fn single_string_error(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyErr {
    let given = match value.repr() {
        Ok(given) => given,
        Err(error) => return error,
    };
    let given = given.to_string_lossy();
    let kind = if value.is_instance_of::<PyString>() { "str" } else { "bytes" };
    PyTypeError::new_err(match name {
        "argv" => format!(
            "argv: expected a list of the program and its arguments, such as [\"ls\", \"-l\"], not {kind}; \
             for a shell command line use spawnfd.sh({given})"
        ),
        _ => format!("{name}: expected {expected}, not {kind}; for a single item pass [{given}]"),
    })
}

/// Returns the items of an iterable; refuses a str and bytes.
pub fn sequence<'py>(value: &Bound<'py, PyAny>, name: &str, of: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if is_plain(value) {
        return Err(wrong_type(&name, of, value));
    }
    match value.try_iter() {
        Ok(items) => items.collect(),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => Err(wrong_type(&name, of, value)),
        Err(error) => Err(error),
    }
}

/// Converts an int in the range of `T`; refuses a bool.
pub fn integer<'py, T>(value: &Bound<'py, PyAny>, name: &dyn Display) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    if value.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, "int", value));
    }
    value.extract::<T>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            out_of_range::<T>(value, name).unwrap_or_else(|error| error)
        } else if error.is_instance_of::<PyTypeError>(value.py()) {
            wrong_type(name, "int", value)
        } else {
            error
        }
    })
}

/// Returns the error for an int that `T` cannot represent.
fn out_of_range<'py, T>(value: &Bound<'py, PyAny>, name: &dyn Display) -> PyResult<PyErr>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let given = value.str()?;
    let given = given.to_string_lossy();
    let unsigned = PyInt::new(value.py(), -1).extract::<T>().is_err();
    Ok(match unsigned && value.lt(0)? {
        true => PyValueError::new_err(format!("{name} must be >= 0, got {given}")),
        false => wrong_value(name, format_args!("{given} is out of range")),
    })
}

/// Returns a descriptor number: an int, or the result of an object's `fileno()`.
pub fn descriptor_number(value: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<i32> {
    let number = if value.is_instance_of::<PyInt>() {
        integer::<i32>(value, name)?
    } else if let Ok(method) = value.getattr(intern!(value.py(), "fileno")) {
        let given = method.call0().map_err(|error| {
            let refused = error.is_instance_of::<PyValueError>(value.py());
            // fileno() raises ValueError for a closed file, and for a file in memory such as
            // io.StringIO.
            if refused { wrong_value(name, format_args!("fileno() raised {error}")) } else { error }
        })?;
        integer::<i32>(&given, &format_args!("{name}.fileno()"))?
    } else {
        return Err(wrong_type(name, "a descriptor (int) or an object with fileno()", value));
    };
    if number < 0 {
        return Err(wrong_value(name, format_args!("a descriptor must be >= 0, got {number}")));
    }
    Ok(number)
}

/// Borrows a descriptor of the caller. The caller keeps it open during the call, as for functions of `os`.
pub fn descriptor(value: &Bound<'_, PyAny>, name: &dyn Display) -> PyResult<BorrowedFd<'static>> {
    descriptor_number(value, name).map(borrow)
}

/// Borrows a descriptor by its number, which must not be negative.
pub fn borrow(number: i32) -> BorrowedFd<'static> {
    assert!(number >= 0);
    // SAFETY: `number` is not -1. Before a child exists, the core checks that the descriptor is open (EBADF). The core
    // uses it only until the current call, or the run that the call awaits, ends; the caller keeps it open until then.
    // If another thread closes the descriptor during the call, the effect is the same as for os.read().
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Converts a float or an int; an int that is too large for a float becomes infinite.
pub fn number(value: &Bound<'_, PyAny>, name: &dyn Display, expected: &str) -> PyResult<f64> {
    if value.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, expected, value));
    }
    value.extract::<f64>().or_else(|error| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            Ok(if value.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY })
        } else {
            Err(wrong_type(name, expected, value))
        }
    })
}

/// Converts seconds, a float or an int; returns `None` for None and for infinity.
pub fn seconds(value: Option<&Bound<'_, PyAny>>, name: &str) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    let seconds = number(value, &name, "seconds (float) or None")?;
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("{name} must be >= 0, got {seconds}")));
    }
    // More seconds than a Duration can represent mean no limit.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// Returns bytes for a program's input, from a bytes-like object or a str (as UTF-8).
pub fn bytes(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    if let Ok(string) = value.cast::<PyString>() {
        let text = string.to_str().map_err(|error| encoding_error(&error, string, &name))?;
        return Ok(text.as_bytes().to_vec());
    }
    let expected = "bytes, bytearray, memoryview or str";
    if value.is_instance_of::<PyInt>() {
        return Err(wrong_type(&name, expected, value));
    }
    let py = value.py();
    let copied = py
        .get_type::<pyo3::types::PyMemoryView>()
        .call1((value,))
        .and_then(|view| view.call_method0(intern!(py, "tobytes")));
    match copied {
        Ok(copied) => Ok(copied.cast::<PyBytes>()?.as_bytes().to_vec()),
        Err(_) => Err(wrong_type(&name, expected, value)),
    }
}

/// Converts a str to UTF-8. `expected` describes the accepted types.
pub fn text(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyResult<String> {
    let Ok(string) = value.cast::<PyString>() else { return Err(wrong_type(&name, expected, value)) };
    Ok(string.to_str().map_err(|error| encoding_error(&error, string, &name))?.to_owned())
}

/// Converts a bool.
pub fn boolean(value: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    value.cast::<PyBool>().map(|value| value.is_true()).map_err(|_| wrong_type(&name, "bool", value))
}

/// Converts a keyword, such as "result", to its value.
pub fn keyword<T: Copy>(value: &Bound<'_, PyAny>, name: &str, words: &[(&str, T)]) -> PyResult<T> {
    let Ok(given) = value.cast::<PyString>() else {
        return Err(wrong_type(&name, &format!("one of {}", quoted(words)), value));
    };
    let given = given.to_string_lossy();
    let found = words.iter().find(|(word, _)| *word == given);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| PyValueError::new_err(format!("{name} must be one of {}, got {given:?}", quoted(words))))
}

/// Returns a list of words for an error.
pub fn quoted<T>(words: &[(&str, T)]) -> String {
    words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

/// Converts a mapping of environment variables.
pub fn variables(mapping: &Bound<'_, PyMapping>, name: &str) -> PyResult<Vec<(OsString, OsString)>> {
    let mut variables = Vec::new();
    for item in mapping.items()?.iter() {
        let (key, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        variables.push(variable(&key, &value, name)?);
    }
    Ok(variables)
}

/// Converts one environment variable, under the rules of `putenv`.
pub fn variable(key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, name: &str) -> PyResult<(OsString, OsString)> {
    let variable = os_string(key, &format_args!("{name}: variable name"))?;
    if variable.is_empty() || variable.as_bytes().contains(&b'=') {
        let reason = format!("{variable:?} is not a variable name: it must not be empty or contain \"=\"");
        return Err(wrong_value(&name, reason));
    }
    let value = os_string(value, &format_args!("{name}['{}']", variable.display()))?;
    Ok((variable, value))
}

/// Refuses an empty program and a relative path, whose meaning depends on the working directory.
pub fn check_program(py: Python<'_>, program: &OsStr, argument: &str) -> PyResult<()> {
    let bytes = program.as_bytes();
    if bytes.is_empty() {
        return Err(wrong_value(&argument, "must not be empty; it names the program"));
    }
    if bytes.contains(&b'/') && bytes[0] != b'/' {
        let reason = home_advice(program).unwrap_or_else(|| {
            format!(
                "a relative path depends on the working directory; pass an absolute path, \
                 os.path.abspath({program:?}) or os.path.join(cwd, {program:?}), or a name without a slash, which is \
                 searched in PATH"
            )
        });
        return Err(Failure {
            errno: Errno::EINVAL,
            stage: Stage::Validate.name(),
            action: None,
            file: Some(program),
            call: &format!("template({program:?})"),
            message: reason.as_str().into(),
            reason: Some(&reason),
        }
        .exception(py));
    }
    Ok(())
}
