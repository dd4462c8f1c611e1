// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flags for the options of the library's table.

use std::marker::PhantomData;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use spawnfd::options::{self, Call, Group, Kind, OptionSpec, Value};

/// A subcommand that has flags for the options of a call.
pub trait Subcommand {
    const CALL: Call;
    /// Whether the subcommand has a flag for the option.
    fn has(option: &OptionSpec) -> bool;
    /// Adds the heading of the flag, and its conflicts with other flags.
    fn place(arg: Arg, option: &OptionSpec) -> Arg;
}

/// The flags on the command line.
#[derive(Debug)]
pub struct Flags<S> {
    given: Vec<(&'static OptionSpec, Value)>,
    subcommand: PhantomData<S>,
}

/// The options whose flags have other names.
const NAMES: [(&str, &str); 4] =
    [("limits.cpus", "cpu-quota"), ("spill.dir", "spill"), ("spill.max_bytes", "spill-limit"), ("stderr", "merge")];

/// Returns the name of the flag of an option, without the dashes.
pub fn flag_name(option: &str) -> String {
    match NAMES.iter().find(|(name, _)| *name == option) {
        Some((_, flag)) => (*flag).to_owned(),
        None => option.rsplit('.').next().unwrap_or(option).replace('_', "-"),
    }
}

/// Returns a paragraph as the text of a flag: links to other options become flags, and code becomes a quotation.
fn help_text(doc: &str) -> String {
    let paragraph = doc.trim().split("\n\n").next().unwrap_or_default().split("\n \n").next().unwrap_or_default();
    let mut text = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some((before, rest)) = text.split_once("[`") {
        let Some((name, after)) = rest.split_once("`](").and_then(|(name, rest)| Some((name, rest.split_once(')')?.1)))
        else {
            break;
        };
        text = format!("{before}--{}{after}", flag_name(name));
    }
    text.replace('`', "'").trim_end_matches('.').to_owned()
}

fn default_text(option: &OptionSpec) -> String {
    match (option.default)() {
        Value::None | Value::Bool(_) => String::new(),
        _ if matches!(option.kind, Kind::Stream(_)) => String::new(),
        Value::Integer(bytes) if bytes > 0 && bytes % (1 << 20) == 0 => format!(" [default: {}M]", bytes >> 20),
        Value::Text(text) if matches!(option.kind, Kind::Word(_)) => format!(" [default: {}]", text.display()),
        Value::Text(text) => format!(" [default: '{}']", text.display()),
        value => format!(" [default: {value}]"),
    }
}

fn arg<S: Subcommand>(option: &'static OptionSpec) -> Arg {
    let name = flag_name(option.name);
    let arg = Arg::new(name.clone()).long(name).help(help_text(option.doc) + &default_text(option));
    let parse = |text: std::ffi::OsString| option.parse(&text);
    let arg = match option.kind {
        Kind::Flag | Kind::Stream(_) => arg.action(ArgAction::SetTrue),
        Kind::Word(words) => {
            // This command has no handle of a job that could adopt processes.
            let words = words.iter().filter(|(word, _)| *word != "adopt");
            let values = words.map(|(word, doc)| PossibleValue::new(*word).help(help_text(doc)));
            let parser = PossibleValuesParser::new(values);
            arg.value_name(option.kind.placeholder()).value_parser(parser.map(|word| Value::from(&*word)))
        }
        kind => {
            let parser = OsStringValueParser::new().try_map(parse);
            let arg = arg.value_name(kind.placeholder()).value_parser(parser);
            match kind {
                Kind::TerminalSize => arg.num_args(0..=1).require_equals(true).default_missing_value("80x24"),
                Kind::Text => arg.allow_hyphen_values(true),
                _ => arg.allow_negative_numbers(true),
            }
        }
    };
    S::place(arg, option)
}

fn flags<S: Subcommand>() -> impl Iterator<Item = &'static OptionSpec> {
    let has_kind = |option: &&OptionSpec| option.kind != Kind::Object;
    options::of(S::CALL).filter(has_kind).filter(|option| S::has(option))
}

impl<S: Subcommand> Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        flags::<S>().fold(command, |command, option| command.arg(arg::<S>(option)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Subcommand> FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flags<S>, Error> {
        let mut given = Vec::new();
        for option in flags::<S>() {
            let name = flag_name(option.name);
            if matches.value_source(&name) == Some(ValueSource::CommandLine) {
                let value = match option.kind {
                    Kind::Flag => Some(Value::Bool(true)),
                    // The only flag of a stream is --merge.
                    Kind::Stream(_) => Some("merge".into()),
                    _ => matches.get_one::<Value>(&name).cloned(),
                };
                given.extend(value.map(|value| (option, value)));
            }
        }
        Ok(Flags { given, subcommand: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<S> Flags<S> {
    /// Returns the value of an option, if the command line has its flag.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.given.iter().find(|(option, _)| option.name == name).map(|(_, value)| value)
    }

    /// Whether a flag of one of these groups is given.
    pub fn any_of(&self, groups: &[Group]) -> bool {
        self.given.iter().any(|(option, _)| groups.contains(&option.group))
    }

    /// Passes each option and its value to `set`.
    pub fn apply(&self, mut set: impl FnMut(&str, Value) -> spawnfd::Result<()>) -> spawnfd::Result<()> {
        self.given.iter().try_for_each(|(option, value)| set(option.name, value.clone()))
    }
}
