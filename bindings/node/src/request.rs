// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments of a call to a command of the core.

use std::ffi::OsString;
use std::future::Future;
use std::time::Duration;

use napi::bindgen_prelude::*;
use spawnfd::internal::{CallOptions, set_stream};
use spawnfd::job::{Events, Spill, WhenFull};
use spawnfd::limits::Limits;
use spawnfd::options::{self, Call, Kind, OptionSpec};
use spawnfd::signal::SignalSet;
use spawnfd::{Child, Command, Env, Job, Output, Stdio};

use crate::actions::{self, Descriptors};
use crate::env::environment;
use crate::errors::{Failure, Origins, refused, wrong};
use crate::limiter::NativeLimiter;
use crate::values::{is_absent, object, option_value, os_string};

/// A command and its options. Only the methods use the command, so that it does not outlive the descriptors.
pub struct Request {
    command: Command<'static>,
    options: CallOptions,
    origins: Origins,
    /// Dropped after `command`.
    _descriptors: Descriptors,
}

/// The signals that Node ignores in its own process: SIGPIPE and SIGXFSZ. libuv's children have the defaults, too.
pub const IGNORED_BY_NODE: SignalSet = SignalSet::from_bits(1 << (13 - 1) | 1 << (25 - 1));

impl Request {
    pub fn new(argv: &Array<'_>, given: &Object<'_>, call: Call) -> Result<Request> {
        let argv = strings(argv, "argv")?;
        let Some((program, args)) = argv.split_first() else {
            return Err(wrong("argv must not be empty; its first item names the program"));
        };
        if program.is_empty() {
            return Err(wrong("argv[0] must not be empty; it names the program"));
        }
        let mut command = Command::new(program);
        command.args(args).signal_mask(SignalSet::EMPTY);
        command.default_signals(IGNORED_BY_NODE);
        let mut options = CallOptions::new(call);
        let (mut env, mut descriptors, mut origins) = (None, Descriptors::new(), Origins::default());
        let mut streams = Vec::new();
        for key in Object::keys(given)? {
            let Some(value) = given.get::<Unknown<'_>>(&key)? else { continue };
            if value.get_type()? == napi::ValueType::Undefined {
                continue;
            }
            let option = options::find(call, &snake_case(&key)).filter(|option| is_spelled(option, &key));
            let Some(option) = option else { return Err(unknown(&key, call)) };
            match option.name {
                "env" => env = Some(environment(value)?),
                "actions" if is_absent(&value)? => {}
                "actions" => actions::add(&mut command, &value, &mut descriptors, &mut origins)?,
                name if matches!(option.kind, Kind::Stream(_)) && value.get_type()? == napi::ValueType::Number => {
                    streams.push((name, descriptors.copy(&value, name)?));
                }
                "limiter" => options.run = std::mem::take(&mut options.run).limiter(&limiter(&value)?),
                "limits" | "spill" => set_fields(&mut options, option.name, &value, call)?,
                _ if option.kind == Kind::Object => {
                    return Err(wrong(format!("the option {key} is not available in Node yet")));
                }
                name => {
                    let value = option_value(option.kind, &key, value)?;
                    options.set(name, value).map_err(|error| refused_option(&error, name, &key))?;
                }
            }
        }
        // The environment of this moment: another thread starts the program.
        command.environment(&env.unwrap_or_else(Env::inherit));
        options.apply(&mut command);
        for (name, fd) in streams {
            set_stream(&mut command, name, Stdio::from(fd)).map_err(|error| refused(&error))?;
        }
        Ok(Request { command, options, origins, _descriptors: descriptors })
    }

    /// Runs the program to its end, in the calling thread.
    #[expect(clippy::result_large_err, reason = "one result a run")]
    pub fn run_sync(mut self) -> std::result::Result<Output, Failure> {
        self.command.run_with(&self.options.run).map_err(|error| self.origins.failure(&error))
    }

    /// Starts the program without supervision, in the calling thread.
    #[expect(clippy::result_large_err, reason = "one result a start")]
    pub fn spawn(mut self) -> std::result::Result<Child, Failure> {
        // A program that a signal kills before exec has ended, as any other.
        let checked = self.command.take_killed().check_descriptors();
        checked.and_then(|()| self.command.spawn()).map_err(|error| self.origins.failure(&error))
    }

    /// Runs the program to its end, or until `stop`.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> std::result::Result<Output, Failure> {
        let run = self.command.run_until(&self.options.run, stop);
        run.await.map_err(|error| self.origins.failure(&error))
    }

    /// Starts the program as a job, unless `stop` comes before. Also returns what the job's errors need, and the time
    /// between SIGTERM and SIGKILL.
    pub async fn start(
        mut self,
        stop: impl Future<Output = ()>,
    ) -> std::result::Result<(Job, Events, Origins, Duration), Failure> {
        let run = &self.options.run;
        // TypeScript changes this once it knows whether the caller reads.
        let events = self.options.events().when_full(WhenFull::Wait);
        match self.command.start_until(run, events, stop).await {
            Ok((job, events)) => Ok((job, events, self.origins, run.get("grace").as_duration().unwrap_or_default())),
            Err(error) => Err(self.origins.failure(&error)),
        }
    }
}

/// Sets the options whose values are the fields of an object.
fn set_fields(options: &mut CallOptions, name: &str, value: &Unknown<'_>, call: Call) -> Result<()> {
    if is_absent(value)? {
        return Ok(());
    }
    let fields = object(value, name, "an object")?;
    options.run = match name {
        "spill" => std::mem::take(&mut options.run).spill(Spill::default()),
        _ => std::mem::take(&mut options.run).limits(Limits::new()),
    };
    for key in Object::keys(&fields)? {
        let shown = format!("{name}.{key}");
        let option = options::find(call, &format!("{name}.{}", snake_case(&key)));
        let Some(option) = option.filter(|option| is_spelled(option, &shown)) else {
            return Err(unknown(&shown, call));
        };
        if let Some(value) = fields.get::<Unknown<'_>>(&key)?
            && value.get_type()? != napi::ValueType::Undefined
        {
            let value = option_value(option.kind, &shown, value)?;
            options.set(option.name, value).map_err(|error| refused_option(&error, option.name, &shown))?;
        }
    }
    Ok(())
}

/// An item of a list.
fn strings(list: &Array<'_>, name: &str) -> Result<Vec<OsString>> {
    let item = |index: u32| {
        let value = list.get::<Unknown<'_>>(index)?;
        let shown = format!("{name}[{index}]");
        value.map_or_else(|| Err(wrong(format!("{shown} must be a string"))), |value| os_string(&value, &shown))
    };
    (0..list.len()).map(item).collect()
}

fn limiter(value: &Unknown<'_>) -> Result<spawnfd::limits::Limiter> {
    // SAFETY: the conversion checks the class.
    let limiter: Result<ClassInstance<'_, NativeLimiter>> = unsafe { value.cast() };
    limiter.map(|limiter| limiter.native().clone()).map_err(|_| wrong("limiter must be a Limiter"))
}

/// The core's name of an option.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// The name of an option in this package.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |camel, word| camel + &word[..1].to_ascii_uppercase() + &word[1..])
}

fn is_spelled(option: &OptionSpec, name: &str) -> bool {
    camel_case(option.name) == name
}

fn unknown(name: &str, call: Call) -> Error {
    let accepts = |other| options::find(other, &snake_case(name)).is_some();
    if accepts(call) {
        return wrong(format!("unexpected option {name:?}; its name is {}", camel_case(name)));
    }
    let instead = match (name, call) {
        ("shell", _) => "; for a shell command line pass sh(command) as argv",
        ("stdio", _) => "; see stdin, stdout and stderr",
        ("maxBuffer", _) => "; see keep, outputLimit and spill",
        ("killSignal", _) => "; see grace",
        ("encoding", _) => "; the result has bytes and text",
        (_, Call::Run) if accepts(Call::Start) => "; start() accepts it",
        (_, Call::Start) if accepts(Call::Run) => "; run() accepts it",
        _ => "",
    };
    wrong(format!("unexpected option {name:?}{instead}"))
}

/// The core's error text, with the option's name as the caller has spelled it.
fn refused_option(error: &spawnfd::Error, name: &str, spelled: &str) -> Error {
    let message = error.message();
    match message.strip_prefix(name) {
        Some(rest) => wrong(format!("{spelled}{rest}")),
        None => wrong(message),
    }
}
