// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a shim leads: its tool is asked, since only that knows the rules.

use std::path::PathBuf;
use std::time::Duration;

use spawnfd::{Command, Run};

use super::Shim;
use super::find::first_in_path;

/// How long a tool may think.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the shim starts here and now, or why that is not known.
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

/// The tool's own program: in PATH, or beside the shims, where all of these keep it.
fn tool(shim: &Shim) -> Option<PathBuf> {
    let beside = || {
        let root = shim.path.parent()?.parent()?;
        let path = root.join("bin").join(shim.tool);
        path.is_file().then_some(path)
    };
    first_in_path(shim.tool).or_else(beside)
}
