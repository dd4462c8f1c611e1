// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares snapshots of a library with plain open and sendfile.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use spawnfd_bench::Result;
use spawnfd_bench::definitions::Definitions;
use spawnfd_bench::report::Report;
use spawnfd_bench::snapshot;

/// Measures the methods of mapping a 662 KB library, interleaved.
#[derive(Debug, Parser)]
struct Arguments {
    /// Take fewer samples.
    #[arg(long)]
    quick: bool,
    /// The JSON file to write. The library's file is created in the same directory.
    #[arg(long, default_value = "build/bench/snapshot.json")]
    out: PathBuf,
    /// Read definitions from this file instead of the built-in ones.
    #[arg(long)]
    definitions: Option<PathBuf>,
    /// Exit with 1 if a ratio is outside its bounds.
    #[arg(long)]
    check: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let definitions = Definitions::load(arguments.definitions.as_deref())?;
    let directory = arguments.out.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let samples = snapshot::run(&definitions, directory, arguments.quick)?;
    let report = Report::new("snapshot", arguments.quick, &definitions, &samples);
    report.write(&arguments.out)?;
    report.print(&mut std::io::stdout().lock())?;
    println!("\n{}", arguments.out.display());
    Ok(if arguments.check && !report.met() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
