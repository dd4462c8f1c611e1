// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flags of the library's actions and attributes. The child performs actions in the order of the command line.

use std::ffi::OsStr;
use std::ops::BitOr;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use spawnfd::command::CapabilitySets;
use spawnfd::internal::{ACTIONS, ATTRIBUTES, Action, Kind, Value as Argument};
use spawnfd::signal::SignalSet;

use super::confine::{self, Ruleset};
use crate::failure::{Failure, reason};
use crate::ordered::{Flag, Given, Value, add, collect};
use crate::os;

const ACTION_HEADING: &str = "Actions, performed by the child in command-line order";
const ATTRIBUTE_HEADING: &str = "Attributes";

/// The effect of one flag on a command.
#[derive(Clone, Debug)]
pub enum Step {
    Add(&'static Action, Vec<Argument<'static>>),
    /// A path of the ruleset, and whether the program may write below it.
    Landlock(PathBuf, bool),
}

/// Creates the flags of some rows of the library's table.
fn flags(rows: &'static [Action]) -> Vec<Flag<Step>> {
    // Clap needs static texts. Each row leaks its texts once.
    let flag = |row: &'static Action| Flag {
        name: row.flag().leak(),
        value: match row.syntax {
            "" => Value::Plain(Step::Add(row, Vec::new())),
            syntax => Value::Parsed(syntax, |name, value| {
                let row = Action::of_flag(name).ok_or("not an action")?;
                Ok(Step::Add(row, row.parse(value)?))
            }),
        },
        help: format!("{}{}", row.effect, row.note).leak(),
    };
    rows.iter().map(flag).collect()
}

static ACTION_FLAGS: LazyLock<Vec<Flag<Step>>> = LazyLock::new(|| {
    let mut all = flags(ACTIONS);
    all.push(Flag {
        name: "landlock-ro",
        value: Value::Parsed("PATH", |_, value| Ok(Step::Landlock(path(value)?, false))),
        help: "Confine the program with Landlock, and allow reading and executing below PATH; may be repeated. All \
               --landlock-ro and --landlock-rw form one ruleset, applied at the last of them. Requires --no-new-privs \
               before it unless privileged",
    });
    all.push(Flag {
        name: "landlock-rw",
        value: Value::Parsed("PATH", |_, value| Ok(Step::Landlock(path(value)?, true))),
        help: "Like --landlock-ro, and also allow writing below PATH",
    });
    all
});

static ATTRIBUTE_FLAGS: LazyLock<Vec<Flag<Step>>> = LazyLock::new(|| flags(ATTRIBUTES));

fn path(value: &OsStr) -> Result<PathBuf, String> {
    match Kind::Path.parse(value)? {
        Argument::Path(path) => Ok(path.into()),
        _ => Err("must be a path".to_owned()),
    }
}

/// The actions and attributes of one command line.
#[derive(Clone, Debug)]
pub struct Actions {
    steps: Vec<Given<Step>>,
    attributes: Vec<Given<Step>>,
}

impl Args for Actions {
    fn augment_args(command: Command) -> Command {
        let command = add(command, ACTION_HEADING, &ArgAction::Append, &ACTION_FLAGS);
        add(command, ATTRIBUTE_HEADING, &ArgAction::Set, &ATTRIBUTE_FLAGS)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Actions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Actions, Error> {
        Ok(Actions { steps: collect(matches, &ACTION_FLAGS), attributes: collect(matches, &ATTRIBUTE_FLAGS) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Adds an action with these arguments to a command.
fn perform(command: &mut spawnfd::Command<'_>, action: &Action, values: &[Argument<'static>]) -> Result<(), String> {
    let mut values = values.to_vec();
    for (argument, value) in action.arguments.iter().zip(&mut values) {
        if matches!(argument.kind, Kind::Source | Kind::Namespace)
            && let Argument::Int(number) = *value
        {
            let inherited = i32::try_from(number).ok().and_then(|number| os::inherited(number).ok());
            *value = Argument::Descriptor(inherited.ok_or_else(|| format!("descriptor {number} is not open"))?);
        }
    }
    action.add(command, &values).map_err(|wrong| wrong.reason)
}

/// The capability sets after a change of user ids, which makes the kernel clear some of them. Only an explicit flag
/// restores them. `effective` is the new effective user id, or no number.
fn after_user_ids(sets: &mut CapabilitySets, effective: &Argument<'_>) {
    sets.ambient = 0;
    if !matches!(effective, Argument::Int(0) | Argument::None) {
        sets.effective = 0;
    }
}

impl Actions {
    /// The flag with this name, as the user wrote it.
    pub fn flag(&self, name: &str) -> Option<String> {
        let is_named = |given: &&Given<Step>| matches!(given.meaning, Step::Add(row, _) if row.name == name);
        self.steps.iter().chain(&self.attributes).find(is_named).map(|given| given.text.clone())
    }

    /// Whether an action sets the program's process group or session.
    pub fn set_group_or_session(&self) -> bool {
        self.flag("setsid").or_else(|| self.flag("process_group")).is_some()
    }

    /// Adds the actions to a command. Returns the text of the flag for each action, in the same
    /// order.
    pub fn apply(&self, command: &mut spawnfd::Command<'_>) -> Result<Vec<String>, Failure> {
        let mut ruleset = Ruleset::default();
        let is_path = |given: &Given<Step>| matches!(given.meaning, Step::Landlock(..));
        let last_path = self.steps.iter().rposition(is_path);
        let own = |flag| confine::own_capabilities().map_err(|e| Failure::flag(flag, reason(&e)));
        let mut capabilities = self.flag("capabilities").map(own).transpose()?;
        let mut flags = Vec::new();
        for (place, given) in self.steps.iter().enumerate() {
            match &given.meaning {
                Step::Add(action, values) => {
                    let mut limited = None;
                    if let Some(sets) = &mut capabilities {
                        match (action.name, &values[..]) {
                            ("uid", [effective]) | ("user_ids", [_, effective, _]) => after_user_ids(sets, effective),
                            ("capabilities", named) => {
                                *sets = confine::capability_sets(*sets, named);
                                limited = Some(sets.words().map(|set| Argument::Int(set.into())));
                            }
                            _ => {}
                        }
                    }
                    let values = limited.as_ref().map_or(&values[..], |sets| sets);
                    perform(command, action, values).map_err(|why| Failure::flag(&given.text, why))?;
                }
                Step::Landlock(path, writes) => ruleset.allow(path, *writes, &given.text),
            }
            if last_path == Some(place) {
                command.landlock(std::mem::take(&mut ruleset).build()?);
            }
            flags.resize(command.action_count(), given.text.clone());
        }
        Ok(flags)
    }

    /// Adds the attributes to a command. Unless flags say otherwise, the program inherits neither blocked signals nor
    /// ignored SIGPIPE and SIGXFSZ. `reset` has the signals that are reset in any case.
    pub fn apply_attributes(&self, command: &mut spawnfd::Command<'_>, reset: Option<i32>) -> Result<(), Failure> {
        let set = |signals: &[i32]| {
            signals.iter().filter_map(|signal| SignalSet::of(*signal)).fold(SignalSet::EMPTY, BitOr::bitor)
        };
        match self.flag("inherit_signals") {
            Some(_) => command.inherit_signals().default_signals(set(reset.as_slice())),
            None => command.signal_mask(SignalSet::EMPTY).default_signals(set(&[libc::SIGPIPE, libc::SIGXFSZ])),
        };
        for given in &self.attributes {
            let Step::Add(action, values) = &given.meaning else { continue };
            let mut values = values.clone();
            match (action.name, values.first_mut()) {
                ("inherit_signals", _) => continue,
                ("default_signals", Some(Argument::Ints(signals))) => signals.extend(reset.map(i128::from)),
                _ => {}
            }
            perform(command, action, &values).map_err(|why| Failure::flag(&given.text, why))?;
        }
        Ok(())
    }
}
