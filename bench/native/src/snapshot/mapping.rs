// SPDX-License-Identifier: MIT OR Apache-2.0
//! A read-only mapping, and the clock around its making.

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

    /// What is mapped.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes of a file as long as that, which the benchmark alone knows and does not
        // change; it is unmapped only when `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` are those of the mapping, and no slice of it outlives `self`.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Opens by `open` and maps `len` bytes, within the time that is returned in ns. The close is not timed.
pub fn timed<F: AsFd>(len: usize, open: impl FnOnce() -> Result<F>) -> Result<(u64, Mapping)> {
    let start = now_ns();
    let file = open()?;
    let mapping = Mapping::of(&file, len)?;
    let ns = now_ns() - start;
    Ok((ns, mapping))
}
