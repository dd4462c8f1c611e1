// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd serve`: starts programs for the other side of a pipe.

use clap::Args;
use spawnfd_remote::far::Ended;

use crate::failure::Failure;

/// Start programs for another machine: the server of the library's remote connections, on standard input and output
///
/// The library starts this command through a transport, such as ssh or docker exec. It reads requests from standard input and
/// writes results to standard output, in frames (docs/protocol.md), until its input ends. Then all programs are killed.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, in Python: spawnfd.Remote.command(['ssh', 'host', 'spawnfd', 'serve']).run(['uname', '-n'])

Exit status: 0 if the other side has closed the connection; 125 if it was silent for too long, or does not speak the \
protocol.")]
pub struct Serve {}

impl Serve {
    pub fn run(&self) -> Result<(), Failure> {
        match spawnfd_remote::serve() {
            Ok(Ended::Silent) => Err(Failure::new("the other side is silent")),
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::new(error.to_string())),
        }
    }
}
