// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first and last bytes of output that is too large to keep.

use std::borrow::Cow;
use std::collections::VecDeque;

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

    /// The bytes from index `from` on.
    pub(super) fn copy(&self, from: usize) -> Vec<u8> {
        let [older, newer] = self.parts();
        [&older[from.min(older.len())..], &newer[from.saturating_sub(older.len()).min(newer.len())..]].concat()
    }
}

/// The kept part of one stream: its head and its tail.
#[derive(Debug)]
pub(super) struct KeptOutput {
    max_head: usize,
    head: Vec<u8>,
    tail: Ring,
    seen: u64,
}

impl KeptOutput {
    pub(super) fn new((head, tail): (usize, usize)) -> KeptOutput {
        KeptOutput { max_head: head, head: Vec::new(), tail: Ring::new(tail), seen: 0 }
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
        self.seen + more as u64 <= (self.max_head as u64).saturating_add(self.tail.max as u64)
    }

    /// The kept bytes, in order, in three parts.
    pub(super) fn parts(&self) -> [&[u8]; 3] {
        let [older, newer] = self.tail.parts();
        [&self.head, older, newer]
    }

    pub(super) fn finish(&mut self) -> Captured {
        let KeptOutput { head, tail, .. } =
            std::mem::replace(self, KeptOutput { seen: self.seen, ..KeptOutput::new((0, 0)) });
        let mut captured = Captured { head: head.len(), bytes: head, omitted: 0 };
        for part in tail.parts() {
            captured.bytes.extend_from_slice(part);
        }
        captured.omitted = self.seen - captured.bytes.len() as u64;
        captured
    }
}

/// The kept part of one stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Captured {
    /// The head, then the tail.
    pub bytes: Vec<u8>,
    /// The length of the head in [`bytes`](Captured::bytes).
    pub head: usize,
    /// The number of bytes between head and tail that were not kept.
    pub omitted: u64,
}

/// The text of a stream in which `omitted` bytes are missing after the first `head`. Invalid bytes become U+FFFD. A
/// character that the omission splits is dropped, not replaced, because the program did not write invalid text.
pub(super) fn text(bytes: &[u8], head: usize, omitted: u64) -> Cow<'_, str> {
    if omitted == 0 {
        return String::from_utf8_lossy(bytes);
    }
    let (head, tail) = bytes.split_at(head);
    let head = &head[..head.len() - incomplete_len(head)];
    let cut = tail.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xBF)).count();
    Cow::Owned(String::from_utf8_lossy(head).into_owned() + &String::from_utf8_lossy(&tail[cut..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_are_kept_for_any_chunk_size() {
        let all: Vec<u8> = (0..100).collect();
        for size in [1, 3, 7, 64, 100] {
            for keep in [(0, 0), (10, 0), (0, 10), (10, 10), (60, 60), (100, 0), (0, 100)] {
                let mut kept = KeptOutput::new(keep);
                all.chunks(size).for_each(|chunk| kept.append(chunk));
                let head = keep.0.min(100);
                let tail = (100 - head).min(keep.1);
                let expected = [&all[..head], &all[100 - tail..]].concat();
                assert_eq!(kept.parts().concat(), expected);
                let captured = kept.finish();
                assert_eq!(
                    (captured.bytes.len() as u64 + captured.omitted, captured.head, &captured.bytes),
                    (100, head, &expected),
                    "{size} {keep:?}"
                );
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
    fn characters_split_by_the_omission_are_dropped() {
        let mut kept = KeptOutput::new((2, 4));
        kept.append("aéééb".as_bytes());
        let captured = kept.finish();
        assert_eq!((&captured.bytes[..], captured.omitted), (&b"a\xC3\xA9\xC3\xA9b"[..], 2));
        assert_eq!(text(&captured.bytes, captured.head, captured.omitted), "aéb");
        let mut kept = KeptOutput::new((2, 2));
        kept.append("éé".as_bytes());
        assert_eq!(
            {
                let Captured { bytes, head, omitted } = kept.finish();
                text(&bytes, head, omitted).into_owned()
            },
            "éé"
        );
    }
}
