// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first and last bytes of output that is too large to keep.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use super::text::incomplete_len;

/// The last pushed bytes, up to a maximum. Its buffer grows as bytes arrive, and is not allocated in advance.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    max: usize,
    bytes: VecDeque<u8>,
}

impl Ring {
    pub(super) fn new(max: usize) -> Ring {
        Ring { max, bytes: VecDeque::new() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let last = &bytes[bytes.len().saturating_sub(self.max)..];
        let surplus = (self.bytes.len() + last.len()).saturating_sub(self.max);
        self.bytes.drain(..surplus);
        self.bytes.extend(last);
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes in order, in two parts.
    pub(super) fn parts(&self) -> [&[u8]; 2] {
        let (older, newer) = self.bytes.as_slices();
        [older, newer]
    }

    /// At most `max` bytes from index `from` on.
    pub(super) fn copy(&self, from: usize, max: usize) -> Vec<u8> {
        let [older, newer] = self.parts();
        let newer = &newer[from.saturating_sub(older.len()).min(newer.len())..];
        let older = &older[from.min(older.len())..];
        let first = &older[..max.min(older.len())];
        [first, &newer[..(max - first.len()).min(newer.len())]].concat()
    }
}

/// The kept part of one stream: its head and its tail.
#[derive(Debug)]
pub(super) struct KeptOutput {
    max_head: usize,
    head: Vec<u8>,
    max_tail: usize,
    /// The tail and the byte before it, which shows whether the tail begins a line.
    tail: Ring,
    seen: u64,
}

impl KeptOutput {
    pub(super) fn new((head, tail): (usize, usize)) -> KeptOutput {
        KeptOutput {
            max_head: head,
            head: Vec::new(),
            max_tail: tail,
            tail: Ring::new(tail.saturating_add(1)),
            seen: 0,
        }
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        let space = self.max_head - self.head.len();
        let (head, rest) = bytes.split_at(space.min(bytes.len()));
        self.head.extend_from_slice(head);
        if !rest.is_empty() {
            self.tail.push(rest);
        }
    }

    /// Whether the head and tail would still hold all of the stream after `more` further bytes.
    pub(super) fn would_keep_all(&self, more: usize) -> bool {
        self.seen + more as u64 <= (self.max_head as u64).saturating_add(self.max_tail as u64)
    }

    /// The positions of the bytes between head and tail.
    pub(super) fn omitted(&self) -> Range<u64> {
        self.head.len() as u64..self.seen - self.tail.len().min(self.max_tail) as u64
    }

    /// All bytes of the stream, in order, in three parts. Only valid if no byte is omitted.
    pub(super) fn parts(&self) -> [&[u8]; 3] {
        let [older, newer] = self.tail.parts();
        [&self.head, older, newer]
    }

    /// Returns the head, a marker line if bytes are omitted, and the tail.
    ///
    /// If bytes are omitted, moves each cut to a line end within 20 % of the head's or tail's maximum size.
    pub(super) fn finish(&mut self, marker: Option<&str>) -> Captured {
        let seen = self.seen;
        let KeptOutput { max_head, head: mut bytes, max_tail, tail, .. } =
            std::mem::replace(self, KeptOutput { seen, ..KeptOutput::new((0, 0)) });
        let mut cut = Cut::default();
        let mut start = 0;
        if tail.len() > max_tail {
            bytes.truncate(head_end(&bytes, max_head / 5));
            start = tail_start(&tail, max_tail / 5);
            cut.head = bytes.len();
            cut.omitted = seen - (bytes.len() + tail.len() - start) as u64;
            bytes.extend(marker_line(marker, &bytes, cut.omitted).bytes());
            cut.marker = bytes.len() - cut.head;
        }
        let [older, newer] = tail.parts();
        bytes.extend_from_slice(&older[start.min(older.len())..]);
        bytes.extend_from_slice(&newer[start.saturating_sub(older.len())..]);
        Captured { bytes, cut }
    }
}

/// Returns where to cut the head: after the last line feed of its last `range` bytes, otherwise at its end.
fn head_end(head: &[u8], range: usize) -> usize {
    let start = head.len().saturating_sub(range);
    match head[start..].iter().rposition(|&byte| byte == b'\n') {
        Some(line_feed) => start + line_feed + 1,
        // Exclude a final "\r", because the first omitted byte may be the line feed of a "\r\n".
        None => head.len() - usize::from(head.ends_with(b"\r")),
    }
}

/// Returns where to begin the tail in a ring whose first byte precedes the tail: after the first line feed in that
/// byte and the next `range` bytes, otherwise after the first byte.
fn tail_start(ring: &Ring, range: usize) -> usize {
    // Search at least one byte, because a line feed at the beginning of the tail may belong to a
    // "\r\n".
    let line_feed = ring.bytes.iter().take(1 + range.max(1)).position(|&byte| byte == b'\n');
    line_feed.map_or(1, |line_feed| line_feed + 1)
}

/// Returns the line that replaces the omitted bytes, with the line feeds that separate it from the head and the tail.
/// Empty without a marker.
fn marker_line(marker: Option<&str>, head: &[u8], omitted: u64) -> String {
    let Some(marker) = marker.filter(|marker| !marker.is_empty()) else { return String::new() };
    let separator = if head.is_empty() || head.ends_with(b"\n") { "" } else { "\n" };
    format!("{separator}{}\n", marker.replace("{omitted}", &amount(omitted)))
}

/// A number of bytes with thousands separators and unit: `12,345 bytes`.
fn amount(bytes: u64) -> String {
    let digits = bytes.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + if bytes == 1 { " byte" } else { " bytes" }
}

/// The kept part of one stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Captured {
    /// The head, a marker line if bytes are omitted, and the tail.
    pub bytes: Vec<u8>,
    /// The place of the marker line.
    pub cut: Cut,
}

/// The place in the kept part of one stream where bytes are omitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cut {
    /// The length of the head.
    pub head: usize,
    /// The length of the marker line after the head, with its line feeds.
    pub marker: usize,
    /// The number of omitted bytes. 0: the stream is whole, and the lengths have no meaning.
    pub omitted: u64,
}

impl Cut {
    /// The positions of the omitted bytes in the stream.
    pub(super) fn omitted_range(self) -> Range<u64> {
        self.head as u64..self.head as u64 + self.omitted
    }

    /// Splits the kept part of a stream into head, marker line and tail. If nothing was omitted, all bytes are head.
    pub(super) fn split(self, bytes: &[u8]) -> [&[u8]; 3] {
        if self.omitted == 0 {
            return [bytes, &[], &[]];
        }
        let (head, rest) = bytes.split_at(self.head.min(bytes.len()));
        let (marker, tail) = rest.split_at(self.marker.min(rest.len()));
        [head, marker, tail]
    }

    /// The text of head, marker line and tail. Invalid bytes become U+FFFD. A character that the omission splits is
    /// dropped, not replaced, because the program did not write invalid text.
    pub(super) fn texts(self, bytes: &[u8]) -> [Cow<'_, str>; 3] {
        let [mut head, marker, mut tail] = self.split(bytes);
        if self.omitted > 0 {
            head = &head[..head.len() - incomplete_len(head)];
            tail = &tail[continuation_len(tail, LONGEST_CONTINUATION)..];
        }
        [head, marker, tail].map(String::from_utf8_lossy)
    }

    /// The text of the whole kept part; see [`texts`](Cut::texts).
    pub(super) fn text(self, bytes: &[u8]) -> Cow<'_, str> {
        match self.texts(bytes) {
            [whole, ..] if self.omitted == 0 => whole,
            parts => Cow::Owned(parts.concat()),
        }
    }
}

/// The maximum number of bytes of a UTF-8 character after its first byte.
pub(super) const LONGEST_CONTINUATION: usize = 3;

/// The number of bytes at the beginning, at most `max`, that continue a UTF-8 character.
pub(super) fn continuation_len(bytes: &[u8], max: usize) -> usize {
    bytes.iter().take(max).take_while(|byte| matches!(byte, 0x80..=0xBF)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::text::tests::nearly_text;
    use proptest::prelude::*;

    const MARKER: &str = "[… {omitted} omitted …]";

    fn captured(output: &[u8], keep: (usize, usize), marker: Option<&str>) -> Captured {
        let mut kept = KeptOutput::new(keep);
        kept.append(output);
        kept.finish(marker)
    }

    /// The text with the default marker.
    fn marked(output: &str, keep: (usize, usize)) -> String {
        let Captured { bytes, cut } = captured(output.as_bytes(), keep, Some(MARKER));
        cut.text(&bytes).into_owned()
    }

    /// Head and tail.
    fn ends(output: &[u8], keep: (usize, usize)) -> (Vec<u8>, Vec<u8>) {
        let Captured { bytes, cut } = captured(output, keep, Some(MARKER));
        let [head, _, tail] = cut.split(&bytes);
        (head.to_vec(), tail.to_vec())
    }

    #[test]
    fn head_and_tail_are_kept_for_any_chunk_size() {
        let all: Vec<u8> = (100..200).collect();
        for size in [1, 3, 7, 64, 100] {
            for keep in [(0, 0), (10, 0), (0, 10), (10, 10), (60, 60), (100, 0), (0, 100), (0, usize::MAX)] {
                let mut kept = KeptOutput::new(keep);
                all.chunks(size).for_each(|chunk| kept.append(chunk));
                let head = keep.0.min(100);
                let tail = (100 - head).min(keep.1);
                let expected = [&all[..head], &all[100 - tail..]].concat();
                assert_eq!(kept.omitted(), head as u64..100 - tail as u64, "{size} {keep:?}");
                assert!(
                    kept.would_keep_all(0) == (expected == all) && (expected != all || kept.parts().concat() == all)
                );
                let Captured { bytes, cut } = kept.finish(None);
                assert_eq!((bytes.len() as u64 + cut.omitted, &bytes), (100, &expected), "{size} {keep:?}");
                assert_eq!(cut.split(&bytes)[0].len(), if cut.omitted == 0 { 100 } else { head }, "{size} {keep:?}");
            }
        }
    }

    #[test]
    fn memory_is_bounded_by_the_kept_size() {
        let mut kept = KeptOutput::new((1000, 3000));
        for _ in 0..1000 {
            kept.append(&[b'x'; 777]);
        }
        assert!(kept.head.capacity() <= 2000 && kept.tail.bytes.capacity() <= 8192, "{kept:?}");
    }

    #[test]
    fn a_marker_line_replaces_omitted_bytes() {
        let numbers: String = (1..=13).map(|number| format!("{number}\n")).collect();
        assert_eq!(marked(&numbers, (10, 5)), "1\n2\n3\n4\n5\n[… 15 bytes omitted …]\n2\n13\n");
        assert_eq!(marked(&numbers, (15, 15)), numbers);
        assert_eq!(marked("0123456789", (4, 4)), "0123\n[… 2 bytes omitted …]\n6789");
        assert_eq!(marked("0123456789", (4, 5)), "0123\n[… 1 byte omitted …]\n56789");
        assert_eq!(marked("0123456789", (0, 4)), "[… 6 bytes omitted …]\n6789");
        assert_eq!(marked("0123456789", (4, 0)), "0123\n[… 6 bytes omitted …]\n");
        assert_eq!(marked("0123456789", (0, 0)), "[… 10 bytes omitted …]\n");
        assert_eq!(marked(&"x".repeat(1_234_567), (0, 0)), "[… 1,234,567 bytes omitted …]\n");
        assert_eq!(marked("", (0, 0)), "");
    }

    #[test]
    fn the_marker_can_be_changed_or_left_out() {
        let bytes = |marker| captured(b"0123456789", (2, 2), marker).bytes;
        assert_eq!(bytes(Some("--")), b"01\n--\n89");
        assert_eq!(bytes(Some("{omitted}/{omitted}")), b"01\n6 bytes/6 bytes\n89");
        assert_eq!((bytes(None), bytes(Some(""))), (b"0189".to_vec(), b"0189".to_vec()));
    }

    #[test]
    fn cuts_fall_on_line_ends_within_a_fifth() {
        let output = b"aaaaaaa\nbbbbbbbbbb\ncc\ndddddddd\n";
        // The line feed is in the last two bytes of the head, or before them.
        assert_eq!(ends(output, (9, 0)).0, b"aaaaaaa\nb");
        assert_eq!(ends(output, (10, 0)).0, b"aaaaaaa\nbb");
        assert_eq!(ends(b"aaaaaaaa\nbbbbbbbbbb", (10, 0)).0, b"aaaaaaaa\n");
        assert_eq!(ends(b"aaaaaaaaa\nbbbbbbbbb", (10, 0)).0, b"aaaaaaaaa\n");
        // The tail begins after the first line feed of its first two bytes.
        assert_eq!(ends(output, (0, 10)).1, b"dddddddd\n");
        assert_eq!(ends(output, (0, 11)).1, b"dddddddd\n");
        assert_eq!(ends(output, (0, 12)).1, b"cc\ndddddddd\n");
        assert_eq!(ends(output, (0, 14)).1, b"cc\ndddddddd\n");
        assert_eq!(ends(output, (0, 16)).1, b"bbb\ncc\ndddddddd\n");
        // A tail that begins a line stays whole, even if its first line is short.
        assert_eq!(ends(b"aaaaaaa\nb\nccccccc\n", (0, 10)).1, b"b\nccccccc\n");
        // Whole output is not cut.
        assert_eq!(ends(b"a\nb", (3, 0)).0, b"a\nb");
    }

    #[test]
    fn a_cut_does_not_split_a_line_end_of_two_bytes() {
        let output = b"aaa\r\nbbb\r\nccc\r\n";
        assert_eq!(ends(output, (4, 4)), (b"aaa".to_vec(), b"cc\r\n".to_vec()));
        assert_eq!(ends(output, (0, 1)), (b"".to_vec(), b"".to_vec()));
        assert_eq!(ends(output, (5, 6)), (b"aaa\r\n".to_vec(), b"ccc\r\n".to_vec()));
        assert_eq!(marked("aaa\r\nbbb\r\nccc\r\n", (5, 5)), "aaa\r\n[… 5 bytes omitted …]\nccc\r\n");
    }

    proptest! {
        #[test]
        fn head_tail_and_omitted_bytes_are_the_output(
            output in nearly_text(),
            keep in (0..40_usize, 0..40_usize),
        ) {
            let Captured { bytes, cut } = captured(&output, keep, Some(MARKER));
            let [head, marker, tail] = cut.split(&bytes);
            prop_assert_eq!(head.len() + tail.len() + cut.omitted as usize, output.len());
            prop_assert!(output.starts_with(head) && output.ends_with(tail));
            prop_assert_eq!(cut.omitted > 0, output.len() > keep.0 + keep.1);
            if cut.omitted > 0 {
                prop_assert!(head.len() <= keep.0 && tail.len() <= keep.1);
                prop_assert!(marker.ends_with("omitted …]\n".as_bytes()));
                let splits = |at: usize| at > 0 && output[at - 1] == b'\r' && output[at] == b'\n';
                prop_assert!(!splits(head.len()) && (tail.is_empty() || !splits(output.len() - tail.len())));
            }
        }
    }

    #[test]
    fn characters_split_by_the_omission_are_dropped() {
        let Captured { bytes, cut } = captured("aéééb".as_bytes(), (2, 4), None);
        assert_eq!((&bytes[..], cut.omitted), (&b"a\xC3\xA9\xC3\xA9b"[..], 2));
        assert_eq!(cut.text(&bytes), "aéb");
        assert_eq!(marked("aéééb", (2, 4)), "a\n[… 2 bytes omitted …]\néb");
        assert_eq!(marked("éé", (2, 2)), "éé");
        assert_eq!(marked("🦀🦀🦀", (3, 3)), "\n[… 6 bytes omitted …]\n");
    }
}
