// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workers of bench-launch and bench-snapshot, and a worker of bench-job. bench/native/README.md describes the
//! measurements.

pub mod captured;
pub mod clock;
pub mod counted;
pub mod docker;
pub mod methods;
pub mod programs;
pub mod random;
pub mod snapshot;
pub mod worker;

pub use anyhow::Result;
