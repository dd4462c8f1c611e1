// SPDX-License-Identifier: MIT OR Apache-2.0
//! Authority belongs to threads. A program has that of the thread that starts it, and whatever acts for a caller has the caller's.

#[path = "../common/mod.rs"]
mod common;

mod confinements;
mod fuzz;
mod profiles;
mod programs;
mod services;
