// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command and its options by their names, for another process, usually on another machine.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::arguments::{Kind as ArgumentKind, Value as Argument};
use super::table::Action;
use super::{Command, Signals, Stdio};
use crate::call::CallOptions;
use crate::env::{Change, Env};
use crate::error::{Errno, Error, Result, Stage};
use crate::job::Run;
use crate::option::{Call, Group, Kind, Value};
use crate::options;
use crate::session::{CommandText, SessionOptions};

/// A command and its options by their names. Text may have bytes that are not UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteCall {
    /// The program and its arguments. For a command of a session: its text.
    pub argv: Vec<ByteBuf>,
    /// The options of the call, as text that [`Kind::parse`] reads. `None`: no value.
    pub options: BTreeMap<String, Option<ByteBuf>>,
    /// The changes of the environment of the process that starts the program. `None`: no changes.
    pub env: Option<Vec<EnvChange>>,
    /// The actions and attributes, by name.
    pub actions: Vec<(String, Vec<RemoteValue>)>,
}

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

fn bytes(text: &OsStr) -> ByteBuf {
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
fn only_here(argument: &str, reason: &str) -> Error {
    let message = format!("{argument}: {reason}");
    Error::refused(Stage::Validate, Errno::EINVAL, format!("remote: {argument}")).saying(message)
}

const IS_SANDBOX: &str = "its files are on this machine; write its command in front of the program";
const IS_DESCRIPTOR: &str = "a descriptor of this process cannot be passed to another machine";

impl RemoteCall {
    /// Describes a call. The options of `run` that this process carries out itself are not part of it: the window, the
    /// limiter, and the bytes of the input.
    ///
    /// # Errors
    /// EINVAL: an argument has a meaning in this process alone, such as a descriptor or a template. The message names it.
    pub fn new(command: &Command<'_>, run: &Run, call: Call) -> Result<RemoteCall> {
        command.validate_run(run)?;
        let mut remote = RemoteCall::of_command(command)?;
        remote.set_run_options(call, run);
        Ok(remote)
    }

    /// Describes the shell of a session.
    ///
    /// # Errors
    /// EINVAL: an argument has a meaning in this process alone. The message names it.
    pub fn of_session(command: &Command<'_>, options: &SessionOptions) -> Result<RemoteCall> {
        if options.sandbox.is_some() {
            return Err(only_here("sandbox", IS_SANDBOX));
        }
        let mut remote = RemoteCall::of_command(command)?;
        remote.set_options(Call::Session, |name| options.get(name));
        Ok(remote)
    }

    /// Describes a command of a session.
    ///
    /// # Errors
    /// EINVAL: the text or an option of it cannot reach a shell.
    pub fn of_text(text: &CommandText, run: &Run) -> Result<RemoteCall> {
        text.validate()?;
        let mut remote = RemoteCall { argv: vec![text.text.clone().into()], ..RemoteCall::default() };
        let variables = text.env.iter().map(|(name, value)| EnvChange::Set(bytes(name.as_ref()), value.clone().into()));
        remote.env = Some(variables.collect()).filter(|variables: &Vec<_>| !variables.is_empty());
        if let Some(cwd) = &text.cwd {
            remote.set("cwd", Some(cwd.into()));
        }
        remote.set_run_options(Call::Command, run);
        Ok(remote)
    }

    /// Describes the program of a command, and what a call passes to it.
    fn of_command(command: &Command<'_>) -> Result<RemoteCall> {
        if let Some(refused) = &command.refused {
            return Err(refused.clone());
        }
        let not_there = [
            (!command.is_named(), "template", "a template is a file of this machine; name the program"),
            (command.is_sandboxed(), "sandbox", IS_SANDBOX),
            (command.parked.is_some(), "warm", "the parked processes are on this machine"),
            (command.placement.is_some(), "placement", "the tree is one of this machine"),
            (
                !command.named.are_all_of(command),
                "actions",
                "another machine performs only actions that were added by their names",
            ),
        ];
        if let Some((_, argument, reason)) = not_there.into_iter().find(|(is_set, ..)| *is_set) {
            return Err(only_here(argument, reason));
        }
        let words = iter::once(command.program_name()).chain(command.args.iter().map(OsString::as_os_str));
        let mut remote = RemoteCall { argv: words.map(bytes).collect(), ..RemoteCall::default() };
        remote.env = command.env.as_ref().map(EnvChange::of).filter(|changes| !changes.is_empty());
        for action in &command.named.list {
            let values = action.values.clone();
            let values = values.map_err(|argument| only_here(&format!("{}.{argument}", action.name), IS_DESCRIPTOR))?;
            remote.actions.push((action.name.to_owned(), values));
        }
        for (name, stdio) in ["stdin", "stdout", "stderr"].into_iter().zip(&command.stdio) {
            match stdio {
                None => {}
                Some(Stdio::Null) => remote.set(name, Some("null".into())),
                Some(Stdio::SameAsStdout) => remote.set(name, Some("merge".into())),
                Some(Stdio::Descriptor(_)) => return Err(only_here(name, IS_DESCRIPTOR)),
                Some(_) => return Err(only_here(name, "the streams of this process are not on another machine")),
            }
        }
        if let Some(cwd) = command.get_current_dir() {
            remote.set("cwd", Some(cwd.into()));
        }
        if let Some(arg0) = &command.arg0 {
            remote.set("arg0", Some(arg0.clone()));
        }
        Ok(remote)
    }

    fn set(&mut self, name: &str, text: Option<OsString>) {
        self.options.insert(name.to_owned(), text.map(|text| text.into_vec().into()));
    }

    fn set_run_options(&mut self, call: Call, run: &Run) {
        if run.writable.is_some() {
            self.set("stdin", Some("stream".into()));
        }
        self.set_options(call, |name| run.get(name));
        if let Some(spill) = run.spill.as_ref().map(|_| "spill.max_bytes") {
            // One option of the file asks for a file.
            self.set(spill, run.get(spill).to_text(Kind::Bytes));
        }
    }

    /// Sets the options that do not have their default.
    fn set_options(&mut self, call: Call, get: impl Fn(&str) -> Value) {
        for option in options::of(call) {
            let is_here = matches!(option.kind, Kind::Object | Kind::Data) || option.name == "window";
            if is_here || matches!(option.group, Group::Program) || option.name == "cwd" {
                continue;
            }
            let value = get(option.name);
            if value.is_none() && !option.optional {
                // An option that this process carries out, or one of a spill file that the run does not have.
                continue;
            }
            let text = value.to_text(option.kind);
            if text != (option.default)().to_text(option.kind) {
                self.set(option.name, text);
            }
        }
    }

    /// Makes the command and its options.
    ///
    /// # Errors
    /// EINVAL: there is no such option or action, or a value is wrong. The message names it.
    pub fn command(&self, call: Call) -> Result<(Command<'static>, CallOptions)> {
        let [program, args @ ..] = &self.argv[..] else {
            return Err(Error::invalid("argv").saying("argv must not be empty; its first item names the program"));
        };
        let mut command = Command::new(OsStr::from_bytes(program));
        command.args(args.iter().map(|arg| OsStr::from_bytes(arg)));
        let mut options = self.options(call)?;
        options.apply(&mut command);
        if let Some(changes) = &self.env {
            command.environment(&changes.iter().map(Change::from).fold(Env::inherit(), Env::apply));
        }
        for (name, values) in &self.actions {
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
        Ok((command, options))
    }

    /// Makes the options of a command of a session, whose text is the first item of `argv`.
    ///
    /// # Errors
    /// EINVAL: there is no such option, or a value is wrong.
    pub fn options(&self, call: Call) -> Result<CallOptions> {
        let mut options = CallOptions::new(call);
        for (name, text) in &self.options {
            options.set_text(name, text.as_ref().map(|text| OsStr::from_bytes(text)))?;
        }
        Ok(options)
    }
}
