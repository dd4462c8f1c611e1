// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the test tools: the oracle (a program that prints its own state), confinement, seccomp
//! profiles, isolation, leak snapshots. Also a check of the child's object code.

mod borrowed_plan;
mod confine;
mod confine_program;
mod helpers;
mod no_panic;
mod oracle;
mod profiles;
