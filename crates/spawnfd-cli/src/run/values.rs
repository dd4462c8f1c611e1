// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parsers for the values of flags.
//!
//! Each error message states the expected form. A message that begins with `must` is printed after the flag's name.

use std::time::Duration;

pub use spawnfd::internal::size;
use spawnfd::job::TerminalSize;

/// Parses a duration: seconds, or a number with ms, s, m or h.
pub fn duration(text: &str) -> Result<Duration, String> {
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

/// Parses a duration above 0.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("must be > 0".to_owned()) } else { Ok(time) })
}

/// Parses a number of bytes, at least 1.
pub fn positive_size(text: &str) -> Result<u64, String> {
    size(text).and_then(|size| if size == 0 { Err("must be > 0".to_owned()) } else { Ok(size) })
}

/// Parses a whole number, at least 1.
pub fn count(text: &str) -> Result<u64, String> {
    let count = text.parse::<u64>().ok().filter(|&count| count > 0);
    count.ok_or_else(|| "must be a whole number > 0".to_owned())
}

/// Parses a number of processors, in the library's range. The kernel's smallest quota is 1 ms in a
/// period of 100 ms.
pub fn processors(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.01..=1e6).contains(number));
    number.ok_or_else(|| "must be a number from 0.01 to 1000000".to_owned())
}

/// Parses two sizes in bytes: `HEAD[:TAIL]`. TAIL defaults to HEAD. The word `all` keeps all bytes.
pub fn keep(text: &str) -> Result<(usize, usize), String> {
    if text == "all" {
        return Ok((usize::MAX, 0));
    }
    let (head, tail) = text.split_once(':').unwrap_or((text, text));
    let bytes = |text| usize::try_from(size(text)?).map_err(|_| format!("'{text}' is too large"));
    Ok((bytes(head)?, bytes(tail)?))
}

/// Parses the size of a terminal: `COLSxROWS`.
pub fn terminal(text: &str) -> Result<TerminalSize, String> {
    let size = text
        .split_once('x')
        .and_then(|(columns, rows)| Some(TerminalSize::new(rows.parse().ok()?, columns.parse().ok()?)));
    size.ok_or_else(|| "must be COLSxROWS, each up to 65535, as in 80x24".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_values_are_parsed() {
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(keep("1k:0"), Ok((1024, 0)));
        assert_eq!(keep("all"), Ok((usize::MAX, 0)));
    }

    #[test]
    fn invalid_values_are_rejected() {
        assert!(duration("-1").is_err() && duration("inf").is_err() && duration("NaN").is_err());
        assert_eq!(duration("-1").unwrap_err(), "must be >= 0");
        assert!(positive_duration("0").is_err() && positive_size("0").is_err());
        assert!(count("0").is_err() && count("1.5").is_err() && processors("0").is_err() && processors("inf").is_err());
    }
}
