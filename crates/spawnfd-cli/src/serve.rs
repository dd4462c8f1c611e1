// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd serve`: starts programs for the other side of a pipe.

use std::io::{stdin, stdout};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use spawnfd::Command;
use spawnfd_remote::far::{Ended, ServeOptions, supervise};
use spawnfd_remote::files;

use crate::failure::{FAILED, Failure, code_of};

/// Start programs for another machine: the server of the library's remote connections, on standard input and output
///
/// The library starts this command through a transport, such as ssh or docker exec. It reads requests from standard input and
/// writes results to standard output, in frames (docs/protocol.md), until its input ends. Then all programs are killed.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, in Python: spawnfd.Remote.command(['ssh', 'host', 'spawnfd', 'serve']).run(['uname', '-n'])

Exit status: 0 if the other side has closed the connection; 125 if it was silent for too long, or does not speak the \
protocol.")]
pub struct Serve {
    /// Serve in this process, without the parent process that kills what the programs leave behind
    #[arg(long, hide = true)]
    unsupervised: bool,
}

impl Serve {
    /// Returns the exit code.
    pub fn run(&self) -> Result<u8, Failure> {
        match std::env::current_exe() {
            Ok(program) if !self.unsupervised => {
                let mut server = Command::new(program);
                server.args(["serve", "--unsupervised"]);
                let status = supervise(&mut server).map_err(|error| Failure::new(error.to_string()))?;
                match status.map(|status| (status, status.signal())) {
                    // The other side sees these words.
                    Some((_, Some(signal))) => Err(Failure::new(format!("signal {signal} has ended the server"))),
                    Some((status, None)) => Ok(code_of(status)),
                    None => Ok(FAILED),
                }
            }
            _ => serve_here().map(|()| 0),
        }
    }
}

fn serve_here() -> Result<(), Failure> {
    let mut options = ServeOptions::default();
    if let Ok(program) = std::env::current_exe() {
        options.files = vec![program.into(), "files".into()];
    }
    match spawnfd_remote::serve(&options) {
        Ok(Ended::Silent) => Err(Failure::new("the other side is silent")),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

/// Pack a file or a directory into standard output, or unpack it from standard input, for the transfers of a server
#[derive(Debug, Args)]
pub struct Files {
    #[command(subcommand)]
    direction: Direction,
}

#[derive(Debug, Subcommand)]
enum Direction {
    /// Write a file, or a directory and what is below it, to standard output
    Pack { path: PathBuf },
    /// Read them from standard input, up to MAX_BYTES
    Unpack { max_bytes: u64, path: PathBuf },
}

impl Files {
    pub fn run(&self) -> Result<(), Failure> {
        let (path, done) = match &self.direction {
            Direction::Pack { path } => (path, files::pack(path, stdout().lock())),
            Direction::Unpack { max_bytes, path } => (path, files::unpack(stdin().lock(), path, *max_bytes)),
        };
        done.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    }
}
