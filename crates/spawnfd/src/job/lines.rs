// SPDX-License-Identifier: MIT OR Apache-2.0
//! Splits bytes that arrive in chunks into lines.

use std::io::BufRead;

use super::text::incomplete_len;

/// The way in which a line ends.
///
/// # Examples
/// ```
/// use spawnfd::job::{Event, EventOptions};
/// use spawnfd::{Command, Run};
/// let options = EventOptions::new().lines(1000);
/// let (job, mut events) = Command::new("printf").arg("one\\r\\ntwo").start_events(&Run::new(), options)?;
/// job.wait()?;
/// let mut text = Vec::new();
/// while let Some(Event::Line { bytes, end, .. }) = events.try_next() {
///     text.extend([&bytes, end.as_bytes()].concat());
/// }
/// assert_eq!(text, b"one\r\ntwo"); // the bytes that the program wrote
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum LineEnd {
    /// The line ends with `\n`.
    Lf,
    /// The line ends with `\r\n`.
    CrLf,
    /// The line exceeds the maximum length, or is [flushed](super::Events::flush_lines). The next line continues it.
    Split,
    /// The line has no terminator: the output ends with this line, or the bytes after it were lost.
    Open,
}

impl LineEnd {
    /// The line's terminator in the output.
    pub fn as_bytes(self) -> &'static [u8] {
        match self {
            LineEnd::Lf => b"\n",
            LineEnd::CrLf => b"\r\n",
            LineEnd::Split | LineEnd::Open => b"",
        }
    }
}

/// One line, without its terminator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// The position of the line's first byte: the number of bytes of output before it. For a later piece of a
    /// split line the position is a lower bound.
    pub position: u64,
    /// The bytes. Decoding line by line gives the same text as decoding the whole output.
    pub bytes: &'a [u8],
    /// How the line ends.
    pub end: LineEnd,
}

/// Splits one stream into lines. The lines do not depend on how the bytes are split into chunks.
///
/// A line ends with `\n` or `\r\n`. A `\r` elsewhere (a progress bar) is part of the line. A line that exceeds the
/// maximum length is split into several, between characters.
#[derive(Clone, Debug)]
pub struct Lines {
    max: usize,
    /// The bytes after the last line end. They are at most `max`, and one more if the last is a `\r`: the next byte
    /// may be the `\n` of this line end.
    incomplete: Vec<u8>,
    /// The position of the first byte of `incomplete`.
    position: u64,
}

impl Lines {
    /// Creates a splitter for lines of at most `max` bytes. The longest character has 4, so a lower `max` counts as 4.
    pub fn new(max: usize) -> Lines {
        Lines { max: max.max(4), incomplete: Vec::new(), position: 0 }
    }

    /// The maximum length of a line, in bytes.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes the stream's next bytes, which begin at `position`. Calls `each` for each line that ends in these bytes.
    pub fn take(&mut self, position: u64, bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        let mut at = 0;
        if !self.incomplete.is_empty() {
            let older = self.incomplete.len();
            at = after_newline(bytes).unwrap_or(bytes.len());
            self.incomplete.extend_from_slice(&bytes[..at]);
            let position_of = |index: usize| match index.checked_sub(older) {
                Some(index) => position + index as u64,
                None => self.position + index as u64,
            };
            let done = emit_complete(self.max, &self.incomplete, position_of, &mut each);
            self.position = position_of(done);
            self.incomplete.drain(..done);
        }
        while let Some(length) = after_newline(&bytes[at..]) {
            let start = at;
            emit_complete(self.max, &bytes[at..at + length], |index| position + (start + index) as u64, &mut each);
            at += length;
        }
        if at < bytes.len() {
            let position_of = |index: usize| position + (at + index) as u64;
            let done = emit_complete(self.max, &bytes[at..], position_of, &mut each);
            self.position = position_of(done);
            self.incomplete.extend_from_slice(&bytes[at + done..]);
        }
    }

    /// The number of bytes that [`flush`](Lines::flush) emits.
    pub fn open_len(&self) -> usize {
        let certain = self.incomplete.strip_suffix(b"\r").unwrap_or(&self.incomplete);
        certain.len() - incomplete_len(certain)
    }

    /// Emits the first piece of the incomplete last line, if there is one. Keeps an incomplete character, and a `\r` that
    /// may be part of a terminator.
    pub fn flush(&mut self, mut each: impl FnMut(Line<'_>)) {
        let length = self.open_len();
        if length > 0 {
            let position = self.position;
            emit_line(self.max, &self.incomplete[..length], LineEnd::Split, |at| position + at as u64, &mut each);
            self.incomplete.drain(..length);
            self.position += length as u64;
        }
    }

    /// Emits the incomplete last line, if there is one. The splitter can then be used again.
    pub fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        let (position, incomplete) = (self.position, std::mem::take(&mut self.incomplete));
        if !incomplete.is_empty() {
            emit_line(self.max, &incomplete, LineEnd::Open, |index| position + index as u64, &mut each);
        }
    }
}

/// The length of the first line, including its newline; `None` if there is no newline.
fn after_newline(mut bytes: &[u8]) -> Option<usize> {
    let all = bytes;
    // `skip_until` uses std's memchr. Reading from a slice cannot fail.
    let length = bytes.skip_until(b'\n').unwrap_or(0);
    all[..length].ends_with(b"\n").then_some(length)
}

/// Emits the complete line, or the complete pieces of a line that is too long. `bytes` has at most one newline, at
/// its end. Returns the number of bytes emitted.
fn emit_complete(
    max: usize,
    bytes: &[u8],
    position_of: impl Fn(usize) -> u64,
    each: &mut impl FnMut(Line<'_>),
) -> usize {
    if let Some(line) = bytes.strip_suffix(b"\n") {
        let (line, end) = match line.strip_suffix(b"\r") {
            Some(line) => (line, LineEnd::CrLf),
            None => (line, LineEnd::Lf),
        };
        emit_line(max, line, end, position_of, each);
        return bytes.len();
    }
    // A `\r` at the end may be part of a terminator whose `\n` has not arrived yet.
    let certain = bytes.strip_suffix(b"\r").unwrap_or(bytes).len();
    let mut at = 0;
    while certain - at > max {
        at += emit_piece(max, &bytes[at..], position_of(at), each);
    }
    at
}

/// Emits a complete line, in pieces if it is too long.
fn emit_line(
    max: usize,
    line: &[u8],
    end: LineEnd,
    position_of: impl Fn(usize) -> u64,
    each: &mut impl FnMut(Line<'_>),
) {
    let mut at = 0;
    while line.len() - at > max {
        at += emit_piece(max, &line[at..], position_of(at), each);
    }
    each(Line { position: position_of(at), bytes: &line[at..], end });
}

/// Emits one piece of a line that is too long. The piece ends between characters. Returns its length.
fn emit_piece(max: usize, line: &[u8], position: u64, each: &mut impl FnMut(Line<'_>)) -> usize {
    let length = max - incomplete_len(&line[..max]);
    each(Line { position, bytes: &line[..length], end: LineEnd::Split });
    length
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::nearly_text;
    use super::*;
    use proptest::prelude::*;

    type Owned = (u64, Vec<u8>, LineEnd);

    fn lines<'a>(max: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Owned> {
        let (mut lines, mut all, mut position) = (Lines::new(max), Vec::new(), 0);
        let mut each = |line: Line<'_>| all.push((line.position, line.bytes.to_vec(), line.end));
        for piece in pieces {
            lines.take(position, piece, &mut each);
            assert!(lines.incomplete.len() <= lines.max + 1);
            position += piece.len() as u64;
        }
        lines.finish(&mut each);
        all
    }

    #[test]
    fn lines_end_with_lf_crlf_or_end_of_file() {
        let expected = [
            (0, "a", LineEnd::Lf),
            (2, "", LineEnd::Lf),
            (3, "b", LineEnd::CrLf),
            (6, "c\rd", LineEnd::CrLf),
            (11, "\r", LineEnd::CrLf),
            (14, "e\r", LineEnd::Open),
        ]
        .map(|(position, line, end)| (position, line.as_bytes().to_vec(), end));
        let bytes = b"a\n\nb\r\nc\rd\r\n\r\r\ne\r";
        for size in 1..=bytes.len() {
            assert_eq!(lines(100, bytes.chunks(size)), expected, "{size}");
        }
        assert_eq!(lines(100, [&b""[..]]), []);
    }

    #[test]
    fn a_flush_keeps_what_may_belong_to_the_next_bytes() {
        let mut lines = Lines::new(100);
        let mut found: Vec<Owned> = Vec::new();
        let mut emit = |line: Line<'_>| found.push((line.position, line.bytes.to_vec(), line.end));
        lines.take(0, b"one\nName: \xc3", &mut emit);
        assert_eq!(lines.open_len(), 6);
        lines.flush(&mut emit);
        // Nothing is left that is certain.
        lines.flush(&mut emit);
        lines.take(11, b"\xa9\r", &mut emit);
        lines.flush(&mut emit);
        lines.take(13, b"\n", &mut emit);
        let expected: [(u64, &[u8], LineEnd); 4] = [
            (0, b"one", LineEnd::Lf),
            (4, b"Name: ", LineEnd::Split),
            (10, "é".as_bytes(), LineEnd::Split),
            (12, b"", LineEnd::CrLf),
        ];
        assert_eq!(found, expected.map(|(position, line, end)| (position, line.to_vec(), end)));
    }

    #[test]
    fn long_lines_are_split_between_characters() {
        let expected = [
            ("abcé", LineEnd::Split),
            ("def", LineEnd::Lf),
            ("12345", LineEnd::CrLf),
            ("12345", LineEnd::Split),
            ("\r", LineEnd::Open),
        ];
        let text = "abcédef\n12345\r\n12345\r";
        for size in 1..=text.len() {
            let found = lines(5, text.as_bytes().chunks(size));
            let found: Vec<_> = found.iter().map(|(_, line, end)| (std::str::from_utf8(line).unwrap(), *end)).collect();
            assert_eq!(found, expected, "{size}");
        }
        let found = lines(4, ["abcédef\n".as_bytes()]);
        assert_eq!(found[0], (0, b"abc".to_vec(), LineEnd::Split));
        assert_eq!(found[1], (3, "éde".as_bytes().to_vec(), LineEnd::Split));
    }

    proptest! {
        #[test]
        fn lines_join_to_the_input_for_any_chunk_sizes(bytes in nearly_text(), max in 4..12_usize) {
            let whole = lines(max, [&bytes[..]]);
            let joined: Vec<u8> = whole.iter().flat_map(|(_, line, end)| [line, end.as_bytes()].concat()).collect();
            prop_assert_eq!(&joined, &bytes);
            let text: String = whole
                .iter()
                .map(|(_, line, end)| String::from_utf8_lossy(line).into_owned() + std::str::from_utf8(end.as_bytes()).unwrap())
                .collect();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
            let mut at = 0;
            for (position, line, end) in &whole {
                prop_assert_eq!(*position, at);
                prop_assert!(line.len() <= max && !line.contains(&b'\n'));
                prop_assert!(*end != LineEnd::Split || line.len() + 3 >= max);
                at += (line.len() + end.as_bytes().len()) as u64;
            }
            for at in 0..=bytes.len() {
                prop_assert_eq!(&lines(max, [&bytes[..at], &bytes[at..]]), &whole);
            }
            for size in 1..5 {
                prop_assert_eq!(&lines(max, bytes.chunks(size)), &whole);
            }
        }
    }

    #[test]
    fn an_endless_line_takes_linear_time() {
        spawnfd_tests::deadline(std::time::Duration::from_secs(60), || {
            let (mut lines, mut bytes) = (Lines::new(64 << 10), 0);
            let piece = [b'x'; 7];
            for at in 0..(4 << 20) / 7 {
                lines.take(at * 7, &piece, |line| bytes += line.bytes.len());
            }
            lines.finish(|line| bytes += line.bytes.len());
            assert_eq!(bytes, (4 << 20) / 7 * 7);
        });
    }
}
