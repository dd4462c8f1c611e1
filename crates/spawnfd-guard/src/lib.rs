// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process trees: finds and kills their members. Also contains the helper program that does this when the owner of the
//! trees has died.
//!
//! `build.rs` builds the helper (`helper.rs`, [`IMAGE`]) as a separate program, from the same modules that the core
//! uses in the host. So the helper and the host agree about the members of a tree. The modules use only `core`,
//! `alloc` and a few system calls ([`sys`]), because the helper has no libc.
//!
//! - [`process`]: one process, distinguished by its start time from a later one with the same pid.
//! - [`members`]: finds the processes of a tree in /proc, and kills them.
//! - [`cgroup`]: finds and kills the processes of a tree that is a cgroup.
//! - [`namespace`]: finds and kills the processes of a tree that is a pid namespace. `init.rs` is the namespace's
//!   first process.
//! - [`table`]: the memory that the owner and the guard (the running helper) share. [`watch`]: the guard's loop.
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
