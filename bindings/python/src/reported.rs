// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments that a run's Result and ExitError report.

use std::ffi::OsString;
use std::time::Duration;

/// The arguments of one run.
#[derive(Clone, Debug)]
pub struct ReportedArguments {
    /// The program's argv.
    pub argv: Vec<OsString>,
    pub timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub output_limit: Option<u64>,
    /// True if the program's standard error is part of the captured standard output.
    pub stderr_merged: bool,
}
