// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both halves of one spawn: the parent, and the child that runs until exec.
//!
//! [`Plan`] says everything beforehand. [`launch`] gives birth to a child that carries it out in `become_program`, and sleeps until the
//! child has become the program, or failed; [`take_off`] and [`take_off_apart`] do not wait for that. [`leave_marker`] makes one that is no program at all,
//! [`killed_calls`] one that makes system calls a filter may kill.
//!
//! # Contract of the child's half
//! The child may share its parent's memory while other threads of the parent run. So between clone and exec there is
//! no allocation, no lock, no panic, no Drop, no libc, no thread-local storage, and no write but to the child's own
//! stack, to the one word it reports through, and to the one it announces itself in. What it reads is the plan, which nobody changes meanwhile.
#![no_std]

extern crate alloc;

mod action;
mod announce;
mod child;
mod descriptors;
mod launch;
mod namespace;
mod plan;
mod report;
mod table;

pub use action::{Arg, CapabilitySets, Op, Parked, SystemCall};
pub use announce::Announcement;
pub use launch::{Born, Flight, LaunchError, Lent, Room, killed_calls, launch, leave_marker, take_off, take_off_apart};
pub use namespace::{Namespace, detach_in_namespace, launch_in_namespace};
pub use plan::{Check, Handlers, Identity, Pinned, Plan, Program, Step, Table, is_candidate};
pub use report::{Failure, Outcome, PENDING, Stage};

/// How many descriptors a plan may name as sources: one for each of 256 actions, and 0 to 2, the executable, the cgroup of a tree, and
/// the working directory.
/// Up to [`spawnfd_sys::MAX_PASSED`] of them can be passed; more ask for a copied table.
pub const MAX_SOURCES: usize = 262;
