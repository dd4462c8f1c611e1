// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that bench-launch, bench-snapshot, bench-job and bench-compare start. It measures what they order.

use std::path::PathBuf;

use clap::Parser;
use spawnfd_bench::worker::protocol::BusyPolicy;
use spawnfd_bench::{Result, captured, counted, programs, snapshot, worker};

/// Measures launches and snapshots. The benchmarks in Python start this program: see bench/native/README.md.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    order: Order,
    /// Schedule the busy threads under SCHED_IDLE.
    #[arg(long)]
    busy_idle: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Order {
    /// Run as a worker with this specification (JSON).
    #[arg(long)]
    worker: Option<String>,
    /// Run as a worker of bench-job, with the method and the calls in this file (JSON).
    #[arg(long, value_name = "FILE")]
    captured: Option<PathBuf>,
    /// Measure snapshots of a library of this specification (JSON).
    #[arg(long)]
    snapshot: Option<String>,
    /// Write the benchmark's own programs to this directory and exit.
    #[arg(long, value_name = "DIRECTORY")]
    install: Option<PathBuf>,
    /// Count instructions in an emulated machine, with the programs in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    counted: Option<PathBuf>,
    /// Run this many busy threads. A worker starts this program with this flag for the control measurement.
    #[arg(long)]
    busy: Option<usize>,
}

fn main() -> Result<()> {
    let Arguments { order, busy_idle } = Arguments::parse();
    if let Some(spec) = &order.worker {
        worker::run(spec)
    } else if let Some(job) = &order.captured {
        captured::serve(job)
    } else if let Some(spec) = &order.snapshot {
        snapshot::run(spec)
    } else if let Some(directory) = &order.install {
        programs::install_into(directory)
    } else if let Some(directory) = &order.counted {
        counted::run(directory)
    } else {
        let policy = if busy_idle { BusyPolicy::Idle } else { BusyPolicy::Other };
        worker::busy::run(order.busy.unwrap_or_default(), policy)
    }
}
