// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw system calls, kernel ABI structs and the few memory mappings spawnfd needs.
//!
//! What rustix offers is used from rustix by the core crate. Here stands only what it lacks or what
//! must also work in a child that shares its parent's memory, where errno, thread-local storage and
//! the allocator of libc are out of bounds: every call goes straight to the kernel.
#![no_std]

extern crate alloc;
// For `OwnedFd` alone: nothing here calls into std.
extern crate std;

mod arch;
mod args;
mod builder;
mod calls;
mod clone;
mod errno;
mod memory;
mod passing;
mod probe;
mod wait;

pub mod call;

pub use arch::Entry;
pub use args::{ArgBlock, ArgBuilder};
pub use builder::{Action as BuilderAction, ActionArg, Actions as BuilderActions, Builder, FailedAt, Given};
pub use calls::{Call, Calls};
pub use clone::{Birth, Cloned, FreshFd, clone_child, has_clone3};
pub use errno::Errno;
pub use memory::{SharedWords, Stack, fork_generation};
pub use passing::{MAX_PASSED, pass_descriptors, receive, receive_descriptors, send};
pub use wait::{Ended, Used, reap_unsignalled, signal_that_ended, wait_pidfd};

pub use linux_raw_sys::general as abi;
pub use linux_raw_sys::prctl;

/// A descriptor number as the kernel knows it.
pub type RawFd = core::ffi::c_int;
