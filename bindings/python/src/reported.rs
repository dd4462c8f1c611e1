// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of a run that its Result keeps, for reports.

use std::ffi::OsString;
use std::time::Duration;

/// The arguments of a run that its Result and ExitError report.
#[derive(Clone, Debug)]
pub struct ReportedArguments {
    /// The program's argv.
    pub argv: Vec<OsString>,
    pub timeout: Option<Duration>,
    pub output_limit: Option<u64>,
    /// Whether the program's standard error is part of the captured standard output.
    pub stderr_merged: bool,
}
