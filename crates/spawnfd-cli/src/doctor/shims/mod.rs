// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds shims and measures their cost. A shim is a program in PATH that only starts another
//! program, its target.

mod find;
mod resolve;
mod time;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::as_text;
pub use find::{first_in_path, of_file};
pub use resolve::target;

/// The most frequently started tools. `doctor` runs only these.
const WELL_KNOWN: [&str; 22] = [
    "python", "python3", "node", "ruby", "npm", "cargo", "rustc", "npx", "pip", "pip3", "pytest", "yarn", "pnpm", "go",
    "gem", "bundle", "java", "perl", "php", "deno", "bun", "uv",
];

/// The time limit for all runs together.
const BUDGET: Duration = Duration::from_secs(8);

/// One program in PATH that starts another.
#[derive(Clone, Debug, Serialize)]
pub struct Shim {
    pub name: String,
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The tool that the shim belongs to: `pyenv`, `npm`, …, or `script`.
    pub tool: &'static str,
    /// The program that the shim starts, with the arguments that precede the caller's. `None` if unknown.
    #[serde(serialize_with = "as_texts")]
    pub target: Option<Vec<PathBuf>>,
    /// The reason why the target is unknown, or why `doctor` timed nothing.
    pub note: Option<String>,
    #[serde(flatten)]
    pub cost: Option<Cost>,
}

#[expect(clippy::ref_option, reason = "serde passes the field by reference")]
fn as_texts<S: Serializer>(paths: &Option<Vec<PathBuf>>, serializer: S) -> Result<S::Ok, S::Error> {
    let texts = paths.as_ref().map(|paths| paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>());
    texts.serialize(serializer)
}

/// The best times of a few runs through the shim and without it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    pub shim_seconds: f64,
    pub target_seconds: f64,
    pub cost_seconds: f64,
    pub rounds: u32,
}

/// Finds the shims in PATH. With `run`, also finds the targets of well-known shims by running their tools, and times
/// the shims.
pub fn find(run: bool) -> Vec<Shim> {
    let mut shims = find::in_path();
    let rank = |shim: &Shim| WELL_KNOWN.iter().position(|name| *name == shim.name).unwrap_or(WELL_KNOWN.len());
    shims.sort_by(|one, other| (rank(one), &one.name).cmp(&(rank(other), &other.name)));
    if !run {
        return shims;
    }
    let end = Instant::now() + BUDGET;
    for shim in shims.iter_mut().filter(|shim| WELL_KNOWN.contains(&shim.name.as_str())) {
        if Instant::now() >= end {
            shim.note = Some("not timed: the time limit for all shims was reached".to_owned());
            continue;
        }
        match resolve::target(shim) {
            Ok(target) => {
                match time::cost(&shim.path, &target, end) {
                    Ok(cost) => shim.cost = Some(cost),
                    Err(note) => shim.note = Some(note),
                }
                shim.target = Some(target);
            }
            Err(note) => shim.note = Some(note),
        }
    }
    shims
}
