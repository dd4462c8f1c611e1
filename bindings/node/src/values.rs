// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts JavaScript values to those of the core's table of options.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use napi::ValueType;
use napi::bindgen_prelude::*;
use spawnfd::options::{Kind, Value};

use crate::errors::wrong;

/// The largest integer that a JavaScript number has exactly.
const MAX_INTEGER: f64 = 9_007_199_254_740_991.0;

/// Converts the value of an option. `undefined` is handled by the caller.
pub fn option_value(kind: Kind, name: &str, value: Unknown<'_>) -> Result<Value> {
    if is_absent(&value)? {
        return Ok(Value::None);
    }
    Ok(match kind {
        Kind::Flag => Value::Bool(typed(&value, ValueType::Boolean, name, "true or false")?),
        Kind::Count | Kind::Bytes => Value::Integer(integer(&value, name)?),
        Kind::Number => Value::Number(typed(&value, ValueType::Number, name, "a number")?),
        Kind::Duration => Value::Duration(duration(&value, name)?),
        Kind::Data => Value::Bytes(data(&value, name)?.into()),
        Kind::HeadTail if value.get_type()? == ValueType::Object => {
            let (head, tail) = pair(&value, name, "an array of two numbers (bytes of head and of tail), or \"all\"")?;
            Value::Pair(head, tail)
        }
        Kind::TerminalSize => {
            let object = object(&value, name, "an object with rows and columns")?;
            let side = |side: &str| match object.get::<Unknown<'_>>(side)? {
                Some(value) => integer(&value, &format!("{name}.{side}")),
                None => Err(wrong(format!("{name} must have {side}"))),
            };
            Value::Pair(side("rows")?, side("columns")?)
        }
        Kind::Path => Value::Text(os_string(&value, name)?),
        Kind::Object => return Err(wrong(format!("{name} must be an object"))),
        _ => Value::Text(typed::<String>(&value, ValueType::String, name, "a string")?.into()),
    })
}

pub fn is_absent(value: &Unknown<'_>) -> Result<bool> {
    Ok(matches!(value.get_type()?, ValueType::Undefined | ValueType::Null))
}

/// Whether a value is this string.
pub fn is_text(value: &Unknown<'_>, text: &str) -> Result<bool> {
    Ok(value.get_type()? == ValueType::String && typed::<String>(value, ValueType::String, "", "")? == text)
}

/// Converts a value of a primitive type.
pub fn typed<T: FromNapiValue>(value: &Unknown<'_>, of: ValueType, name: &str, expected: &str) -> Result<T> {
    if value.get_type()? != of {
        return Err(wrong(format!("{name} must be {expected}, got {}", shown(value))));
    }
    // SAFETY: the value has the type.
    unsafe { value.cast() }
}

pub fn object<'env>(value: &Unknown<'env>, name: &str, expected: &str) -> Result<Object<'env>> {
    typed(value, ValueType::Object, name, expected)
}

/// Converts an object of a native class.
pub fn instance<'env, T>(value: &Unknown<'env>, name: &str, class: &str) -> Result<ClassInstance<'env, T>>
where
    ClassInstance<'env, T>: FromNapiValue,
{
    // SAFETY: the conversion checks the class.
    unsafe { value.cast() }.map_err(|_| wrong(format!("{name} must be a {class}, got {}", shown(value))))
}

/// Converts an array of strings.
pub fn strings(value: &Unknown<'_>, name: &str) -> Result<Vec<OsString>> {
    let items = items(value, name, "an array of strings")?;
    items.iter().enumerate().map(|(index, item)| os_string(item, &format!("{name}[{index}]"))).collect()
}

/// Converts a whole number.
pub fn integer(value: &Unknown<'_>, name: &str) -> Result<u64> {
    let number: f64 = typed(value, ValueType::Number, name, "a whole number")?;
    if number.fract() != 0.0 || !(0.0..=MAX_INTEGER).contains(&number) {
        return Err(wrong(format!("{name} must be a whole number >= 0, got {number}")));
    }
    Ok(number as u64)
}

/// Converts a number of milliseconds. Infinity is no end.
pub fn duration(value: &Unknown<'_>, name: &str) -> Result<Duration> {
    let number: f64 = typed(value, ValueType::Number, name, "a number of milliseconds")?;
    if number.is_nan() || number < 0.0 {
        return Err(wrong(format!("{name} must be a number of milliseconds >= 0, got {number}")));
    }
    Ok(Duration::try_from_secs_f64(number / 1000.0).unwrap_or(Duration::MAX))
}

/// The items of an array.
pub fn items<'env>(value: &Unknown<'env>, name: &str, expected: &str) -> Result<Vec<Unknown<'env>>> {
    if !value.is_array()? {
        return Err(wrong(format!("{name} must be {expected}, got {}", shown(value))));
    }
    // SAFETY: the value is an array.
    let items: Array<'_> = unsafe { value.cast()? };
    (0..items.len()).filter_map(|index| items.get(index).transpose()).collect()
}

fn pair(value: &Unknown<'_>, name: &str, expected: &str) -> Result<(u64, u64)> {
    match &items(value, name, expected)?[..] {
        [first, second] => Ok((integer(first, &format!("{name}[0]"))?, integer(second, &format!("{name}[1]"))?)),
        _ => Err(wrong(format!("{name} must be {expected}, got {}", shown(value)))),
    }
}

/// Converts a string or the bytes of a Uint8Array.
pub fn data(value: &Unknown<'_>, name: &str) -> Result<Vec<u8>> {
    if value.get_type()? == ValueType::String {
        return typed::<String>(value, ValueType::String, name, "a string").map(String::into_bytes);
    }
    if !value.is_typedarray()? {
        return Err(wrong(format!("{name} must be a string or a Uint8Array, got {}", shown(value))));
    }
    // SAFETY: the value is a typed array; any other than of bytes is an error.
    let bytes: Uint8Array = unsafe { value.cast() }.map_err(|_| wrong(format!("{name} must be a Uint8Array")))?;
    Ok(bytes.to_vec())
}

/// Converts a string or bytes to text of the operating system.
pub fn os_string(value: &Unknown<'_>, name: &str) -> Result<OsString> {
    match data(value, name)? {
        bytes if bytes.contains(&0) => Err(wrong(format!("{name} must not contain a NUL byte"))),
        bytes => Ok(OsString::from_vec(bytes)),
    }
}

/// Describes a value in an error text.
fn shown(value: &Unknown<'_>) -> String {
    match value.get_type() {
        Ok(ValueType::String | ValueType::Number | ValueType::Boolean | ValueType::Null | ValueType::Undefined) => {
            let text = value.coerce_to_string().and_then(|text| text.into_utf8());
            let text = text.and_then(|text| text.into_owned()).unwrap_or_default();
            if matches!(value.get_type(), Ok(ValueType::String)) { format!("{text:?}") } else { text }
        }
        Ok(other) => format!("a value of type {}", other.to_string().to_lowercase()),
        Err(_) => "another value".to_owned(),
    }
}
