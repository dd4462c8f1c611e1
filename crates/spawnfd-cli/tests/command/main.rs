// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spawnfd command, as people and scripts call it.

mod common;

mod attributes;
mod captured;
mod doctor;
mod exit;
mod manual;
mod owner;
mod plan;
mod posix_spawn;
mod serve;
mod shell;
mod terminal;
mod warm;
