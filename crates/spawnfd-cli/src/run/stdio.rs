// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's standard streams.

use clap::{Args, ValueEnum};
use spawnfd::{Command, Stdio};

use crate::os;

/// The target of standard input or standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// This command's own
    Inherit,
    /// /dev/null
    Null,
}

/// The target of standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ErrorTarget {
    /// This command's own
    Inherit,
    /// /dev/null
    Null,
    /// The target of standard output
    Stdout,
}

const HEADING: &str = "Standard streams";

#[derive(Debug, Args)]
pub struct Standard {
    /// Connect standard input to: inherit (this command's own), null (/dev/null)
    #[arg(long, value_enum, value_name = "TO", hide_possible_values = true, help_heading = HEADING)]
    stdin: Option<Target>,
    /// Connect standard output to: inherit, null
    #[arg(long, value_enum, value_name = "TO", hide_possible_values = true, help_heading = HEADING)]
    stdout: Option<Target>,
    /// Connect standard error to: inherit, null, stdout (the target of standard output)
    #[arg(long, value_enum, value_name = "TO", hide_possible_values = true, help_heading = HEADING)]
    stderr: Option<ErrorTarget>,
}

/// The treatment of streams without a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// The program inherits this command's streams.
    Inherited,
    /// The program gets this command's streams, but the library would capture streams by default. So this command
    /// passes its streams explicitly.
    Passed,
    /// The library collects the output, and standard input is empty.
    Captured,
}

impl Standard {
    /// Sets the streams. Returns the streams that are closed in this command: the program must close them too.
    pub fn apply(&self, command: &mut Command<'_>, streams: Streams) -> Vec<i32> {
        let inherits = [
            self.stdin.map(|target| target == Target::Inherit),
            self.stdout.map(|target| target == Target::Inherit),
            self.stderr.map(|target| target == ErrorTarget::Inherit),
        ];
        let mut closed = Vec::new();
        for (number, inherits) in (0..).zip(inherits) {
            let passes = match streams {
                Streams::Inherited => false,
                Streams::Passed => inherits.unwrap_or(true),
                Streams::Captured => inherits == Some(true),
            };
            if !passes {
                continue;
            }
            let own = os::inherited(number).map(Stdio::from);
            closed.extend(own.is_err().then_some(number));
            let own = own.unwrap_or(Stdio::Null);
            match number {
                0 => command.stdin(own),
                1 => command.stdout(own),
                _ => command.stderr(own),
            };
        }
        if self.stdin == Some(Target::Null) {
            command.stdin(Stdio::Null);
        }
        if self.stdout == Some(Target::Null) {
            command.stdout(Stdio::Null);
        }
        match self.stderr {
            Some(ErrorTarget::Null) => {
                command.stderr(Stdio::Null);
            }
            Some(ErrorTarget::Stdout) => {
                command.stderr(Stdio::SameAsStdout);
            }
            Some(ErrorTarget::Inherit) | None => {}
        }
        closed
    }
}
