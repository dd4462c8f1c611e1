// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call by the names of its options and actions, for another process, usually on another machine.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::call::CallOptions;
use crate::command::Command;
use crate::command::described::{Described, EnvChange, IS_SANDBOX, RemoteValue, bytes, only_here};
use crate::error::Result;
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

    fn of_command(command: &Command<'_>) -> Result<RemoteCall> {
        let Described { argv, options, env, actions } = command.describe()?;
        Ok(RemoteCall { argv, options, env, actions })
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
        let mut command = Command::of_described(&self.argv, self.env.as_deref(), &self.actions)?;
        let mut options = self.options(call)?;
        options.apply(&mut command);
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
