// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd warm explain`: reports whether a program can start warm, what this saves, and what to change if not.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use spawnfd::warm::{Explanation, Mode, WarmOptions};
use spawnfd::{Command, Warm as Reserve};

use crate::failure::{self, Failure};

/// The longest wait for the program to park.
const PARK_TIME: Duration = Duration::from_secs(30);

/// Report on warm starts: from processes that have been started ahead
#[derive(Debug, Args)]
pub struct Warm {
    #[command(subcommand)]
    subcommand: WarmCommand,
}

#[derive(Debug, Subcommand)]
enum WarmCommand {
    Explain(Explain),
}

/// Report whether a program would start warm, and if not, why and what to change
///
/// The command parks one process of the program, as a Warm of the library does after the program's first start. It then
/// compares the process with a start of the program by this command. It does not run the program beyond the point at
/// which it parks: before main(), or after an interpreter's initialisation.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: spawnfd warm explain -- python3 -I -c 'print(1)'

Exit status: 0 after a report; 125 if this command failed; 126 if PROGRAM cannot be executed; 127 if PROGRAM was not \
found.")]
struct Explain {
    /// The mode of the parked processes
    #[arg(long, value_enum, default_value = "reserve")]
    mode: ParkMode,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// The program, a path or a name to search in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ParkMode {
    /// Each parked process becomes one program
    Reserve,
    /// Parked processes are forks of one parent; for trusted input only
    Fork,
}

#[derive(Debug, Serialize)]
struct WarmReport {
    /// As in the results of runs.
    started: String,
    saves_seconds: f64,
    /// The private memory of a parked process. `null` for a cold start.
    memory_bytes: Option<u64>,
    meaning: Option<&'static str>,
    remedy: Option<&'static str>,
}

impl Warm {
    pub fn run(&self) -> Result<(), Failure> {
        let WarmCommand::Explain(explain) = &self.subcommand;
        explain.run()
    }
}

impl Explain {
    fn run(&self) -> Result<(), Failure> {
        let mode = match self.mode {
            ParkMode::Reserve => Mode::Reserve,
            ParkMode::Fork => Mode::Fork,
        };
        let warm = Reserve::new(WarmOptions::new().mode(mode))?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        if !warm.add_command(&command)? {
            let message = "cannot tell the options of the interpreter from its other arguments; put the options first";
            return Err(Failure::new(message));
        }
        warm.fill(PARK_TIME);
        let explanation = warm.explain(&command)?;
        let stats = warm.stats();
        let memory = explanation.is_warm().then(|| stats.memory / stats.parked.max(1) as u64);
        failure::print(if self.json { json(&explanation, memory)? } else { text(&explanation, memory) }.as_bytes())
    }
}

fn json(explanation: &Explanation, memory: Option<u64>) -> Result<String, Failure> {
    let report = WarmReport {
        started: explanation.started.name().into_owned(),
        saves_seconds: explanation.saves.as_secs_f64(),
        memory_bytes: memory,
        meaning: explanation.meaning(),
        remedy: explanation.remedy(),
    };
    let text = serde_json::to_string_pretty(&report).map_err(|error| Failure::new(error.to_string()))?;
    Ok(text + "\n")
}

fn text(explanation: &Explanation, memory: Option<u64>) -> String {
    let mut text = format!("{explanation}\n");
    if let Some(memory) = memory {
        let mib = memory as f64 / f64::from(1 << 20);
        text += &format!("A parked process has {mib:.1} MiB of memory of its own.\n");
    }
    text
}
