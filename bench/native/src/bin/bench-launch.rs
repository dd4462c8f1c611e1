// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times launches: first instruction, whole life, and many threads at once.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use spawnfd_bench::definitions::{BusyPolicy, Definitions};
use spawnfd_bench::launch::Launch;
use spawnfd_bench::programs::{self, Programs};
use spawnfd_bench::report::Report;
use spawnfd_bench::worker;

/// Times the ways to launch a program, interleaved, from parents large and small.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer samples: a minute's look, not a figure to quote.
    #[arg(long)]
    quick: bool,
    /// Where the JSON goes.
    #[arg(long, default_value = "build/bench/launch.json")]
    out: PathBuf,
    /// Definitions other than the built-in ones.
    #[arg(long)]
    definitions: Option<PathBuf>,
    /// Restrict the run: suite=NAME, filter=NAME or parent=NAME; may be repeated.
    #[arg(long, value_name = "KIND=NAME", value_parser = restriction)]
    only: Vec<String>,
    /// Exit with 1 when a bar is not met.
    #[arg(long)]
    check: bool,
    /// What this process is, when the benchmark starts itself as a parent.
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// Write the benchmark's own programs to this directory and exit, for bench-compare.
    #[arg(long, hide = true, value_name = "DIRECTORY")]
    install: Option<PathBuf>,
    /// How many busy threads, when it starts itself as the control.
    #[arg(long, hide = true)]
    busy: Option<usize>,
    /// Its threads give way to launches.
    #[arg(long, hide = true)]
    busy_idle: bool,
}

fn restriction(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("suite" | "filter" | "parent", _)) => Ok(text.to_owned()),
        _ => Err("suite=NAME, filter=NAME or parent=NAME".to_owned()),
    }
}

fn main() -> spawnfd_bench::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(role) = &arguments.worker {
        worker::run(role)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(directory) = &arguments.install {
        programs::install_into(directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(count) = arguments.busy {
        let policy = if arguments.busy_idle { BusyPolicy::Idle } else { BusyPolicy::Other };
        worker::busy::run(count, policy)?;
        return Ok(ExitCode::SUCCESS);
    }
    let definitions = Definitions::load(arguments.definitions.as_deref())?;
    let programs = Programs::install()?;
    let launch =
        Launch { definitions: &definitions, quick: arguments.quick, only: &arguments.only, programs: &programs };
    let samples = launch.run()?;
    let report = Report::new("launch", arguments.quick, &definitions, &samples);
    report.write(&arguments.out)?;
    report.print(&mut std::io::stdout().lock())?;
    println!("\n{}", arguments.out.display());
    Ok(if arguments.check && !report.met() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
