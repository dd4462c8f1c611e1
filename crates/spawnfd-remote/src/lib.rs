// SPDX-License-Identifier: MIT OR Apache-2.0
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod far;
pub mod files;
pub mod frame;
pub mod message;
pub mod near;
pub mod outbox;
mod turns;

pub use far::serve;
pub use near::Remote;
