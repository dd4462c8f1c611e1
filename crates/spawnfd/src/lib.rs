// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spawn templates for Linux: start the same programs again and again, as fast as the machine allows, without leaking a
//! descriptor, running a stale binary, widening a privilege, or losing a child.
//!
//! - [`Template`] pins one executable and checks it again at each spawn; [`TemplateCache`] makes templates on demand.
//! - [`Command`] says what to run and how, like [`std::process::Command`], and validates all of it before a child exists.
//! - [`Child`] is a running program, held by its pidfd.
//! - [`Command::run`] runs to the end and gives an [`Output`]: what came out, why it stopped, what it used.
//!
//! Cost does not grow with the caller's memory, threads or open descriptors. See `docs/ARCHITECTURE.md` for how.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod child;
mod command;
mod env;
mod error;
mod launch;
mod per_process;
mod reaper;
mod run;
pub mod snapshot;
pub mod support;
mod template;

pub use child::{Child, Usage};
pub use command::{ChildFd, Command, Descriptor, MAX_ACTIONS, Namespaces, OpenHow, SignalSet, Stdio};
pub use env::Env;
pub use error::{Errno, Error, ErrorKind, Result, Stage};
pub use run::{Drain, ExitError, Output, Run, RunHandle, Started, Stop};
pub use spawnfd_child::{CapabilitySets, Identity};
pub use spawnfd_sys::call::FilterInstruction;
pub use template::{CacheStats, Template, TemplateCache};
