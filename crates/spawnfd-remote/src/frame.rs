// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames: the units of the protocol. Encodes and decodes them, and does no input or output.

use std::fmt;

/// The bytes before the first frame from the far side. A login shell or a container tool may print text before it.
pub const MARK: &[u8; 16] = b"\0spawnfd-serve1\n";

/// The largest number of bytes of a payload. A decoder refuses larger frames.
pub const MAX_PAYLOAD: usize = 16 << 20;

/// The bytes before a payload: its length with kind and call, the kind, and the number of the call.
pub const HEADER: usize = 9;

/// The number of bytes of kind and call, which the length counts.
const OVERHEAD: usize = 5;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal,)+) => {
        /// The kind of a frame. docs/protocol.md describes the payloads.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind {
            $($(#[doc = $doc])+ $name = $value,)+
        }

        impl Kind {
            /// The kind as a message names it: `a frame Hello`.
            pub(crate) fn phrase(self) -> String {
                format!("a frame {self:?}")
            }

            fn from_byte(byte: u8) -> Option<Kind> {
                match byte {
                    $($value => Some(Kind::$name),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Both: the version and what the sender can do. The first frame of each side.
    Hello = 1,
    /// Near: begins a call.
    Call = 2,
    /// Far: the program of a job has started, or a session has opened.
    Started = 3,
    /// Far: bytes of a job's output.
    Output = 4,
    /// Near: bytes of a program's input. No bytes: its end.
    Input = 5,
    /// Both: the number of further bytes that the sender accepts of a call.
    Credit = 6,
    /// Near: an order to a call.
    Order = 7,
    /// Far: bytes of a result's output, before the result.
    Kept = 8,
    /// Far: the result of a call.
    Result = 9,
    /// Far: why a call has failed.
    Error = 10,
    /// Far: no more output of a call follows.
    End = 11,
    /// Both: asks for a `Pong`.
    Ping = 12,
    /// Both: answers a `Ping`.
    Pong = 13,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// `None`: a kind that this version does not know. The receiver ignores the frame.
    pub kind: Option<Kind>,
    /// The number of the call; 0 for frames that belong to none.
    pub call: u32,
    /// The content.
    pub payload: Vec<u8>,
}

/// Appends a frame to `bytes`. `parts` are the parts of the payload.
///
/// # Panics
/// The payload is larger than [`MAX_PAYLOAD`].
pub fn encode(bytes: &mut Vec<u8>, kind: Kind, call: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    assert!(length <= MAX_PAYLOAD, "a payload of {length} bytes");
    bytes.reserve(HEADER + length);
    bytes.extend_from_slice(&((OVERHEAD + length) as u32).to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&call.to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
}

/// Why received bytes are not frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Decodes frames from bytes that arrive in any pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// How many of the bytes have been decoded.
    taken: usize,
}

impl Decoder {
    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        } else if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next frame, once all of its bytes have arrived.
    ///
    /// # Errors
    /// The bytes are not a frame. No later bytes can be decoded.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let bytes = &self.bytes[self.taken..];
        let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if !(OVERHEAD..=OVERHEAD + MAX_PAYLOAD).contains(&length) {
            return Err(Malformed(format!("a frame of {length} bytes")));
        }
        let Some((frame, _)) = rest.split_at_checked(length) else { return Ok(None) };
        let (head, payload) = frame.split_at(OVERHEAD);
        let call = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let frame = Frame { kind: Kind::from_byte(head[0]), call, payload: payload.to_vec() };
        self.taken += HEADER - OVERHEAD + length;
        Ok(Some(frame))
    }

    /// Whether the bytes end within a frame.
    pub fn is_within_a_frame(&self) -> bool {
        self.taken < self.bytes.len()
    }
}

/// Finds the [`MARK`] in the first bytes from the far side.
#[derive(Debug, Default)]
pub struct Marker {
    /// The text before the mark, up to a maximum.
    pub noise: Vec<u8>,
    found: bool,
}

/// The number of bytes before the mark after which there is no server on the other side.
const MAX_NOISE: usize = 1 << 20;

impl Marker {
    /// Returns what follows the mark; `None` if the mark has not arrived yet.
    ///
    /// # Errors
    /// So much text has arrived that there will be no mark.
    pub fn after<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<&'b [u8]>, Malformed> {
        if self.found {
            return Ok(Some(bytes));
        }
        let before = self.noise.len();
        self.noise.extend_from_slice(bytes);
        let from = before.saturating_sub(MARK.len() - 1);
        let found = self.noise[from..].windows(MARK.len()).position(|window| window == MARK);
        match found {
            Some(at) => {
                self.found = true;
                self.noise.truncate(from + at);
                Ok(Some(&bytes[from + at + MARK.len() - before..]))
            }
            None if self.noise.len() > MAX_NOISE => Err(Malformed("the other side is no spawnfd server".to_owned())),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(decoder: &mut Decoder) -> Vec<Frame> {
        std::iter::from_fn(|| decoder.next_frame().expect("frames")).collect()
    }

    proptest! {
        #[test]
        fn frames_do_not_depend_on_the_pieces_in_which_they_arrive(
            frames in prop::collection::vec((1..14_u8, any::<u32>(), prop::collection::vec(any::<u8>(), 0..50)), 0..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut bytes = Vec::new();
            let expected: Vec<Frame> = frames.into_iter().map(|(kind, call, payload)| {
                let kind = Kind::from_byte(kind).expect("a kind");
                encode(&mut bytes, kind, call, &[&payload[..payload.len() / 2], &payload[payload.len() / 2..]]);
                Frame { kind: Some(kind), call, payload }
            }).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut decoder, mut found, mut last) = (Decoder::default(), Vec::new(), 0);
            for cut in cuts.into_iter().chain([bytes.len()]) {
                decoder.feed(&bytes[last..cut]);
                found.extend(decoded(&mut decoder));
                last = cut;
            }
            prop_assert_eq!(found, expected);
            prop_assert!(!decoder.is_within_a_frame());
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(frame)) = decoder.next_frame() {
                prop_assert!(frame.payload.len() <= bytes.len());
            }
        }

        #[test]
        fn the_mark_is_found_after_any_text(
            noise in prop::collection::vec(any::<u8>(), 0..100), rest in prop::collection::vec(any::<u8>(), 0..20),
            step in 1..20_usize,
        ) {
            let bytes = [&noise[..], MARK, &rest].concat();
            let (mut marker, mut found) = (Marker::default(), Vec::new());
            for piece in bytes.chunks(step) {
                if let Some(after) = marker.after(piece).expect("little text") {
                    found.extend_from_slice(after);
                }
            }
            prop_assert_eq!((marker.noise, found), (noise, rest));
        }
    }

    #[test]
    fn an_unknown_kind_is_passed_over() {
        let mut decoder = Decoder::default();
        decoder.feed(&[6, 0, 0, 0, 200, 1, 0, 0, 0, 7]);
        assert_eq!(decoded(&mut decoder), [Frame { kind: None, call: 1, payload: vec![7] }]);
    }

    #[test]
    fn a_length_that_no_frame_has_is_an_error() {
        for length in [0, 4, (OVERHEAD + MAX_PAYLOAD + 1) as u32, u32::MAX] {
            let mut decoder = Decoder::default();
            decoder.feed(&length.to_le_bytes());
            assert!(decoder.next_frame().is_err(), "{length}");
        }
    }
}
