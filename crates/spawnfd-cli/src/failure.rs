// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the command fails: one line on standard error, and an exit code as env(1) has them.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use clap::Arg;
use rustix::event::{PollFd, PollFlags, poll};
use spawnfd::{Errno, Error, Stage};

use crate::run::Report;

/// The command itself failed, or how the program ended is not known.
pub const OURS: u8 = 125;
/// The program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub const NOT_FOUND: u8 = 127;
/// The program was killed as its time was over.
pub const TIMEOUT: u8 = 124;

/// Why the command ends early.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
    /// The flag to blame, as it was given.
    pub flag: Option<String>,
    /// What the library reported, if it was the library.
    pub source: Option<Error>,
}

impl Failure {
    /// A failure of the command itself.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { code: OURS, message: message.into(), flag: None, source: None }
    }

    /// A failure that one flag is to blame for.
    pub fn flag(flag: impl Into<String>, reason: impl fmt::Display) -> Failure {
        let flag = flag.into();
        Failure { code: OURS, message: format!("{flag}: {reason}"), flag: Some(flag), source: None }
    }

    /// The library's error, with the exit code that goes with it and the flag it comes from.
    pub fn spawn(error: Error, flag: Option<String>) -> Failure {
        let code = match (error.stage(), error.errno()) {
            (Stage::Template | Stage::Exec | Stage::Revalidate, Errno::ENOENT) => NOT_FOUND,
            (Stage::Exec, Errno::E2BIG | Errno::ENOMEM | Errno::EAGAIN) => OURS,
            (Stage::Template, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => OURS,
            (Stage::Template | Stage::Exec | Stage::Revalidate, _) => NOT_EXECUTABLE,
            _ => OURS,
        };
        let message = match &flag {
            Some(flag) => format!("{flag}: {error}"),
            None => error.to_string(),
        };
        Failure { code, message, flag, source: Some(error) }
    }

    /// An error about the program itself, by the name the user gave it.
    pub fn program(name: &OsStr, error: Error) -> Failure {
        let mut failure = Failure::spawn(error, None);
        let name = name.display();
        if let Some(error) = &failure.source {
            let searched = failure.code == NOT_FOUND && error.call().starts_with("search(");
            let words = name.to_string().contains(' ');
            failure.message = match (searched, words) {
                (true, false) => format!("{name}: not found in PATH"),
                (true, true) => format!("{name}: not found in PATH; arguments are words of their own"),
                (false, _) => format!("{name}: {error}"),
            };
        }
        failure
    }

    /// Prints the one line.
    pub fn print(&self) {
        // Nobody can be told that standard error is gone.
        let _ = complain(format!("spawnfd: {}\n", self.message).as_bytes());
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::spawn(error, None)
    }
}

/// Prints on standard output; a reader that has left is no failure, and ends the printing.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    write(io::stdout().as_fd(), bytes).map_err(|e| Failure::new(format!("standard output: {}", reason(&e))))
}

/// The same on standard error.
pub fn complain(bytes: &[u8]) -> Result<(), Failure> {
    write(io::stderr().as_fd(), bytes).map_err(|e| Failure::new(format!("standard error: {}", reason(&e))))
}

/// Writes all of it, waiting for room where the descriptor would not. (std's streams take a closed one for one that has taken all.)
fn write(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(rustix::io::Errno::PIPE) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(stream, PollFlags::OUT)], None);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// The kernel's reason without std's " (os error N)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Prints what clap has to say: help as it is, an error as one line, or as the JSON that is wanted of a run. Gives the exit code.
pub fn usage(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match print(error.render().to_string().as_bytes()) {
            Ok(()) => 0,
            Err(failure) => {
                failure.print();
                OURS
            }
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            OURS
        }
        _ => {
            let failure = missing(error)
                .unwrap_or_else(|| Failure { flag: argument(error), ..Failure::new(one_line(&error.to_string())) });
            let flags = flags_of_run();
            let has = |name: &str| flags.iter().any(|flag| flag.get_long() == Some(name));
            let report = Report { time: false, json: has("json"), captured: has("capture") };
            if !report.json || report.failure(&failure).is_err() {
                failure.print();
            }
            failure.code
        }
    }
}

/// What is missing, and who needs it.
fn missing(error: &clap::Error) -> Option<Failure> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_captured =
        |flag: &&Arg| flag.get_help_heading().is_some_and(|of| of.to_lowercase().contains("captured runs"));
    let long = |flag: &Arg| format!("--{}", flag.get_long().unwrap_or_default());
    let asking = match names.first() {
        Some(name) if name.starts_with("--spill") => Some("--spill-limit".to_owned()),
        Some(name) if name.starts_with("--") => flags_of_run().iter().find(is_captured).map(long),
        _ => None,
    };
    let why = asking.as_ref().map(|flag| format!(": {flag} works with it only")).unwrap_or_default();
    let failure = Failure { flag: asking, ..Failure::new(format!("{} is missing{why}", names.join(", "))) };
    (error.kind() == ErrorKind::MissingRequiredArgument).then_some(failure)
}

/// The argument that is wrong, and its value.
fn argument(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(usage)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = usage.split([' ', '[', '=']).next().unwrap_or_default();
    match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => Some(format!("{name} {value}").trim_end().to_owned()),
        _ => Some(name.to_owned()),
    }
}

/// The flags that `run` has been given: those before the program, or before what cannot be told from one, after a flag that there is not.
fn flags_of_run() -> Vec<Arg> {
    use clap::CommandFactory;
    let command = crate::cli::Cli::command();
    let mut words = std::env::args_os().skip(1);
    let run = words.next().and_then(|word| command.find_subcommand(word));
    let mut flags = Vec::new();
    let Some(run) = run.filter(|run| run.get_name() == "run") else { return flags };
    while let Some(word) = words.next() {
        let word = word.to_string_lossy();
        let Some(name) = word.strip_prefix("--").filter(|name| !name.is_empty()) else {
            if word.starts_with('-') && word != "--" { continue } else { break }
        };
        let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
        let Some(flag) = run.get_arguments().find(|flag| flag.get_long() == Some(name)) else { continue };
        if flag.get_action().takes_values() && value.is_none() && !flag.is_require_equals_set() {
            words.next();
        }
        flags.push(flag.clone());
    }
    flags
}

/// The parts of clap's text that say what is wrong, without the usage that follows.
fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let mut parts: Vec<String> = Vec::new();
    for paragraph in text.split("\n\n") {
        if paragraph.starts_with("Usage:") || paragraph.starts_with("For more information") {
            break;
        }
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        if !words.is_empty() {
            parts.push(words.join(" "));
        }
    }
    parts.join("; ")
}
