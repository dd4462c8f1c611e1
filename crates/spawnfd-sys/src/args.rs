// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodes argv and envp in the form that execve expects.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};

/// A NULL-terminated array of C strings, encoded once and usable by any number of spawns.
///
/// An encoded block owns its strings: one buffer contains them all, and the array has a pointer to each. A borrowed
/// block is the caller's array.
pub struct ArgBlock<'a> {
    _bytes: Vec<u8>,
    pointers: Cow<'a, [*const c_char]>,
}

// SAFETY: the pointers point into the heap allocation of `_bytes`, which the block owns, or to strings that outlive
// it. The allocation does not change after construction, and stays in place when the block moves.
unsafe impl Send for ArgBlock<'_> {}
// SAFETY: shared access only reads the strings, and they live as long as the block.
unsafe impl Sync for ArgBlock<'_> {}

/// Builds an [`ArgBlock`].
pub struct ArgBuilder {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl ArgBuilder {
    /// Adds one string, given in parts. If the string contains a NUL, adds nothing and returns `false`.
    pub fn push(&mut self, parts: &[&[u8]]) -> bool {
        if parts.iter().any(|part| part.contains(&0)) {
            return false;
        }
        self.starts.push(self.bytes.len());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.push(0);
        true
    }

    /// Returns the finished block.
    pub fn finish(self) -> ArgBlock<'static> {
        let ArgBuilder { bytes, starts } = self;
        // `collect` usually reuses the memory of `starts`.
        let mut pointers: Vec<*const c_char> = starts.into_iter().map(|start| bytes[start..].as_ptr().cast()).collect();
        pointers.push(core::ptr::null());
        ArgBlock { _bytes: bytes, pointers: Cow::Owned(pointers) }
    }
}

impl<'a> ArgBlock<'a> {
    /// Borrows a caller's array. Allocates nothing.
    ///
    /// # Safety
    /// The last pointer is NULL. Each other pointer points to a C string that outlives the block and does not change.
    pub unsafe fn borrowed(pointers: &'a [*const c_char]) -> ArgBlock<'a> {
        ArgBlock { _bytes: Vec::new(), pointers: Cow::Borrowed(pointers) }
    }

    /// Returns a builder of an empty block.
    pub fn builder() -> ArgBuilder {
        ArgBuilder { bytes: Vec::with_capacity(256), starts: Vec::with_capacity(16) }
    }

    /// Encodes `strings` in order. If a string contains a NUL, the error is the index of the first such string.
    pub fn new<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Result<ArgBlock<'static>, usize> {
        let mut builder = ArgBlock::builder();
        for (index, string) in strings.into_iter().enumerate() {
            if !builder.push(&[string.as_ref()]) {
                return Err(index);
            }
        }
        Ok(builder.finish())
    }

    /// Returns the argument of execve: a pointer to the array of pointers.
    pub fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.pointers.len() - 1
    }

    /// Whether the block has no string.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The strings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &CStr> {
        // SAFETY: every pointer but the last one points to a C string that lives as long as the block.
        self.pointers.iter().take(self.len()).map(|&string| unsafe { CStr::from_ptr(string) })
    }
}

/// Prints only the number of strings, as for a finished block.
impl core::fmt::Debug for ArgBuilder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ArgBuilder({} strings)", self.starts.len())
    }
}

/// Prints only the number of strings: a block may contain environment variables, whose values are often secrets.
impl core::fmt::Debug for ArgBlock<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ArgBlock({} strings)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_ends_with_null() {
        let block = ArgBlock::new([&b"rg"[..], b"", b"x y"]).unwrap();
        assert_eq!(block.len(), 3);
        let strings: Vec<&[u8]> = block.iter().map(CStr::to_bytes).collect();
        assert_eq!(strings, [&b"rg"[..], b"", b"x y"]);
        assert!(block.pointers[3].is_null());
    }

    #[test]
    fn names_the_string_with_a_nul() {
        assert_eq!(ArgBlock::new([&b"a"[..], b"b\0c"]).unwrap_err(), 1);
    }
}
