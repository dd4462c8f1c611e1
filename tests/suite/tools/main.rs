// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tools of the tests themselves: the state oracle, confinement, seccomp profiles, isolation, leak snapshots; and
//! a check of the child's object code.

mod borrowed_plan;
mod confine;
mod confine_program;
mod helpers;
mod no_panic;
mod oracle;
mod profiles;
