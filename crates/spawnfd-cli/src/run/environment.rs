// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flags that define the program's environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use spawnfd::Env;
use spawnfd::internal::text;

use crate::ordered::{Flag, Given, Value, add, collect};

const HEADING: &str = "Environment";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Set(OsString, OsString),
    Unset(OsString),
    Clear,
    Only(String),
    Deny(String),
    Noninteractive,
}

static FLAGS: &[Flag<Change>] = &[
    Flag {
        name: "env",
        value: Value::Parsed("NAME=VALUE", |_, value| {
            let bytes = value.as_bytes();
            let place = bytes.iter().position(|&byte| byte == b'=').filter(|&place| place > 0);
            let place = place.ok_or("must be NAME=VALUE")?;
            let part = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
            Ok(Change::Set(part(&bytes[..place]), part(&bytes[place + 1..])))
        }),
        help: "Set a variable",
    },
    Flag {
        name: "unset",
        value: Value::Parsed("NAME", |_, value| Ok(Change::Unset(value.to_owned()))),
        help: "Remove a variable",
    },
    Flag {
        name: "env-clear",
        value: Value::Plain(Change::Clear),
        help: "Start from an empty environment instead of the inherited one",
    },
    Flag {
        name: "env-only",
        value: Value::Parsed("PATTERN", |_, value| Ok(Change::Only(text(value)?.to_owned()))),
        help: "Inherit only the variables that match, such as 'LC_*'; may be repeated",
    },
    Flag {
        name: "env-deny",
        value: Value::Parsed("PATTERN", |_, value| Ok(Change::Deny(text(value)?.to_owned()))),
        help: "Do not inherit the variables that match, such as '*_TOKEN'; may be repeated",
    },
    Flag {
        name: "noninteractive",
        value: Value::Plain(Change::Noninteractive),
        help: "Set variables that keep tools from prompting, paging and coloring (PAGER=cat, NO_COLOR=1, CI=1, …)",
    },
];

/// The environment that a command line requests.
///
/// The inheritance flags apply first (`--env-clear`, `--env-only`, `--env-deny`), then `--noninteractive`, then
/// `--env` and `--unset` in command-line order. So a pattern never removes a variable that `--env` sets.
#[derive(Clone, Debug)]
pub struct Environment {
    changes: Vec<Given<Change>>,
}

impl Args for Environment {
    fn augment_args(command: Command) -> Command {
        add(command, HEADING, &ArgAction::Append, FLAGS).mut_arg("env-clear", |arg| arg.conflicts_with("env-only"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Environment {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Environment, Error> {
        Ok(Environment { changes: collect(matches, FLAGS) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Environment {
    /// Returns the environment, or `None` if the program inherits this process's environment unchanged.
    pub fn build(&self) -> Option<Env> {
        if self.changes.is_empty() {
            return None;
        }
        let changes = || self.changes.iter().map(|given| &given.meaning);
        let patterns = |pick: fn(&Change) -> Option<&String>| changes().filter_map(pick).collect::<Vec<_>>();
        let only = patterns(|change| if let Change::Only(pattern) = change { Some(pattern) } else { None });
        let deny = patterns(|change| if let Change::Deny(pattern) = change { Some(pattern) } else { None });
        let mut env = if changes().any(|change| *change == Change::Clear) {
            Env::empty()
        } else if only.is_empty() {
            Env::inherit()
        } else {
            Env::only(only)
        };
        env = env.deny(deny);
        if changes().any(|change| *change == Change::Noninteractive) {
            env = env.noninteractive();
        }
        for change in changes() {
            env = match change {
                Change::Set(name, value) => env.set(name, value),
                Change::Unset(name) => env.unset(name),
                _ => env,
            };
        }
        Some(env)
    }
}
