// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the C functions of the builder as a C program calls them.
#![cfg(feature = "std")]

mod attributes;
mod authority;
#[path = "../common/mod.rs"]
mod common;
mod configuration;
mod files;
mod program;
mod refused;
mod running;
mod support;
