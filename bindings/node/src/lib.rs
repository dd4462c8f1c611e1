// SPDX-License-Identifier: MIT OR Apache-2.0
//! The native half of the Node package `spawnfd`. The other half, in TypeScript, has the public classes.
//!
//! No function waits, except `runSync`. The library's thread performs what takes time, a start included, and puts
//! outcomes into a [`Queue`](queue::Queue), which the JavaScript thread empties.
#![expect(clippy::result_large_err, reason = "one result a call")]
#![expect(missing_debug_implementations, reason = "no Rust code uses the types")]

mod actions;
mod child;
mod child_sync;
mod connection;
mod env;
mod errors;
mod job;
mod limiter;
mod program;
mod queue;
mod remote;
mod remote_session;
mod request;
mod result;
mod run;
mod sandbox;
mod session;
mod template;
mod values;
mod warm;
