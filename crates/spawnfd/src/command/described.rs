// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command by the names of its parts, for another process, usually on another machine.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::arguments::{Kind as ArgumentKind, Value as Argument};
use super::table::Action;
use super::{Command, Signals, Stdio};
use crate::env::{Change, Env};
use crate::error::{Errno, Error, Result, Stage};

/// The value of an action's argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RemoteValue {
    /// The argument's default.
    None,
    /// A number below zero.
    Negative(i64),
    /// Another number.
    Int(u64),
    /// Several numbers.
    Ints(Vec<u64>),
    /// A path, or other bytes.
    Bytes(ByteBuf),
}

/// A change of an environment. Text may have bytes that are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvChange {
    /// Keep only the variables whose names match one of these patterns. Without patterns: remove all variables.
    KeepOnly(Vec<ByteBuf>),
    /// Remove the variables whose names match one of these patterns.
    Deny(Vec<ByteBuf>),
    /// Set a variable to a value.
    Set(ByteBuf, ByteBuf),
    /// Remove a variable.
    Unset(ByteBuf),
}

impl EnvChange {
    /// The changes that make an environment from that of the process that starts the program.
    fn of(env: &Env) -> Vec<EnvChange> {
        match env.changes() {
            Some(changes) => changes.iter().map(EnvChange::from).collect(),
            None => {
                let set = env.iter().map(|(name, value)| EnvChange::Set(bytes(name), bytes(value)));
                iter::once(EnvChange::KeepOnly(Vec::new())).chain(set).collect()
            }
        }
    }
}

impl From<&Change> for EnvChange {
    fn from(change: &Change) -> EnvChange {
        let all = |patterns: &[OsString]| patterns.iter().map(|pattern| bytes(pattern)).collect();
        match change {
            Change::KeepOnly(patterns) => EnvChange::KeepOnly(all(patterns)),
            Change::Deny(patterns) => EnvChange::Deny(all(patterns)),
            Change::Set(name, value) => EnvChange::Set(bytes(name), bytes(value)),
            Change::Unset(name) => EnvChange::Unset(bytes(name)),
        }
    }
}

impl From<&EnvChange> for Change {
    fn from(change: &EnvChange) -> Change {
        let all = |patterns: &[ByteBuf]| patterns.iter().map(text).collect();
        match change {
            EnvChange::KeepOnly(patterns) => Change::KeepOnly(all(patterns)),
            EnvChange::Deny(patterns) => Change::Deny(all(patterns)),
            EnvChange::Set(name, value) => Change::Set(text(name), text(value)),
            EnvChange::Unset(name) => Change::Unset(text(name)),
        }
    }
}

pub(crate) fn bytes(text: &OsStr) -> ByteBuf {
    ByteBuf::from(text.as_bytes())
}

fn text(bytes: &ByteBuf) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// The actions and attributes that a caller has added by their names.
#[derive(Debug, Default)]
pub(super) struct NamedActions {
    list: Vec<NamedAction>,
    /// The number of the command's actions that these have made.
    count: usize,
}

#[derive(Debug)]
struct NamedAction {
    name: &'static str,
    /// The error is the name of an argument that only this process has.
    values: std::result::Result<Vec<RemoteValue>, &'static str>,
}

impl NamedActions {
    /// Notes an action that has added `count` actions to the command.
    pub(super) fn add(&mut self, action: &Action, values: &[Argument<'_>], count: usize) {
        let values = values.iter().zip(action.arguments);
        let values = values.map(|(value, argument)| of_argument(value).ok_or(argument.name)).collect();
        self.list.push(NamedAction { name: action.name, values });
        self.count += count;
    }

    /// Whether these are all actions and attributes of the command.
    fn are_all_of(&self, command: &Command<'_>) -> bool {
        let has = |name: &str| self.list.iter().any(|action| action.name == name);
        let is_named = |is_set: bool, names: &[&str]| !is_set || names.iter().any(|name| has(name));
        let Signals { mask, default, parent_death } = &command.signals;
        self.count == command.actions.len()
            && is_named(command.inherit_descriptors, &["inherit_descriptors"])
            && is_named(mask.is_some(), &["signal_mask", "inherit_signals"])
            && is_named(default.is_some(), &["default_signals", "inherit_signals"])
            && is_named(parent_death.is_some(), &["parent_death_signal"])
            && is_named(command.namespaces.kinds.0 != 0, &["namespaces", "user_namespace"])
            && is_named(command.filter.is_some(), &["seccomp"])
    }
}

fn of_argument(value: &Argument<'_>) -> Option<RemoteValue> {
    Some(match value {
        Argument::None => RemoteValue::None,
        Argument::Int(number) => match (u64::try_from(*number), i64::try_from(*number)) {
            (Ok(number), _) => RemoteValue::Int(number),
            (_, number) => RemoteValue::Negative(number.ok()?),
        },
        Argument::Ints(numbers) => {
            RemoteValue::Ints(numbers.iter().map(|number| u64::try_from(*number).ok()).collect::<Option<_>>()?)
        }
        Argument::Path(path) => RemoteValue::Bytes(bytes(path)),
        Argument::Bytes(given) => RemoteValue::Bytes(given.clone().into()),
        Argument::Descriptor(_) | Argument::Process(_) => return None,
    })
}

/// The argument's type decides between a path and bytes.
fn to_argument(value: &RemoteValue, kind: ArgumentKind) -> Argument<'static> {
    match value {
        RemoteValue::None => Argument::None,
        RemoteValue::Negative(number) => Argument::Int((*number).into()),
        RemoteValue::Int(number) => Argument::Int((*number).into()),
        RemoteValue::Ints(numbers) => Argument::Ints(numbers.iter().map(|&number| number.into()).collect()),
        RemoteValue::Bytes(bytes) if kind == ArgumentKind::Filter => Argument::Bytes(bytes.to_vec()),
        RemoteValue::Bytes(bytes) => Argument::Path(OsStr::from_bytes(bytes).to_owned()),
    }
}

/// The error of an argument that another process cannot have.
pub(crate) fn only_here(argument: &str, reason: &str) -> Error {
    let message = format!("{argument}: {reason}");
    Error::refused(Stage::Validate, Errno::EINVAL, format!("remote: {argument}")).saying(message)
}

pub(crate) const IS_SANDBOX: &str = "its files are on this machine; write its command in front of the program";
const IS_DESCRIPTOR: &str = "a descriptor of this process cannot be passed to another machine";

/// The program of a command, and what a call passes to it.
#[derive(Debug, Default)]
pub(crate) struct Described {
    /// The program and its arguments.
    pub(crate) argv: Vec<ByteBuf>,
    /// Streams, directory and `argv[0]`, as options.
    pub(crate) options: BTreeMap<String, Option<ByteBuf>>,
    pub(crate) env: Option<Vec<EnvChange>>,
    pub(crate) actions: Vec<(String, Vec<RemoteValue>)>,
}

impl Command<'_> {
    /// Describes the command for another process.
    ///
    /// # Errors
    /// EINVAL: an argument has a meaning in this process alone. The message names it.
    pub(crate) fn describe(&self) -> Result<Described> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let not_there = [
            (!self.is_named(), "template", "a template is a file of this machine; name the program"),
            (self.is_sandboxed(), "sandbox", IS_SANDBOX),
            (self.parked.is_some(), "warm", "the parked processes are on this machine"),
            (self.placement.is_some(), "placement", "the tree is one of this machine"),
            (
                !self.named.are_all_of(self),
                "actions",
                "another machine performs only actions that were added by their names",
            ),
        ];
        if let Some((_, argument, reason)) = not_there.into_iter().find(|(is_set, ..)| *is_set) {
            return Err(only_here(argument, reason));
        }
        let words = iter::once(self.program_name()).chain(self.args.iter().map(OsString::as_os_str));
        let mut described = Described { argv: words.map(bytes).collect(), ..Described::default() };
        described.env = self.env.as_ref().map(EnvChange::of).filter(|changes| !changes.is_empty());
        for action in &self.named.list {
            let values = action.values.clone();
            let values = values.map_err(|argument| only_here(&format!("{}.{argument}", action.name), IS_DESCRIPTOR))?;
            described.actions.push((action.name.to_owned(), values));
        }
        let mut set = |name: &str, text: &OsStr| described.options.insert(name.to_owned(), Some(bytes(text)));
        for (name, stdio) in ["stdin", "stdout", "stderr"].into_iter().zip(&self.stdio) {
            match stdio {
                None => {}
                Some(Stdio::Null) => _ = set(name, "null".as_ref()),
                Some(Stdio::SameAsStdout) => _ = set(name, "merge".as_ref()),
                Some(Stdio::Descriptor(_)) => return Err(only_here(name, IS_DESCRIPTOR)),
                Some(_) => return Err(only_here(name, "the streams of this process are not on another machine")),
            }
        }
        if let Some(cwd) = self.get_current_dir() {
            set("cwd", cwd.as_os_str());
        }
        if let Some(arg0) = &self.arg0 {
            set("arg0", arg0);
        }
        Ok(described)
    }

    /// The command of a description: its program, environment and actions.
    ///
    /// # Errors
    /// EINVAL: there is no program or no such action, or a value is wrong. The message names it.
    pub(crate) fn of_described(
        argv: &[ByteBuf],
        env: Option<&[EnvChange]>,
        actions: &[(String, Vec<RemoteValue>)],
    ) -> Result<Command<'static>> {
        let [program, args @ ..] = argv else {
            return Err(Error::invalid("argv").saying("argv must not be empty; its first item names the program"));
        };
        let mut command = Command::new(OsStr::from_bytes(program));
        command.args(args.iter().map(|arg| OsStr::from_bytes(arg)));
        if let Some(changes) = env {
            command.environment(&changes.iter().map(Change::from).fold(Env::inherit(), Env::apply));
        }
        for (name, values) in actions {
            let Some(action) = Action::find(name) else {
                return Err(Error::invalid(format!("actions({name:?})")).saying(format!("there is no action {name:?}")));
            };
            let values: Vec<Argument<'static>> = values
                .iter()
                .zip(action.arguments)
                .map(|(value, argument)| to_argument(value, argument.kind))
                .collect();
            action
                .add(&mut command, &values)
                .map_err(|wrong| Error::invalid(format!("actions({name})")).saying(wrong.text(action.class())))?;
        }
        Ok(command)
    }
}
