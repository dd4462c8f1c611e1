// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of runs.

use core::ffi::{c_char, c_int};
use core::ptr;
use std::ffi::CString;
use std::sync::Arc;

use serde_json::Value;
use spawnfd::Output;
use spawnfd::job::Stream;

use super::error::{Answer, Failed, answer, name, object};
use super::spawnfd_error;

/// The result of a run, which never changes.
#[derive(Debug)]
pub struct spawnfd_result {
    /// The output without its streams.
    output: Output,
    /// Standard output and error, each with a NUL character at its end.
    streams: [Vec<u8>; 2],
    /// The fields of the serialized output. Each text has a NUL character at its end.
    fields: Value,
    reason: Option<CString>,
}

impl spawnfd_result {
    /// The members are complete from the beginning, so that a forked process never finds one half-made.
    pub(super) fn create(output: Arc<Output>) -> *mut spawnfd_result {
        let mut output = Arc::unwrap_or_clone(output);
        // The pieces of a combined output are parts of its streams.
        let combined = output.pieces().is_some().then(|| serde_json::to_value(&output));
        let streams = [&mut output.stdout, &mut output.stderr].map(|stream| {
            let mut bytes = std::mem::take(stream);
            bytes.reserve_exact(1);
            bytes.push(0);
            bytes
        });
        let mut fields = combined.unwrap_or_else(|| serde_json::to_value(&output)).unwrap_or_default();
        terminate(&mut fields);
        let reason = output.reason().and_then(|reason| CString::new(reason).ok());
        Box::into_raw(Box::new(spawnfd_result { output, streams, fields, reason }))
    }

    /// The output with its streams.
    fn whole(&self) -> Output {
        let [stdout, stderr] = self.streams.each_ref().map(|stream| stream[..stream.len() - 1].to_vec());
        let mut whole = self.output.clone();
        (whole.stdout, whole.stderr) = (stdout, stderr);
        whole
    }

    fn field(&self, name: &str) -> Answer<&Value> {
        let found = self.fields.pointer(&format!("/{name}")).filter(|value| !value.is_null());
        found.ok_or_else(|| Failed::new(libc::ENODATA, format!("the result has no value for {name:?}")))
    }
}

/// Adds a NUL character to each text.
fn terminate(value: &mut Value) {
    match value {
        Value::String(text) => text.push('\0'),
        Value::Array(values) => values.iter_mut().for_each(terminate),
        Value::Object(fields) => fields.values_mut().for_each(terminate),
        _ => {}
    }
}

/// Frees a result and its texts. NULL has no effect.
///
/// # Safety
/// `result` is NULL or a result that no thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_result_free(result: *mut spawnfd_result) {
    if !result.is_null() {
        // SAFETY: the caller guarantees the pointer, which is from `spawnfd_result::create`.
        drop(unsafe { Box::from_raw(result) });
    }
}

/// Returns 1 if the program exited by itself with code 0, and 0 otherwise or if `result` is NULL.
///
/// # Safety
/// `result` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_result_ok(result: *const spawnfd_result) -> c_int {
    // SAFETY: the caller guarantees the pointer.
    unsafe { result.as_ref() }.is_some_and(|result| result.output.ok()).into()
}

/// Stores a number of the result, such as `code`, `signal` or `wall_seconds`.
///
/// The names are the keys that `spawnfd run --json` prints; a slash leads to a member, as in `omitted/stdout/bytes`. The
/// value of a flag is 0 or 1, and that of a list is the number of its elements.
///
/// # Errors
/// Returns -1 and sets errno. ENODATA: the result has no value of this name, such as `code` after a signal. EINVAL: the
/// value is text.
///
/// # Safety
/// `result` is NULL or valid. `name` is NULL or a string. `number` is NULL or valid for a write. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_result_number(
    result: *const spawnfd_result,
    name: *const c_char,
    number: *mut f64,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, -1, || {
            let (result, name) = (object(result, "result")?, self::name(name, "name")?);
            let number = number.as_mut().ok_or_else(|| Failed::invalid("number must not be NULL"))?;
            *number = match result.field(name)? {
                Value::Bool(flag) => f64::from(*flag),
                Value::Array(values) => values.len() as f64,
                Value::Object(fields) => fields.len() as f64,
                value => value.as_f64().ok_or_else(|| Failed::invalid(format!("{name} is text, not a number")))?,
            };
            Ok(0)
        })
    }
}

/// Returns a text of the result, such as `stdout`, `stderr`, `stop` or `tree`, and stores its length in bytes.
///
/// The names are those of `spawnfd_result_number`. A NUL character follows the text. `stdout` and `stderr` have the bytes
/// that the program wrote, which may include NUL characters. `length` may be NULL. The text is valid until the free of the
/// result.
///
/// # Errors
/// Returns NULL and sets errno. ENODATA: the result has no value of this name. EINVAL: the value is a number or a list.
///
/// # Safety
/// `result` is NULL or valid. `name` is NULL or a string. `length` is NULL or valid for a write. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_result_text(
    result: *const spawnfd_result,
    name: *const c_char,
    length: *mut usize,
    error: *mut spawnfd_error,
) -> *const c_char {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, ptr::null(), || {
            let (result, name) = (object(result, "result")?, self::name(name, "name")?);
            let text = match Stream::ALL.into_iter().find(|stream| stream.name() == name) {
                Some(stream) => &result.streams[stream.index()][..],
                None => match result.field(name)? {
                    Value::String(text) => text.as_bytes(),
                    _ => return Err(Failed::invalid(format!("{name} is not text"))),
                },
            };
            if let Some(length) = length.as_mut() {
                *length = text.len() - 1;
            }
            Ok(text.as_ptr().cast())
        })
    }
}

/// Returns why the library ended the run, such as `timed out after 0.2 s`; NULL if the run ended by itself.
///
/// The text is valid until the free of the result.
///
/// # Safety
/// `result` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_result_reason(result: *const spawnfd_result) -> *const c_char {
    // SAFETY: the caller guarantees the pointer.
    let reason = unsafe { result.as_ref() }.and_then(|result| result.reason.as_ref());
    reason.map_or(ptr::null(), |reason| reason.as_ptr())
}

/// Returns the whole result as JSON, as `spawnfd run --json` prints it. The caller frees the string with free(3).
///
/// # Errors
/// Returns NULL and sets errno. ENOMEM.
///
/// # Safety
/// `result` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_result_json(result: *const spawnfd_result, error: *mut spawnfd_error) -> *mut c_char {
    // SAFETY: the caller guarantees the pointers. The copy has the length of the text, and a NUL character.
    unsafe {
        answer(error, ptr::null_mut(), || {
            let json = serde_json::to_string(&object(result, "result")?.whole());
            let json = json.map_err(|error| Failed::new(libc::EIO, error.to_string()))?;
            let copy = libc::malloc(json.len() + 1).cast::<u8>();
            if copy.is_null() {
                return Err(Failed::new(libc::ENOMEM, "no memory for the JSON text"));
            }
            ptr::copy_nonoverlapping(json.as_ptr(), copy, json.len());
            copy.add(json.len()).write(0);
            Ok(copy.cast())
        })
    }
}
