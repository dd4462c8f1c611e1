// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors in the command line: one line each, or JSON if `run` has --json.

use clap::{Arg, CommandFactory};

use crate::cli::Cli;
use crate::failure::{Failure, OURS, print};
use crate::run::Report;

/// Prints clap's help unchanged, and an error as one line, or as JSON if `run` has --json. Returns the exit code.
pub fn report(error: &clap::Error) -> u8 {
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

/// Returns the failure for a missing argument; it names the flag that requires the argument.
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

/// Returns the invalid argument and its value.
fn argument(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(usage)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = usage.split([' ', '[', '=']).next().unwrap_or_default();
    match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => Some(format!("{name} {value}").trim_end().to_owned()),
        _ => Some(name.to_owned()),
    }
}

/// Returns the flags of `run` on the command line, up to the program.
///
/// After an unknown flag, a word may be its value or the program. The flags end there.
fn flags_of_run() -> Vec<Arg> {
    let command = Cli::command();
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

/// Returns the parts of clap's text that describe the error, without the usage that follows.
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
