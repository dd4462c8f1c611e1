// SPDX-License-Identifier: MIT OR Apache-2.0
//! Authority belongs to threads. A program has the authority of the thread that starts it. The
//! library's own threads and guards act with the authority of the thread that they serve.

#[path = "../common/c.rs"]
mod c;
#[path = "../common/mod.rs"]
mod common;

mod confinements;
mod fuzz;
mod profiles;
mod programs;
mod services;
