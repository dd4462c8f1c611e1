// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both halves of one spawn: the parent, and the child that runs until exec.
//!
//! The parent builds a complete [`Plan`] before the child exists, and the child performs it in `enter`. [`launch`]
//! creates the child and sleeps until the child has exec'd or failed. [`launch_async`] returns without waiting for
//! exec. The [`Parent`] of the child is the caller or an intermediate process. [`leave_marker`] creates a child that
//! exits at once. [`probe_killed_calls`] creates children that probe for which system calls a seccomp filter kills the
//! process.
//!
//! # Contract of the child's half
//! The child may share its parent's memory while other threads of the parent run. So between clone and exec the child
//! does not allocate, lock, panic, drop, call libc or use thread-local storage. It writes only to its own stack, to
//! the word of its report, and to its `GuardRegistration`. It reads the plan, which does not change until exec.
#![no_std]

extern crate alloc;

mod action;
mod below_subreaper;
mod child;
mod data;
mod descriptors;
mod launch;
mod namespace;
mod plan;
mod posix;
mod registration;
mod report;
mod table;
mod template;

pub use action::{Arg, CapabilitySets, Op, SystemCall};
pub use below_subreaper::{BelowSubreaper, Subreaper};
pub use data::Data;
pub use launch::{
    AsyncStart, Caller, ChildMemory, Parent, SlotInUse, launch, launch_async, leave_marker, probe_killed_calls,
};
pub use namespace::{InNamespace, Namespace};
pub use plan::{Check, Identity, Pinned, Plan, Program, Step, Table, is_candidate};
pub use posix::{PosixAction, PosixProgram, PosixScheduling, PosixSpawn, spawn_posix};
pub use registration::GuardRegistration;
pub use report::{ChildStage, Failure, Outcome, PENDING};
pub use template::{TemplateAction, TemplateProgram, TemplateSpawn, spawn_template};

/// The maximum number of descriptors that a plan may name as sources.
///
/// The sources are one descriptor for each of 256 actions, and six more: 0 to 2, the executable,
/// the cgroup of a tree, and the working directory. One message carries up to
/// [`spawnfd_sys::MAX_PASSED`] descriptors. A plan with more sources needs `Table::Copied`.
pub const MAX_SOURCES: usize = 262;
