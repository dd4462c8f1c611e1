// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of spawn templates in user space, on a kernel without the system calls.
//!
//! `kernel/selftests/template.c` tests the system calls, which differ in documented details.

mod actions;
mod authority;
#[path = "../common/mod.rs"]
mod common;
mod create;
mod filters;
mod spawn;
mod support;
