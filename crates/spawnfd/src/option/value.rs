// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of options, independent of the language of the caller.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::bytes::SharedBytes;

/// A word that an option accepts, and its meaning.
pub type Word = (&'static str, &'static str);

/// The type of an option's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// True or false.
    Flag,
    /// A whole number.
    Count,
    /// A number of bytes.
    Bytes,
    /// A number.
    Number,
    /// A duration.
    Duration,
    /// Text in UTF-8.
    Text,
    /// A path.
    Path,
    /// Bytes, such as a program's input.
    Data,
    /// Two numbers of bytes: of the beginning and of the end. Or the word `all`.
    HeadTail,
    /// The rows and columns of a terminal.
    TerminalSize,
    /// One of these words.
    Word(&'static [Word]),
    /// One of these words, or a descriptor.
    Stream(&'static [Word]),
    /// An object that has no text, such as a [`Limiter`](crate::limits::Limiter).
    Object,
}

/// The value of an option.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Value {
    /// No value: no timeout, no limit.
    #[default]
    None,
    /// A flag.
    Bool(bool),
    /// A whole number, or a number of bytes.
    Integer(u64),
    /// A number.
    Number(f64),
    /// A duration.
    Duration(Duration),
    /// Text, a word or a path.
    Text(OsString),
    /// Bytes.
    #[cfg_attr(feature = "serde", serde(skip))]
    Bytes(SharedBytes),
    /// Two numbers. Of a terminal: rows and columns.
    Pair(u64, u64),
}

impl Value {
    /// The duration, if the value is one.
    pub fn as_duration(&self) -> Option<Duration> {
        if let Value::Duration(time) = self { Some(*time) } else { None }
    }

    /// The number, if the value is a whole one.
    pub fn as_integer(&self) -> Option<u64> {
        if let Value::Integer(number) = self { Some(*number) } else { None }
    }

    /// The text that [`Kind::parse`] reads as this value of an option of the type `kind`; `None` if there is no value.
    #[cfg(feature = "remote")]
    pub(crate) fn to_text(&self, kind: Kind) -> Option<OsString> {
        Some(match self {
            Value::None | Value::Bytes(_) => return None,
            Value::Bool(value) => value.to_string().into(),
            Value::Integer(number) => number.to_string().into(),
            Value::Number(number) => number.to_string().into(),
            Value::Duration(time) => format!("{}.{:09}", time.as_secs(), time.subsec_nanos()).into(),
            Value::Text(text) => text.clone(),
            Value::Pair(rows, columns) if kind == Kind::TerminalSize => format!("{columns}x{rows}").into(),
            Value::Pair(head, _) if *head == usize::MAX as u64 => "all".into(),
            Value::Pair(head, tail) => format!("{head}:{tail}").into(),
        })
    }

    /// Whether there is no value.
    pub fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl fmt::Display for Value {
    /// Prints the value as [`Kind::parse`] reads it. Text is quoted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("none"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Integer(number) => write!(f, "{number}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Duration(time) => write!(f, "{time:?}"),
            Value::Text(text) => write!(f, "{:?}", text.to_string_lossy()),
            Value::Bytes(bytes) => write!(f, "{} bytes", bytes.as_bytes().len()),
            Value::Pair(first, second) => write!(f, "{first}:{second}"),
        }
    }
}

impl Kind {
    /// The placeholder of the value in a usage text.
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Flag => "BOOL",
            Kind::Count | Kind::Number => "NUMBER",
            Kind::Bytes => "BYTES",
            Kind::Duration => "TIME",
            Kind::Text | Kind::Data => "TEXT",
            Kind::Path => "DIR",
            Kind::HeadTail => "HEAD[:TAIL]",
            Kind::TerminalSize => "COLSxROWS",
            Kind::Word(_) | Kind::Stream(_) => "WORD",
            Kind::Object => "OBJECT",
        }
    }

    /// Parses text, as a command line or a C program has it.
    ///
    /// - A duration: seconds, or a number with `ms`, `s`, `m` or `h`.
    /// - A number of bytes, with or without `K`, `M`, `G` or `T` (powers of 1024).
    /// - Head and tail: `HEAD:TAIL`, one number for both, or `all`.
    /// - The size of a terminal: `COLUMNSxROWS`.
    /// - A flag: `true` or `false`.
    ///
    /// # Errors
    /// The reason, which continues the option's name: `must be >= 0`.
    pub fn parse(self, text: &OsStr) -> Result<Value, String> {
        if matches!(self, Kind::Path) {
            return Ok(Value::Text(text.to_owned()));
        }
        let text = text.to_str().ok_or("must be valid UTF-8")?;
        match self {
            Kind::Flag => match text {
                "true" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                _ => Err("must be true or false".to_owned()),
            },
            Kind::Count => {
                let number = text.parse().map_err(|_| "must be a whole number >= 0")?;
                Ok(Value::Integer(number))
            }
            Kind::Bytes => bytes(text).map(Value::Integer),
            Kind::Number => text.parse().map(Value::Number).map_err(|_| "must be a number".to_owned()),
            Kind::Duration => duration(text).map(Value::Duration),
            Kind::Data => Ok(Value::Bytes(text.as_bytes().to_vec().into())),
            Kind::HeadTail if text == "all" => Ok(Value::from(text)),
            Kind::HeadTail => {
                let (head, tail) = text.split_once([':', ',']).unwrap_or((text, text));
                Ok(Value::Pair(bytes(head)?, bytes(tail)?))
            }
            Kind::TerminalSize => {
                let size = text
                    .split_once('x')
                    .and_then(|(columns, rows)| Some((rows.parse::<u16>().ok()?, columns.parse::<u16>().ok()?)));
                let (rows, columns) = size.ok_or("must be COLSxROWS, each up to 65535, as in 80x24")?;
                Ok(Value::Pair(rows.into(), columns.into()))
            }
            Kind::Text | Kind::Path | Kind::Word(_) | Kind::Stream(_) | Kind::Object => Ok(Value::from(text)),
        }
    }
}

/// Parses a number of bytes, with K, M, G or T (powers of 1024).
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = unscaled(text);
    let number = digits.parse().map_err(|_| "must be a number of bytes, or a number with K, M, G or T")?;
    scaled(number, shift).ok_or_else(|| "must be less than 2^64 bytes".to_owned())
}

/// Returns a number without its K, M, G or T, and the power of 2 that this letter stands for.
pub(crate) fn unscaled(text: &str) -> (&str, u32) {
    let letter =
        text.char_indices().last().and_then(|(at, letter)| Some((at, "KMGT".find(letter.to_ascii_uppercase())?)));
    letter.map_or((text, 0), |(at, place)| (&text[..at], 10 * (place as u32 + 1)))
}

/// Multiplies a number by a power of 2; `None` if the result is too large.
pub(crate) fn scaled(number: u64, shift: u32) -> Option<u64> {
    number.checked_mul(1 << shift).filter(|&amount| amount < u64::MAX)
}

/// Parses a duration: seconds, or a number with ms, s, m or h.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = unit.unwrap_or((text, 1.0));
    let seconds = digits.parse::<f64>().ok().map(|number| number * factor);
    if seconds.is_some_and(|seconds| seconds < 0.0) {
        return Err("must be >= 0".to_owned());
    }
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "must be a number of seconds, or a number with ms, s, m or h".to_owned())
}

/// The type of a field that has an option's value.
pub(crate) trait OptionValue: Sized {
    /// Whether `Value::None` is a value.
    const OPTIONAL: bool = false;

    /// Converts a value. The error is the reason, such as `must be true or false`.
    fn from_value(value: &Value) -> Result<Self, String>;

    fn to_value(&self) -> Value;
}

macro_rules! impl_option_value {
    ($($type:ty, $must:literal, $given:pat => $from:expr, $this:ident => $to:expr;)+) => { $(
        impl OptionValue for $type {
            fn from_value(value: &Value) -> Result<Self, String> {
                let given = match value { $given => $from, _ => None };
                given.ok_or_else(|| $must.to_owned())
            }

            fn to_value(&self) -> Value {
                let $this = self;
                $to
            }
        }
    )+ };
}

impl_option_value! {
    bool, "must be true or false", Value::Bool(given) => Some(*given), this => Value::Bool(*this);
    u64, "must be a whole number", Value::Integer(given) => Some(*given), this => Value::Integer(*this);
    usize, "must be a number of bytes that fits in memory",
        Value::Integer(given) => usize::try_from(*given).ok(), this => Value::Integer(*this as u64);
    Duration, "must be a duration", Value::Duration(given) => Some(*given), this => Value::Duration(*this);
    String, "must be text in UTF-8", Value::Text(given) => given.to_str().map(str::to_owned), this => Value::from(&**this);
    PathBuf, "must be a path", Value::Text(given) => Some(given.into()), this => Value::Text(this.into());
    SharedBytes, "must be bytes", Value::Bytes(given) => Some(given.clone()), this => Value::Bytes(this.clone());
}

impl OptionValue for f64 {
    fn from_value(value: &Value) -> Result<f64, String> {
        match value {
            Value::Number(number) => Ok(*number),
            Value::Integer(number) => Ok(*number as f64),
            _ => Err("must be a number".to_owned()),
        }
    }

    fn to_value(&self) -> Value {
        Value::Number(*self)
    }
}

/// Head and tail.
impl OptionValue for (usize, usize) {
    fn from_value(value: &Value) -> Result<(usize, usize), String> {
        let both = match value {
            Value::Text(word) if word == "all" => Some((usize::MAX, 0)),
            Value::Pair(head, tail) => usize::try_from(*head).ok().zip(usize::try_from(*tail).ok()),
            _ => None,
        };
        both.ok_or_else(|| "must be two numbers of bytes, or \"all\"".to_owned())
    }

    fn to_value(&self) -> Value {
        Value::Pair(self.0 as u64, self.1 as u64)
    }
}

/// Whether a field accepts `Value::None`. The function only names the field.
pub(crate) const fn is_optional<O, T: OptionValue>(_field: fn(O) -> T) -> bool {
    T::OPTIONAL
}

impl<T: OptionValue> OptionValue for Option<T> {
    const OPTIONAL: bool = true;

    fn from_value(value: &Value) -> Result<Option<T>, String> {
        if matches!(value, Value::None) { Ok(None) } else { T::from_value(value).map(Some) }
    }

    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::None, T::to_value)
    }
}

/// Converts a word. `all` has the words and what they stand for.
pub(crate) fn word<T: Copy>(value: &Value, all: impl Iterator<Item = (&'static str, T)> + Clone) -> Result<T, String> {
    let found = match value {
        Value::Text(text) => all.clone().find(|(word, _)| text == word),
        _ => None,
    };
    found.map(|(_, meaning)| meaning).ok_or_else(|| {
        let all: Vec<String> = all.map(|(word, _)| format!("{word:?}")).collect();
        format!("must be one of {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: Kind, text: &str) -> Result<String, String> {
        kind.parse(text.as_ref()).map(|value| value.to_string())
    }

    #[test]
    fn valid_text_is_parsed() {
        for (kind, text, expected) in [
            (Kind::Duration, "1.5", "1.5s"),
            (Kind::Duration, "250ms", "250ms"),
            (Kind::Duration, "2m", "120s"),
            (Kind::Bytes, "1k", "1024"),
            (Kind::Bytes, "7", "7"),
            (Kind::HeadTail, "1K:0", "1024:0"),
            (Kind::HeadTail, "1,2", "1:2"),
            (Kind::HeadTail, "5", "5:5"),
            (Kind::HeadTail, "all", "\"all\""),
            (Kind::TerminalSize, "80x24", "24:80"),
            (Kind::Flag, "true", "true"),
            (Kind::Number, "1.5", "1.5"),
        ] {
            assert_eq!(shown(kind, text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn wrong_text_is_refused() {
        for (kind, wrong) in [
            (Kind::Duration, &["-1", "inf", "NaN", "x", "", "1d"][..]),
            (Kind::Bytes, &["-1", "99999999999T", "1.5", "", "K"]),
            (Kind::Count, &["-1", "1K", ""]),
            (Kind::HeadTail, &["1:", "some"]),
            (Kind::TerminalSize, &["80", "80x", "80x70000"]),
            (Kind::Flag, &["yes", ""]),
            (Kind::Number, &["x"]),
        ] {
            for text in wrong {
                assert!(shown(kind, text).unwrap_err().starts_with("must be "), "{text}");
            }
        }
        assert_eq!(shown(Kind::Duration, "-1"), Err("must be >= 0".to_owned()));
    }
}
