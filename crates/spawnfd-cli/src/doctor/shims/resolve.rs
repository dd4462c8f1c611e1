// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a shim's target by running its tool, as only the tool knows the rules.

use std::path::PathBuf;
use std::time::Duration;

use spawnfd::{Command, Run};

use super::Shim;
use super::find::first_in_path;

/// The time limit for one run of a tool.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns the program that the shim starts in this directory, or why it is unknown.
pub fn target(shim: &Shim) -> Result<Vec<PathBuf>, String> {
    if let Some(target) = &shim.target {
        return Ok(target.clone());
    }
    let tool = tool(shim).ok_or_else(|| format!("{} itself is not in PATH", shim.tool))?;
    let mut command = Command::new(&tool);
    command.args(["which", &shim.name]).parent_death_signal(9);
    let output = command.run_with(&Run::new().timeout(PATIENCE)).map_err(|error| error.to_string())?;
    let text = output.text();
    let path = text.lines().next().unwrap_or_default().trim();
    if output.ok() && path.starts_with('/') {
        return Ok(vec![PathBuf::from(path)]);
    }
    let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().trim().to_owned();
    Err(if said.is_empty() { format!("'{} which {}' does not say", shim.tool, shim.name) } else { said })
}

/// Returns the tool's program, from PATH or from its usual place beside the shims.
fn tool(shim: &Shim) -> Option<PathBuf> {
    let beside = || {
        let root = shim.path.parent()?.parent()?;
        let path = root.join("bin").join(shim.tool);
        path.is_file().then_some(path)
    };
    first_in_path(shim.tool).or_else(beside)
}
