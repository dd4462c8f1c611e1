// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports errors in the command line: one line each, or JSON if `run` has --json.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory};

use crate::cli::Cli;
use crate::failure::{FAILED, Failure, print};
use crate::run::RunReport;

/// Prints clap's help unchanged, and an error as one line, or as JSON if `run` has --json. Returns the exit code.
pub fn report(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match print(error.render().to_string().as_bytes()) {
            Ok(()) => 0,
            Err(failure) => {
                failure.print();
                FAILED
            }
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            FAILED
        }
        _ => {
            let failure = missing(error)
                .or_else(|| invalid(error))
                .unwrap_or_else(|| Failure { flag: argument(error), ..Failure::new(one_line(&error.to_string())) });
            let flags = flags_of_run();
            let has = |name: &str| flags.iter().any(|flag| flag.get_long() == Some(name));
            let report = RunReport { time: false, json: has("json"), has_output: has("capture") && !has("stream") };
            if !report.json || report.failure(&failure).is_err() {
                failure.print();
            }
            failure.code
        }
    }
}

/// Returns the failure for a missing argument. It names the flag that requires the argument.
fn missing(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_captured =
        |flag: &&Arg| flag.get_help_heading().is_some_and(|of| of.to_lowercase().contains("captured runs"));
    let long = |flag: &Arg| format!("--{}", flag.get_long().unwrap_or_default());
    let dependent = match names.first() {
        Some(name) if name.starts_with("--spill") => Some("--spill-limit".to_owned()),
        Some(name) if name.starts_with("--") => flags_of_run().iter().find(is_captured).map(long),
        _ => None,
    };
    let names = names.iter().map(|name| name.trim_end_matches("...")).collect::<Vec<_>>().join(", ");
    let message = match &dependent {
        Some(flag) => format!("{flag} requires {names}"),
        None => format!("{} is missing; see --help", name_of(&names)),
    };
    (error.kind() == ErrorKind::MissingRequiredArgument).then(|| Failure { flag: dependent, ..Failure::new(message) })
}

/// Returns the failure for a missing or rejected value.
///
/// A parser's reason that begins with `must` continues the flag's name: `--timeout must be >= 0, got -1`.
fn invalid(error: &clap::Error) -> Option<Failure> {
    use std::error::Error;
    let Some(ContextValue::String(usage)) = error.get(ContextKind::InvalidArg) else { return None };
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    let name = name_of(usage);
    let quoted = if value.is_empty() || value.contains(' ') { format!("'{value}'") } else { value.clone() };
    let message = match (error.kind(), error.get(ContextKind::ValidValue)) {
        (ErrorKind::ValueValidation, _) => {
            let reason = error.source()?.to_string();
            match reason.starts_with("must ") {
                true => format!("{name} {reason}, got {quoted}"),
                false => format!("{name} {quoted}: {reason}"),
            }
        }
        (ErrorKind::InvalidValue, _) if value.is_empty() => format!("{usage} requires a value"),
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(known))) => {
            format!("{name} must be one of {}, got {quoted}", known.join(", "))
        }
        _ => return None,
    };
    Some(Failure { flag: argument(error), ..Failure::new(message) })
}

/// Returns the name from clap's usage text, such as `--timeout <TIME>` or `<PROGRAM>`.
fn name_of(usage: &str) -> &str {
    usage.split([' ', '[', '=']).next().unwrap_or_default().trim_matches(['<', '>'])
}

/// Returns the invalid argument and its value.
fn argument(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(usage)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = name_of(usage);
    match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => Some(format!("{name} {value}").trim_end().to_owned()),
        _ => Some(name.to_owned()),
    }
}

/// Returns the flags of `run` on the command line, up to the program.
///
/// The next word after an unknown flag may be the flag's value or the program, so the search ends there.
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
