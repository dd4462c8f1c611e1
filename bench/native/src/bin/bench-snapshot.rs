// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times snapshots of an executable or library against plain open and sendfile.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use spawnfd_bench::Result;
use spawnfd_bench::definitions::Definitions;
use spawnfd_bench::report::Report;
use spawnfd_bench::snapshot;

/// Times the ways to a mapping of a 662 KB library, interleaved.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer samples.
    #[arg(long)]
    quick: bool,
    /// Where the JSON goes; the library's file lies beside it, on the same file system.
    #[arg(long, default_value = "build/bench/snapshot.json")]
    out: PathBuf,
    /// Definitions other than the built-in ones.
    #[arg(long)]
    definitions: Option<PathBuf>,
    /// Exit with 1 when a bar is not met.
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
