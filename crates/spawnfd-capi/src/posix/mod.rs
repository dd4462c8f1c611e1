// SPDX-License-Identifier: MIT OR Apache-2.0
//! posix_spawn(3), with the behaviour and the types of glibc 2.41.
//!
//! The functions work in any process: they start no thread, keep no descriptor open, and allocate memory only where
//! glibc does. A pool keeps the mapped stacks of earlier calls.

mod actions;
mod attributes;
mod next;
mod spawn;
pub(crate) mod stacks;

pub use actions::*;
pub use attributes::*;
pub use spawn::*;

use core::ffi::c_int;

use spawnfd_sys::Errno;

/// Returns what a function of posix_spawn returns: 0 or an errno.
fn status(result: Result<(), Errno>) -> c_int {
    result.err().map_or(0, Errno::raw)
}
