// SPDX-License-Identifier: MIT OR Apache-2.0
//! Supervised runs and jobs: output, input, terminals, timeouts, limits; and problems that users of agents report.

#[path = "../common/mod.rs"]
mod common;

mod child_future;
mod combinations;
mod complaints;
mod futures;
mod jobs;
mod leftovers;
mod limiter;
mod limits;
mod loops;
mod output;
mod processes;
mod run;
mod terminal;
mod unkillable;
