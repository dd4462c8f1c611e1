// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spawn templates for Linux: start the same programs again and again, as fast as the machine allows, without leaking a
//! descriptor, running a stale binary, widening a privilege, or losing a child.
//!
//! - [`Template`] pins one executable and checks it again at each spawn; [`TemplateCache`] makes templates on demand.
//! - [`Command`] says what to run and how, like [`std::process::Command`]. It validates everything before a child
//!   exists.
//! - [`Child`] is a running program, identified by its pidfd.
//! - [`Command::run`] runs a program to its end and returns an [`Output`]: what the program wrote, why it stopped,
//!   and the resources it used.
//! - [`Command::run_with`] takes a [`Run`] with a timeout, output and input options, [`Limits`], a [`Limiter`], and
//!   how to control the process [`tree`].
//! - [`Command::start`] returns a [`Job`]: a run in progress. The caller can read from it, write to it and wait for
//!   it.
//! - [`Sandbox`] starts programs through a confining command such as `bwrap`. [`Warm`] keeps processes started in
//!   advance. [`snapshot`] makes immutable copies of files.
//! - [`Command::run_async`] and [`Job::wait_async`] are futures for any executor. With the feature `tokio`,
//!   `JobOutput` and `JobInput` implement tokio's read and write traits. With the feature `serde`, [`Output`]
//!   implements `Serialize`.
//!
//! The cost of a spawn does not grow with the caller's memory, threads or open descriptors. `docs/ARCHITECTURE.md`
//! explains why.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[macro_use]
mod macros;

mod child;
mod command;
mod env;
mod error;
mod host;
mod idle;
mod job;
mod launch;
mod limiter;
mod reaper;
mod sandbox;
mod signals;
pub mod snapshot;
pub mod support;
mod template;
pub mod tree;
mod waker;
mod warm;

pub use child::{Child, Started, Usage};
pub use command::{ChildFd, Command, Descriptor, MAX_ACTIONS, Namespaces, OpenHow, Stdio};
pub use env::Env;
pub use error::{Errno, Error, ErrorKind, Result, Stage};
pub use host::descriptors::CheckedFd;
#[doc(hidden)]
pub use host::features::killed as killed_calls;
pub use host::per_process::PerProcess;
pub use idle::end_idle_threads;
pub use job::{
    Chunk, Decoder, Drain, Enforce, Enforcer, Event, EventOptions, Events, ExitError, Fate, Job, Leftover, Leftovers,
    Limit, Limits, LineEnd, Omitted, Output, OutputReader, Piece, ReadStatus, Resource, Run, RunHandle, SharedBytes,
    Spill, SpillEnd, SpillFile, Spilled, Stop, Stream, TerminalSize, WhenFull, text_of,
};
#[cfg(feature = "tokio")]
pub use job::{JobInput, JobOutput};
pub use limiter::{Acquiring, Limiter, Permit};
pub use sandbox::Sandbox;
pub use signals::SignalSet;
pub use spawnfd_child::{CapabilitySets, Identity};
pub use spawnfd_sys::call::FilterInstruction;
#[doc(hidden)]
pub use spawnfd_sys::{Call, Calls};
pub use template::{CacheStats, Template, TemplateCache};
pub use waker::Waker;
pub use warm::{Kind, Mode, Park, Warm, WarmOptions, WarmStats};
