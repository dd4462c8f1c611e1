// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups of flags whose order on the command line matters. Clap collects the values of each flag
//! separately, so this module restores the order from clap's indices.

use std::any::Any;
use std::ffi::{OsStr, OsString};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// One flag of an ordered group.
pub struct Flag<T> {
    pub name: &'static str,
    pub value: Value<T>,
    pub help: &'static str,
}

/// Whether a flag takes a value, and its meaning.
pub enum Value<T> {
    /// The flag takes no value, and has this meaning.
    Plain(T),
    /// The value's name in the help, and its parser, which also gets the flag's name.
    Parsed(&'static str, fn(&str, &OsStr) -> Result<T, String>),
}

/// A flag on the command line.
#[derive(Clone, Debug)]
pub struct Given<T> {
    pub meaning: T,
    /// The flag as the user wrote it, for error messages.
    pub text: String,
}

/// Adds the flags to a command under one heading. `action` is that of a flag with a value.
pub fn add<T>(mut command: Command, heading: &'static str, action: &ArgAction, flags: &[Flag<T>]) -> Command
where
    T: Any + Clone + Send + Sync,
{
    for flag in flags {
        let arg = Arg::new(flag.name).long(flag.name).help(flag.help).help_heading(heading);
        command = command.arg(match flag.value {
            Value::Plain(_) => arg.action(ArgAction::SetTrue),
            Value::Parsed(name, parse) => {
                // Accept a negative number as a value, but not a word that looks like a flag.
                let name_of_flag = flag.name;
                arg.action(action.clone()).value_name(name).allow_negative_numbers(true).value_parser(
                    OsStringValueParser::new()
                        .try_map(move |value: OsString| parse(name_of_flag, &value).map(|meaning| (meaning, value))),
                )
            }
        });
    }
    command
}

/// Returns the flags in the order of the command line.
pub fn collect<T>(matches: &ArgMatches, flags: &[Flag<T>]) -> Vec<Given<T>>
where
    T: Any + Clone + Send + Sync,
{
    let mut found: Vec<(usize, Given<T>)> = Vec::new();
    for flag in flags {
        if matches.value_source(flag.name) != Some(ValueSource::CommandLine) {
            continue;
        }
        match &flag.value {
            Value::Plain(meaning) => {
                let given = Given { meaning: meaning.clone(), text: format!("--{}", flag.name) };
                found.push((matches.index_of(flag.name).unwrap_or(0), given));
            }
            Value::Parsed(..) => {
                let values = matches.get_many::<(T, OsString)>(flag.name).into_iter().flatten();
                let places = matches.indices_of(flag.name).into_iter().flatten();
                for ((meaning, value), place) in values.zip(places) {
                    let text = format!("--{} {}", flag.name, value.to_string_lossy());
                    found.push((place, Given { meaning: meaning.clone(), text }));
                }
            }
        }
    }
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, given)| given).collect()
}
