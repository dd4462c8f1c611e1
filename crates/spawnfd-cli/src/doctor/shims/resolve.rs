// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a shim's target by running the shim's tool, because only the tool knows its rules.

use std::path::PathBuf;
use std::time::Duration;

use spawnfd::{Command, Run};

use super::Shim;
use super::find::first_in_path;

/// The time limit for one run of a tool.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// Returns the program that the shim starts in this directory, or why the program is unknown.
pub fn target(shim: &Shim) -> Result<Vec<PathBuf>, String> {
    if let Some(target) = &shim.target {
        return Ok(target.clone());
    }
    let tool = tool(shim).ok_or_else(|| format!("{} is not in PATH", shim.tool))?;
    let mut command = Command::new(&tool);
    command.args(["which", &shim.name]).parent_death_signal(9);
    let output = command.run_with(&Run::new().timeout(TIME_LIMIT)).map_err(|error| error.to_string())?;
    let text = output.stdout_text();
    let path = text.lines().next().unwrap_or_default().trim();
    if output.ok() && path.starts_with('/') {
        return Ok(vec![PathBuf::from(path)]);
    }
    let complaint = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().trim().to_owned();
    Err(if complaint.is_empty() { format!("'{} which {}' printed no path", shim.tool, shim.name) } else { complaint })
}

/// Returns the tool's program, from PATH or from `../bin` of the directory of the shims.
fn tool(shim: &Shim) -> Option<PathBuf> {
    let beside = || {
        let root = shim.path.parent()?.parent()?;
        let path = root.join("bin").join(shim.tool);
        path.is_file().then_some(path)
    };
    first_in_path(shim.tool).or_else(beside)
}
