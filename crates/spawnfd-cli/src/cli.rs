// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::doctor::Doctor;
use crate::run::Run;
use crate::serve::{Files, Serve};
use crate::shell::Shell as SessionShell;
use crate::warm::Warm;

/// Start programs cheaply and safely, and report the kernel features that this machine has
#[derive(Debug, Parser)]
#[command(name = "spawnfd", version, max_term_width = 100, disable_help_subcommand = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub subcommand: Subcommands,
}

const EXAMPLES: &str = "\
Examples:
  spawnfd run --time rg -n TODO
  spawnfd run --capture --timeout 30 --json -- make test
  echo '{\"run\": \"echo $PWD\"}' | spawnfd shell --cwd /tmp
  spawnfd doctor
  spawnfd warm explain -- python3 -c 'print(1)'";

#[derive(Debug, Subcommand)]
pub enum Subcommands {
    Run(Box<Run>),
    Shell(Box<SessionShell>),
    Serve(Serve),
    #[command(hide = true)]
    Files(Files),
    Doctor(Doctor),
    Warm(Warm),
    /// Print a completion script for a shell
    #[command(after_help = "Example: spawnfd completions bash > /etc/bash_completion.d/spawnfd")]
    Completions {
        /// The shell that will read the script
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = "Example: spawnfd man | man -l -")]
    Man,
}
