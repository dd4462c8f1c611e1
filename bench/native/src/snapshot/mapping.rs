// SPDX-License-Identifier: MIT OR Apache-2.0
//! A read-only mapping, and the time to create it.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Result;
use crate::clock::now_ns;

/// A private read-only mapping.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn of(file: impl AsFd, len: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, 0)? };
        Ok(Self { at: NonNull::new(at.cast()).expect("mmap does not return null"), len })
    }

    /// The mapped bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `len` bytes of a file of at least this length. Only the benchmark
        // knows the file, and it does not change the file. The mapping exists until `self` is
        // dropped.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` describe the mapping, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Calls `open`, and maps `len` bytes of the file. Returns the time of both in ns, without the close, and the
/// mapping.
pub fn timed<F: AsFd>(len: usize, open: impl FnOnce() -> Result<F>) -> Result<(u64, Mapping)> {
    let start = now_ns();
    let file = open()?;
    let mapping = Mapping::of(&file, len)?;
    let ns = now_ns() - start;
    Ok((ns, mapping))
}
