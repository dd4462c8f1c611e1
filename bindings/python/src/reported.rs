// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments that a run's Result and ExitError report.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// The arguments of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedArguments {
    /// The program's argv.
    pub argv: Vec<OsString>,
    /// True if the program's standard error is part of the captured standard output.
    pub stderr_merged: bool,
    /// Where the program has run. `None`: on this machine.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl ReportedArguments {
    /// The arguments of a run at this place.
    pub fn at(&self, place: Option<String>) -> ReportedArguments {
        ReportedArguments { place, ..self.clone() }
    }
}
