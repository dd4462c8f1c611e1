// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs, jobs, sessions and parked processes: the crate `spawnfd` for C programs.
//!
//! A `spawnfd_command` has a program, its arguments and its options. [`spawnfd_run`] runs it to its end and returns a
//! `spawnfd_result`. [`spawnfd_start`] returns a `spawnfd_job`, whose output the caller can read while the program runs.
//! A `spawnfd_session` is a shell that runs one command after the other, and a `spawnfd_warm` is a set of parked
//! processes. A `spawnfd_remote` is a connection to another machine, where runs and jobs are possible, too. Options and actions have the names, the text forms and the defaults of the command `spawnfd run`.
//!
//! # Errors
//! A function that fails returns NULL or -1, sets errno, and fills a [`spawnfd_error`] if the caller passes one. A
//! program that fails is a result, not an error. These errors apply to all functions:
//! - EINVAL: an argument is NULL that must not be NULL, or a name is not valid UTF-8. Or the member `size` of the error
//!   is too small; the error is then left unchanged.
//! - ECHILD: the job, session, connection or set of parked processes belongs to the parent of this forked process.
//! - ENOTRECOVERABLE: a defect of the library; the message says where.
//!
//! # Threads
//! All functions can be called in any thread. Several threads can use one job, session, result, connection or set of
//! parked processes at once. They can also run one command at once, while no thread changes it. A free must be the last use of its object.
//!
//! # Fork
//! A forked child can use copies of commands and results. Other objects stay with the parent: calls in the child fail
//! with ECHILD, and a free in the child has no effect. The child can create its own objects.
#![allow(non_camel_case_types)]

mod command;
mod error;
mod job;
mod remote;
mod result;
mod session;
mod warm;

pub use command::*;
pub use error::*;
pub use job::*;
pub use remote::*;
pub use result::*;
pub use session::*;
pub use warm::*;
