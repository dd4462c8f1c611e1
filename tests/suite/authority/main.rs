// SPDX-License-Identifier: MIT OR Apache-2.0
//! Authority belongs to threads: a program has the authority of the thread that starts it, and the library's own
//! threads and guards act with the authority of the thread they serve.

#[path = "../common/mod.rs"]
mod common;

mod confinements;
mod fuzz;
mod profiles;
mod programs;
mod services;
