// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the C functions of builders and of spawn templates, on a kernel without the system calls.
//!
//! `kernel/selftests` has the tests of the system calls, which differ in documented details.
#![cfg(feature = "std")]

mod authority;
mod builder;
mod support;
mod template;
