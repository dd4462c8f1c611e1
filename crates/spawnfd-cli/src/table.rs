// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats tables of text, durations and sizes for readers.

use std::time::Duration;

/// Aligns rows in columns. The last cell of a row is not padded.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter(|row| row.len() > column + 1).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let padding = if column + 1 < row.len() { widths[column] + 2 } else { 0 };
            line.push_str(&format!("{cell:padding$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats a duration with about three digits: `48.2 ms`, `310 us`, `2.51 s`.
pub fn duration(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..1_000.0 => format!("{micros:.0} us"),
        ..10_000.0 => format!("{:.2} ms", micros / 1e3),
        ..1_000_000.0 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

/// Formats a size in binary units.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "bcd".to_owned()], vec!["long".to_owned(), "e".to_owned()]];
        assert_eq!(align(&rows), "a     bcd\nlong  e\n");
    }

    #[test]
    fn durations_and_sizes_have_units() {
        assert_eq!(duration(Duration::from_micros(310)), "310 us");
        assert_eq!(duration(Duration::from_micros(48_210)), "48.2 ms");
        assert_eq!(duration(Duration::from_millis(2_510)), "2.51 s");
        assert_eq!((size(900), size(3 << 20)), ("900 B".to_owned(), "3.0 MiB".to_owned()));
    }
}
