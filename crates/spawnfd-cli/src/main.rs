// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `spawnfd` command: runs a program through the library, and reports the features of this machine.
#![deny(unsafe_code)]

mod cli;
mod doctor;
mod failure;
mod manual;
mod options;
mod ordered;
mod os;
mod run;
mod serve;
mod shell;
mod table;
mod usage;
mod warm;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Subcommands};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error).into(),
    };
    let outcome = match cli.subcommand {
        Subcommands::Run(run) => run.run(),
        Subcommands::Shell(shell) => shell.run(),
        Subcommands::Serve(serve) => serve.run(),
        Subcommands::Files(files) => files.run().map(|()| 0),
        Subcommands::Doctor(doctor) => doctor.run().map(|()| 0),
        Subcommands::Warm(warm) => warm.run().map(|()| 0),
        Subcommands::Completions { shell } => manual::completions(shell).map(|()| 0),
        Subcommands::Man => manual::page().and_then(|page| failure::print(&page)).map(|()| 0),
    };
    match outcome {
        Ok(code) => code.into(),
        Err(failure) => {
            failure.print();
            failure.code.into()
        }
    }
}
