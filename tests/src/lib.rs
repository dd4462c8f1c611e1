// SPDX-License-Identifier: MIT OR Apache-2.0
//! Support for the tests of spawnfd: the state oracle, confinement, leak snapshots, isolation, deadlines.
//!
//! - [`State`]: everything a process can learn about itself, in this process or from the program `spawnfd-oracle`.
//! - [`confine`]: seccomp and capabilities as in a Docker container, seccomp profiles, single refused system calls.
//! - [`copy`]: forks of the test process itself.
//! - [`leaks::Snapshot`]: descriptors, children, threads and temporary files, before and after.
//! - [`isolated!`]: runs one test in a process of its own. [`deadline()`]: aborts a test that hangs.
//! - [`enough_time()`]: retries a program under a time limit, with a longer limit each time.
//! - [`skip`], [`require_root`], [`has_syscall`]: report a test that cannot run on this system.

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
