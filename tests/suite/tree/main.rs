// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process trees: every member is found, signalled and ended, in each tier.

#[path = "../common/mod.rs"]
mod common;

mod attacked;
mod guard;
mod owner;
mod pidns;
mod subreaper;
mod trees;
