// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of parked processes and zygotes (parked processes that fork). Other suites also start programs from parked
//! processes, as one launcher of many.

#[path = "../common/mod.rs"]
mod common;

mod authority;
mod confined;
mod entry;
mod executors;
mod request;
mod resources;
mod zygote;
