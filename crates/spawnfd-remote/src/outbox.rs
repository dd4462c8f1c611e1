// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames that wait to be written. Calls with much data take turns, and short frames of other calls pass them.

use std::collections::VecDeque;

use crate::frame::{Kind, encode};

/// Frames that wait to be written.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The bytes that are written first: whole frames, except that the first one may be written in part.
    first: Vec<u8>,
    /// How many of these have been written.
    written: usize,
    /// The calls that have data, in turn. All further frames of such a call come after its data.
    waiting: VecDeque<(u32, VecDeque<Vec<u8>>)>,
    /// The number of bytes in `waiting`.
    waiting_bytes: usize,
}

impl Outbox {
    /// Adds a frame. `parts` are the parts of the payload.
    pub fn push(&mut self, kind: Kind, call: u32, parts: &[&[u8]]) {
        if let Some((_, frames)) = self.waiting.iter_mut().find(|(waiting, _)| *waiting == call) {
            let mut bytes = Vec::new();
            encode(&mut bytes, kind, call, parts);
            self.waiting_bytes += bytes.len();
            frames.push_back(bytes);
        } else if matches!(kind, Kind::Output | Kind::Input | Kind::Kept) && !self.is_empty() {
            let mut bytes = Vec::new();
            encode(&mut bytes, kind, call, parts);
            self.waiting_bytes += bytes.len();
            self.waiting.push_back((call, VecDeque::from([bytes])));
        } else {
            encode(&mut self.first, kind, call, parts);
        }
    }

    /// Adds bytes that are no frame, before all frames.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.first.extend_from_slice(bytes);
    }

    /// The bytes to write next. Empty: there are none.
    pub fn bytes(&mut self) -> &[u8] {
        if self.written == self.first.len()
            && let Some((call, mut frames)) = self.waiting.pop_front()
        {
            self.first = frames.pop_front().unwrap_or_default();
            self.waiting_bytes -= self.first.len();
            self.written = 0;
            if !frames.is_empty() {
                self.waiting.push_back((call, frames));
            }
        }
        &self.first[self.written..]
    }

    /// Notes that so many of the [bytes](Outbox::bytes) have been written.
    pub fn note_written(&mut self, count: usize) {
        self.written += count;
        if self.written == self.first.len() {
            self.first.clear();
            self.written = 0;
        } else if self.written > (64 << 10).max(self.first.len() / 2) {
            self.first.drain(..self.written);
            self.written = 0;
        }
    }

    /// The number of bytes that wait.
    pub fn len(&self) -> usize {
        self.first.len() - self.written + self.waiting_bytes
    }

    /// Whether all frames have been written.
    pub fn is_empty(&self) -> bool {
        self.written == self.first.len() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Decoder, Frame};

    fn order(outbox: &mut Outbox, step: usize) -> Vec<(Kind, u32)> {
        let mut decoder = Decoder::default();
        while !outbox.is_empty() {
            let bytes = outbox.bytes();
            let count = bytes.len().min(step);
            decoder.feed(&bytes[..count]);
            let left = outbox.len();
            outbox.note_written(count);
            assert_eq!(outbox.len(), left - count);
        }
        let frames = std::iter::from_fn(|| decoder.next_frame().expect("frames"));
        frames.map(|Frame { kind, call, .. }| (kind.expect("known"), call)).collect()
    }

    #[test]
    fn calls_with_data_take_turns_and_keep_their_order() {
        for step in [1, 7, 100_000] {
            let mut outbox = Outbox::default();
            for call in [1, 1, 1, 2, 2] {
                outbox.push(Kind::Output, call, &[&[call as u8; 1000]]);
            }
            outbox.push(Kind::Result, 1, &[b"one"]);
            outbox.push(Kind::Result, 3, &[b"three"]);
            let (data, result) = (Kind::Output, Kind::Result);
            let expected = [(data, 1), (result, 3), (data, 1), (data, 2), (data, 1), (data, 2), (result, 1)];
            assert_eq!(order(&mut outbox, step), expected);
        }
    }
}
