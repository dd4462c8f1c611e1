// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's answer to a query: a value or an errno. The recorded state includes the errno, because a process can
//! observe it too.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use syscalls::Errno;

/// A value, or the errno with which the kernel refused the query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer<T> {
    /// The kernel refused.
    Refused(Refusal),
    /// The kernel answered.
    Known(T),
}

/// A refused query. Its JSON form is `{"errno": "EPERM"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Refusal {
    /// Name of the errno, or its number if it has no name.
    pub errno: String,
}

/// Parses the JSON form. serde converts from a map, because a derived `Deserialize` would also accept a list of one
/// string.
impl TryFrom<BTreeMap<String, String>> for Refusal {
    type Error = &'static str;

    fn try_from(mut map: BTreeMap<String, String>) -> Result<Self, Self::Error> {
        match map.remove("errno") {
            Some(errno) if map.is_empty() => Ok(Self { errno }),
            _ => Err("not an errno"),
        }
    }
}

impl<T> Answer<T> {
    /// The value, if there is one.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Refused(_) => None,
        }
    }

    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Known(value) => Answer::Known(f(value)),
            Self::Refused(refusal) => Answer::Refused(refusal),
        }
    }
}

impl<T> From<Result<T, Errno>> for Answer<T> {
    fn from(result: Result<T, Errno>) -> Self {
        result.map_or_else(
            |errno| {
                let errno = errno.name().map_or_else(|| errno.into_raw().to_string(), str::to_owned);
                Self::Refused(Refusal { errno })
            },
            Self::Known,
        )
    }
}

impl<T> From<io::Result<T>> for Answer<T> {
    fn from(result: io::Result<T>) -> Self {
        result.map_err(|error| Errno::new(error.raw_os_error().unwrap_or(libc::EIO))).into()
    }
}

/// Bytes as text: UTF-8 unchanged, anything else escaped with the prefix `bytes:`.
pub(super) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with("bytes:") => text.to_owned(),
        _ => format!("bytes:{}", bytes.escape_ascii()),
    }
}

/// Splits NUL-terminated strings, as in /proc/PID/cmdline. The last string may lack its NUL.
pub(super) fn strings(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if bytes.is_empty() { Vec::new() } else { bytes.split(|byte| *byte == 0).map(text).collect() }
}
