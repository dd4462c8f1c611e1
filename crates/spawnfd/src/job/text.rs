// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes UTF-8 from bytes that arrive in chunks.

use std::borrow::Cow;

/// Returns the number of bytes at the end, 0 to 3, that begin a character and that later bytes may
/// complete.
///
/// If the input is split before these bytes, decoding both parts separately gives the same text as decoding the
/// whole.
pub(super) fn incomplete_len(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let end = &bytes[bytes.len() - length..];
        match end[0] {
            // A continuation byte: the character begins at an earlier byte.
            0x80..=0xBF => {}
            0xC2..=0xF4 if std::str::from_utf8(end).is_err_and(|e| e.error_len().is_none()) => return length,
            _ => return 0,
        }
    }
    0
}

/// Decodes one stream chunk by chunk. Invalid bytes become U+FFFD.
///
/// All chunks together give the same text as [`String::from_utf8_lossy`] for all bytes.
///
/// # Examples
/// ```
/// use spawnfd::job::Decoder;
/// let (mut decoder, mut text) = (Decoder::new(), String::new());
/// decoder.decode(b"caf\xc3", &mut text); // half of a character
/// decoder.decode(b"\xa9", &mut text);
/// decoder.finish(&mut text);
/// assert_eq!(text, "caf\u{e9}");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// An incomplete character, at most 3 bytes.
    incomplete: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Takes the next bytes without decoding them. Returns the bytes kept from earlier calls, and a length. The kept
    /// bytes and `bytes[..length]` together are complete characters: the text that [`decode`](Decoder::decode) would
    /// append. The decoder keeps the rest of `bytes`, the beginning of a character, for the next call.
    pub fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, usize) {
        let mut before = std::mem::take(&mut self.incomplete);
        let incomplete = match bytes.len() {
            0..=2 => incomplete_len(&[&before, bytes].concat()),
            _ => incomplete_len(bytes),
        };
        match bytes.len().checked_sub(incomplete) {
            Some(length) => {
                self.incomplete.extend_from_slice(&bytes[length..]);
                (before, length)
            }
            // The bytes continue the incomplete character, and do not complete it.
            None => {
                before.extend_from_slice(bytes);
                self.incomplete = before;
                (Vec::new(), 0)
            }
        }
    }

    /// Appends the text of `bytes`. The decoder keeps an incomplete character at the end for the next chunk.
    pub fn decode(&mut self, bytes: &[u8], text: &mut String) {
        let (before, length) = self.take(bytes);
        text.push_str(&text_of(&before, &bytes[..length]));
    }

    /// Returns the bytes of an incomplete last character, whose text is U+FFFD. The decoder can then be used again.
    pub fn take_incomplete(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.incomplete)
    }

    /// Appends U+FFFD if the last character is incomplete. The decoder can then be used again.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&text_of(&self.take_incomplete(), &[]));
    }
}

/// Decodes `before`, which may be empty, followed by `bytes`. Invalid bytes become U+FFFD.
pub fn text_of<'a>(before: &[u8], bytes: &'a [u8]) -> Cow<'a, str> {
    match before {
        [] => String::from_utf8_lossy(bytes),
        _ => String::from_utf8_lossy(&[before, bytes].concat()).into_owned().into(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates bytes that are mostly UTF-8 text, with some invalid or incomplete characters.
    pub(in crate::job) fn nearly_text() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            3 => any::<char>().prop_map(|c| c.to_string().into_bytes()),
            1 => Just(b"\n".to_vec()),
            1 => Just(b"\r\n".to_vec()),
            1 => Just(b"\r".to_vec()),
            2 => any::<char>().prop_map(|c| { let s = c.to_string().into_bytes(); s[..s.len() - 1].to_vec() }),
            2 => prop_oneof![Just(0x80u8), Just(0xBF), Just(0xC0), Just(0xC2), Just(0xE0), Just(0xED), Just(0xF0), Just(0xF4), Just(0xFF), any::<u8>()]
                .prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    fn decoded<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let (mut decoder, mut text) = (Decoder::new(), String::new());
        pieces.into_iter().for_each(|piece| decoder.decode(piece, &mut text));
        decoder.finish(&mut text);
        text
    }

    proptest! {
        #[test]
        fn text_is_the_same_for_any_chunk_sizes(bytes in nearly_text()) {
            let whole = String::from_utf8_lossy(&bytes);
            for at in 0..=bytes.len() {
                prop_assert_eq!(&decoded([&bytes[..at], &bytes[at..]]), &whole);
            }
            for size in 1..5 {
                prop_assert_eq!(&decoded(bytes.chunks(size)), &whole);
            }
        }

        #[test]
        fn splitting_before_an_unfinished_character_changes_nothing(bytes in nearly_text()) {
            for end in 0..=bytes.len() {
                let at = end - incomplete_len(&bytes[..end]);
                let parts = [String::from_utf8_lossy(&bytes[..at]), String::from_utf8_lossy(&bytes[at..])];
                prop_assert_eq!(parts.concat(), String::from_utf8_lossy(&bytes));
            }
        }
    }

    #[test]
    fn an_unfinished_character_is_held_back() {
        let (mut decoder, mut text) = (Decoder::new(), String::new());
        for (byte, so_far) in [(0xF0, ""), (0x9F, ""), (0xA6, ""), (0x80, "🦀"), (b'!', "🦀!"), (0xC3, "🦀!")] {
            decoder.decode(&[byte], &mut text);
            assert_eq!(text, so_far);
        }
        decoder.finish(&mut text);
        decoder.decode("é".as_bytes(), &mut text);
        assert_eq!(text, "🦀!\u{FFFD}é");
    }

    #[test]
    fn all_combinations_of_byte_kinds_are_decoded_as_by_std() {
        const KINDS: [u8; 14] = [b'a', 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF4, 0xF5];
        for a in KINDS {
            for b in KINDS {
                for c in KINDS {
                    for d in KINDS {
                        let bytes = [a, b, c, d];
                        assert_eq!(decoded(bytes.chunks(1)), String::from_utf8_lossy(&bytes), "{bytes:x?}");
                    }
                }
            }
        }
    }
}
