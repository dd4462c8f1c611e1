// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the cross-launcher tests stand on: the state oracle, confinement, leak snapshots, isolation, deadlines.
//!
//! - [`State`]: all that a process can learn of itself, in this process or from the program `spawnfd-oracle`.
//! - [`confine`]: seccomp and capabilities as in a Docker container, seccomp profiles, or single system calls refused.
//! - [`copy`]: forks of the test itself.
//! - [`leaks::Snapshot`]: descriptors, children, threads and temporary files, before and after.
//! - [`isolated!`]: runs one test alone in a process of its own. [`deadline()`]: ends a test that hangs.
//! - [`enough_time()`]: for programs whose clock starts with them.
//! - [`skip`], [`require_root`], [`has_syscall`]: a test that cannot run here says so.

mod caps;
pub mod confine;
pub mod copy;
mod deadline;
mod isolated;
pub mod leaks;
mod pace;
mod raw;
mod scratch;
mod skips;
mod state;

pub use deadline::deadline;
pub use isolated::{Confined, Isolated};
pub use pace::enough_time;
pub use raw::{has_builders, has_clone3};
pub use scratch::{copy_of_program, program, scratch};
pub use skips::{has_syscall, is_root, require_root, require_syscall, skip};
pub use state::{Action, Answer, Child, Fd, Limit, Place, Refusal, Scheduler, State, Timer, Uids};
pub use syscalls::{Errno, Sysno};
