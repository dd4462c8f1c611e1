// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures launches: the time to the first instruction, spawn and wait, and many threads at once.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use spawnfd_bench::captured;
use spawnfd_bench::definitions::{BusyPolicy, Definitions};
use spawnfd_bench::launch::Launch;
use spawnfd_bench::programs::{self, Programs};
use spawnfd_bench::report::Report;
use spawnfd_bench::worker;

/// Measures the methods of launching a program, interleaved, from small and large parents.
#[derive(Debug, Parser)]
struct Arguments {
    /// Take fewer samples: about a minute, with wide intervals.
    #[arg(long)]
    quick: bool,
    /// The JSON file to write.
    #[arg(long, default_value = "build/bench/launch.json")]
    out: PathBuf,
    /// Read definitions from this file instead of the built-in ones.
    #[arg(long)]
    definitions: Option<PathBuf>,
    /// Restrict the run: suite=NAME, filter=NAME or parent=NAME; may be repeated.
    #[arg(long, value_name = "KIND=NAME", value_parser = restriction)]
    only: Vec<String>,
    /// Exit with 1 if a ratio is outside its bounds.
    #[arg(long)]
    check: bool,
    /// Run as a worker with this specification (JSON). The benchmark starts itself with this flag.
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// Run as a worker of bench-job, with the method and the calls in this file (JSON).
    #[arg(long, hide = true, value_name = "FILE")]
    captured: Option<PathBuf>,
    /// Write the benchmark's own programs to this directory and exit. bench-compare uses this flag.
    #[arg(long, hide = true, value_name = "DIRECTORY")]
    install: Option<PathBuf>,
    /// Run this many busy threads. The benchmark starts itself with this flag for the control measurement.
    #[arg(long, hide = true)]
    busy: Option<usize>,
    /// Schedule the busy threads under SCHED_IDLE.
    #[arg(long, hide = true)]
    busy_idle: bool,
}

fn restriction(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("suite" | "filter" | "parent", _)) => Ok(text.to_owned()),
        _ => Err("must be suite=NAME, filter=NAME or parent=NAME".to_owned()),
    }
}

fn main() -> spawnfd_bench::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(spec) = &arguments.worker {
        worker::run(spec)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(job) = &arguments.captured {
        captured::serve(job)?;
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
