// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's standard streams.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use spawnfd::{Command, Stdio};

use crate::os;

/// The targets of a stream. Only standard error can have the third one.
fn targets(count: usize) -> PossibleValuesParser {
    let all = [("inherit", "This command's own"), ("null", "/dev/null"), ("stdout", "The target of standard output")];
    all.into_iter().take(count).map(|(name, help)| PossibleValue::new(name).help(help)).into()
}

const HEADING: &str = "Standard streams";

#[derive(Debug, Args)]
pub struct Standard {
    /// Connect standard input to: inherit (this command's own), null (/dev/null)
    #[arg(long, value_parser = targets(2), value_name = "TO", hide_possible_values = true, help_heading = HEADING)]
    stdin: Option<String>,
    /// Connect standard output to: inherit, null
    #[arg(long, value_parser = targets(2), value_name = "TO", hide_possible_values = true, help_heading = HEADING)]
    stdout: Option<String>,
    /// Connect standard error to: inherit, null, stdout (the target of standard output)
    #[arg(long, value_parser = targets(3), value_name = "TO", hide_possible_values = true, help_heading = HEADING)]
    stderr: Option<String>,
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
        let default = if streams == Streams::Passed { "inherit" } else { "" };
        let mut closed = Vec::new();
        for (number, target) in (0..).zip([&self.stdin, &self.stdout, &self.stderr]) {
            let stdio = match target.as_deref().unwrap_or(default) {
                "null" => Stdio::Null,
                "stdout" => Stdio::SameAsStdout,
                "inherit" if streams != Streams::Inherited => {
                    let own = os::inherited(number).map(Stdio::from);
                    closed.extend(own.is_err().then_some(number));
                    own.unwrap_or(Stdio::Null)
                }
                _ => continue,
            };
            match number {
                0 => command.stdin(stdio),
                1 => command.stdout(stdio),
                _ => command.stderr(stdio),
            };
        }
        closed
    }
}
