// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the cost of a shim: runs the shim and its target alternately, and compares the best times.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spawnfd::job::Stop;
use spawnfd::{Command, Run};

use super::Cost;

/// The maximum number of rounds. More rounds do not improve the best time.
const MAX_ROUNDS: u32 = 7;
/// The minimum number of rounds for a meaningful result.
const MIN_ROUNDS: u32 = 2;
/// The time limit for one run.
const RUN_LIMIT: Duration = Duration::from_secs(3);
/// The time limit for one shim. It keeps a slow shim from using up the total time limit.
const SHIM_LIMIT: Duration = Duration::from_millis(1000);

/// Measures `--version` through the shim and directly, until `end`.
pub fn cost(shim: &Path, target: &[PathBuf], end: Instant) -> Result<Cost, String> {
    let end = end.min(Instant::now() + SHIM_LIMIT);
    let mut best = [f64::INFINITY; 2];
    let direct = [shim.to_owned()];
    let mut rounds = 0;
    while rounds < MAX_ROUNDS && (rounds < MIN_ROUNDS || Instant::now() < end) {
        for (best, program) in best.iter_mut().zip([&direct[..], target]) {
            *best = best.min(once(program)?);
        }
        rounds += 1;
    }
    let [shim, target] = best;
    Ok(Cost { shim_seconds: shim, target_seconds: target, cost_seconds: shim - target, rounds })
}

/// Returns the seconds from the start of `PROGRAM… --version` to the end of its output.
fn once(program: &[PathBuf]) -> Result<f64, String> {
    let Some((first, rest)) = program.split_first() else { return Err("not timed: nothing to run".to_owned()) };
    let mut command = Command::new(first);
    // The kernel kills the program if this command dies, so the program does not outlive this command.
    command.args(rest).arg("--version").parent_death_signal(9);
    let output =
        command.run_with(&Run::new().timeout(RUN_LIMIT).keep(0, 200)).map_err(|error| format!("not timed: {error}"))?;
    match (output.stop, output.ok()) {
        (Stop::Timeout, _) => Err(format!("not timed: '--version' took more than {} s", RUN_LIMIT.as_secs())),
        (_, false) => Err("not timed: '--version' failed".to_owned()),
        _ => Ok(output.wall.as_secs_f64()),
    }
}
