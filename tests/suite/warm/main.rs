// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parked processes and zygotes, beyond the suites that run through every launcher.

#[path = "../common/mod.rs"]
mod common;

mod authority;
mod confined;
mod request;
mod zygote;
