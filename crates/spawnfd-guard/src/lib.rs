// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process trees: finds and kills their members. Also contains the helper program that does this when the owner of the
//! trees has died.
//!
//! With the feature `helper`, `build.rs` builds the helper (`helper.rs`, [`IMAGE`]) as a separate program, from the
//! same modules that the core uses in the host. So the helper and the host agree about the members of a tree. The
//! modules use only `core`, `alloc` and a few system calls ([`sys`]), because the helper has no libc.
//!
//! - [`process`]: one process, distinguished by its start time from a later one with the same pid.
//! - [`members`]: finds the processes of a tree in /proc, and kills them.
//! - [`cgroup`]: finds and kills the processes of a tree that is a cgroup.
//! - [`descendants`]: finds and kills the processes below a helper process. In a tree that is a pid namespace, the
//!   helper is the namespace's first process (`init.rs`). In a tree with a subreaper, the helper is the subreaper
//!   (`reap.rs`).
//! - [`broker`]: starts the shell of a session in a sandbox, and holds the files of the shell's commands.
//! - [`table`]: the memory that the owner and the guard (the running helper) share. [`watch`]: the guard's loop.
#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod clock;
mod syscall;

pub mod broker;
pub mod cgroup;
pub mod descendants;
pub mod members;
pub mod process;
pub mod sys;
pub mod table;
pub mod watch;

/// The helper: a static executable. `None` if the feature `helper` is off.
#[cfg(feature = "helper")]
pub static IMAGE: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-guard")));
/// The helper. This build does not contain it, because the feature `helper` is off.
#[cfg(not(feature = "helper"))]
pub static IMAGE: Option<&[u8]> = None;
