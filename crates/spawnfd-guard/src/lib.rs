// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process trees: who belongs to one, how all of it is ended, and the helper that does so when the owner has died.
//!
//! The helper (`helper.rs`, [`IMAGE`]) is a program of its own, built by `build.rs` from the same modules that the core uses in
//! the host, so that both have one notion of a tree. The modules stand on `core`, `alloc` and a dozen system calls ([`sys`]):
//! rustix and spawnfd-sys are for processes that have a libc.
//!
//! - [`process`]: one process, told from a later one of the same number by its start time.
//! - [`members`]: the processes of a tree, found in /proc, and how they are ended.
//! - [`cgroup`]: the same where the tree is a cgroup.
//! - [`namespace`]: the same where the tree is a pid namespace; `init.rs`: what that one's first process does.
//! - [`table`]: the memory that owner and guard share; [`watch`]: what the guard does.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod syscall;

pub mod cgroup;
pub mod members;
pub mod namespace;
pub mod process;
pub mod sys;
pub mod table;
pub mod watch;

/// The helper: a static executable.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-guard"));
