// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw system calls, kernel ABI structs and the few memory mappings that spawnfd needs.
//!
//! The core crate uses rustix for ordinary system calls. This crate has the calls that rustix lacks, and those that a
//! child makes while it shares its parent's memory. Such a child must not touch libc's errno, thread-local storage or
//! allocator, so every call here enters the kernel directly.
#![no_std]

extern crate alloc;
// This crate needs std only for `OwnedFd`. The code between clone and exec does not call std.
#[cfg(feature = "std")]
extern crate std;

mod arch;
mod args;
#[cfg(feature = "std")]
mod builder;
mod calls;
mod clone;
mod errno;
mod memory;
mod passing;
mod probe;
mod wait;

pub mod call;
pub mod spawn_abi;

pub use arch::Entry;
pub use args::{ArgBlock, ArgBuilder};
#[cfg(feature = "std")]
pub use builder::{Action as BuilderAction, ActionArg, Actions as BuilderActions, Builder, FailedAt, Given};
pub use calls::{Call, CallSet};
pub use clone::{CloneOptions, Cloned, FreshFd, clone_child, clone_child_by_pid, clone_child_into, has_clone3};
pub use errno::Errno;
pub use memory::{SharedWords, Stack, fork_generation, process_secret};
#[cfg(feature = "std")]
pub use passing::receive;
pub use passing::{MAX_PASSED, receive_descriptors, receive_with_sender, send};
pub use wait::{Ended, Used, kept_status, reap_unsignalled, signal_that_ended, wait_pid, wait_pidfd};

pub use linux_raw_sys::general as abi;
pub use linux_raw_sys::prctl;

/// A descriptor number as the kernel knows it.
pub type RawFd = core::ffi::c_int;
