// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the arguments of a call to a command of the core.

use std::future::{Future, ready};
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::internal::{CallOptions, RemoteCall, set_stream, stream_number};
use spawnfd::job::{EventOptions, Events, Spill, WhenFull};
use spawnfd::options::{self, Call, Kind, OptionSpec};
use spawnfd::session::CommandText;
use spawnfd::signal::SignalSet;
use spawnfd::warm::Explanation;
use spawnfd::{Child, Command, Env, Job, Output, Run, Session, Stdio, Warm};

use crate::actions::{self, Descriptors};
use crate::env::{self, environment};
use crate::errors::{Failure, Origins, refused, wrong};
use crate::limiter::NativeLimiter;
use crate::sandbox::NativeSandbox;
use crate::template::NativeTemplate;
use crate::values::{instance, is_absent, is_text, items, object, option_value, os_string};
use crate::warm::NativeWarm;

/// A command and its options. Only the methods use the command, so that it does not outlive the descriptors.
pub struct Request {
    command: Command<'static>,
    options: CallOptions,
    origins: Origins,
    /// Dropped after `command`.
    _descriptors: Descriptors,
}

/// A started job, and the options that it needs later: the origins of actions, and the time between SIGTERM and SIGKILL.
pub type Started = (Job, Events, Origins, Duration);

/// The signals that Node ignores in its own process: SIGPIPE and SIGXFSZ. libuv's children have the defaults, too.
pub const IGNORED_BY_NODE: SignalSet = SignalSet::from_bits(1 << (13 - 1) | 1 << (25 - 1));

/// The command of an argv, whose first item is a template, or names the program.
fn command(argv: &Unknown<'_>) -> Result<Command<'static>> {
    let items = items(argv, "argv", "an array of strings")?;
    let Some((program, args)) = items.split_first() else {
        return Err(wrong("argv must not be empty; its first item names the program"));
    };
    let mut command = match instance::<NativeTemplate>(program, "", "") {
        Ok(template) => template.command(),
        Err(_) => match os_string(program, "argv[0]")? {
            name if name.is_empty() => return Err(wrong("argv[0] must not be empty; it names the program")),
            name => Command::new(name),
        },
    };
    for (index, arg) in args.iter().enumerate() {
        command.arg(os_string(arg, &format!("argv[{}]", index + 1))?);
    }
    Ok(command)
}

impl Request {
    pub fn new(argv: &Unknown<'_>, given: &Object<'_>, call: Call) -> Result<Request> {
        Request::of(argv, given, call, false)
    }

    /// The request for a program on another machine. Refuses arguments that have a meaning in this process alone.
    pub fn remote(argv: &Unknown<'_>, given: &Object<'_>, call: Call) -> Result<Request> {
        let request = Request::of(argv, given, call, true)?;
        let Request { command, options, .. } = &request;
        let checked = match call {
            Call::Session => RemoteCall::of_session(command, &options.session),
            _ => RemoteCall::new(command, &options.run, call),
        };
        checked.map_err(refused)?;
        Ok(request)
    }

    fn of(argv: &Unknown<'_>, given: &Object<'_>, call: Call, is_remote: bool) -> Result<Request> {
        let mut command = command(argv)?;
        // The signals of this process have no effect on another machine.
        if !is_remote {
            command.signal_mask(SignalSet::EMPTY);
            command.default_signals(IGNORED_BY_NODE);
        }
        let (mut env, mut descriptors, mut origins) = (None, Descriptors::new(), Origins::default());
        let (mut streams, mut inherited) = (Vec::new(), Vec::new());
        let mut options = call_options(given, call, |options, option, value| {
            match option.name {
                "env" => env = Some(environment(value, is_remote)?),
                "actions" | "warm" | "sandbox" if is_absent(&value)? => {}
                "actions" => actions::add(&mut command, &value, &mut descriptors, &mut origins)?,
                "warm" => _ = command.warm(instance::<NativeWarm>(&value, "warm", "Warm")?.open()?),
                "sandbox" => {
                    let sandbox = instance::<NativeSandbox>(&value, "sandbox", "Sandbox")?;
                    match call {
                        Call::Session => {
                            options.session = std::mem::take(&mut options.session).sandbox(sandbox.native());
                        }
                        _ => _ = command.sandbox(sandbox.native()),
                    }
                }
                // This side counts the shells of another machine.
                "limiter" if is_remote && call == Call::Session && !is_absent(&value)? => {
                    let limiter = instance::<NativeLimiter>(&value, "limiter", "Limiter")?;
                    options.run = std::mem::take(&mut options.run).limiter(limiter.native());
                }
                name if matches!(option.kind, Kind::Stream(_)) && value.get_type()? == napi::ValueType::Number => {
                    streams.push((name, descriptors.copy(&value, name)?));
                }
                // Node's own streams are close-on-exec, so the program gets copies.
                name if matches!(option.kind, Kind::Stream(_)) && is_text(&value, "inherit")? => inherited.push(name),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if call == Call::Spawn {
            for name in ["stdin", "stdout", "stderr"] {
                if given.get::<Unknown<'_>>(name)?.as_ref().map_or(Ok(true), is_absent)? {
                    inherited.push(name);
                }
            }
        }
        for name in inherited {
            let number = stream_number(name).unwrap_or_default() as i32;
            streams.push((name, descriptors.copy_number(number, name)?));
        }
        // The environment of this moment: another thread starts the program.
        command.environment(&env.unwrap_or_else(Env::inherit));
        options.apply(&mut command);
        for (name, fd) in streams {
            set_stream(&mut command, name, Stdio::from(fd)).map_err(refused)?;
        }
        Ok(Request { command, options, origins, _descriptors: descriptors })
    }

    /// The command and its options, for a program on another machine.
    pub fn parts(&self) -> (&Command<'static>, &CallOptions) {
        (&self.command, &self.options)
    }

    /// The time between SIGTERM and SIGKILL.
    pub fn grace(&self) -> Duration {
        grace(&self.options)
    }

    /// A started job, with the options that it needs later.
    pub fn into_started(self, (job, events): (Job, Events)) -> Started {
        let grace = self.grace();
        (job, events, self.origins, grace)
    }

    /// The options of the events of a job.
    pub fn events(&self) -> EventOptions {
        events(&self.options)
    }

    /// The failure for an error of the program's start.
    pub fn failure(&self, error: spawnfd::Error) -> Failure {
        self.origins.failure(error)
    }

    /// Runs the program to its end, in the calling thread.
    pub fn run_sync(self) -> std::result::Result<Output, Failure> {
        self.command.run_with(&self.options.run).map_err(|error| self.origins.failure(error))
    }

    /// Starts the program without supervision, in the calling thread.
    pub fn spawn(mut self) -> std::result::Result<Child, Failure> {
        // A program that a signal kills before exec has ended, as any other.
        let checked = self.command.take_killed().check_descriptors();
        checked.and_then(|()| self.command.spawn()).map_err(|error| self.origins.failure(error))
    }

    /// Runs the program to its end, or until `stop`.
    pub async fn run(self, stop: impl Future<Output = ()>) -> std::result::Result<Output, Failure> {
        let run = self.command.run_until(&self.options.run, stop);
        run.await.map_err(|error| self.origins.failure(error))
    }

    /// Runs the program beside the shell of a session to its end, or until `stop`.
    pub async fn run_beside(
        mut self,
        session: &Session,
        stop: impl Future<Output = ()> + Unpin,
    ) -> std::result::Result<Output, Failure> {
        match select(pin!(session.side_state_async()), stop).await {
            Either::Left((state, stop)) => {
                state.map_err(|error| self.origins.failure(error))?.apply(&mut self.command);
                self.run(stop).await
            }
            // Nothing has started. A run whose stop is ready fails with ECANCELED.
            Either::Right(_) => self.run(ready(())).await,
        }
    }

    /// Starts the program as a job, unless `stop` comes before.
    pub async fn start(self, stop: impl Future<Output = ()>) -> std::result::Result<Started, Failure> {
        let grace = grace(&self.options);
        match self.command.start_until(&self.options.run, events(&self.options), stop).await {
            Ok((job, events)) => Ok((job, events, self.origins, grace)),
            Err(error) => Err(self.origins.failure(error)),
        }
    }

    /// Creates a session whose shell is the program.
    pub fn session(self) -> std::result::Result<(Session, Duration), Failure> {
        let grace = self.options.session.get("grace").as_duration().unwrap_or_default();
        // No option of a session is a descriptor of this package's caller.
        let session = Session::new(self.command, self.options.session);
        session.map(|session| (session, grace)).map_err(Failure::from)
    }

    /// Finds out how a run would start.
    pub fn explain(self, warm: &Warm) -> std::result::Result<Explanation, Failure> {
        warm.explain(&self.command).map_err(|error| self.origins.failure(error))
    }
}

/// A command of a session and its options.
#[napi]
pub struct NativeCommandText {
    text: CommandText,
    options: CallOptions,
}

#[napi]
impl NativeCommandText {
    #[napi(constructor)]
    pub fn new(text: Unknown<'_>, given: Object<'_>) -> Result<NativeCommandText> {
        let mut variables = Vec::new();
        let options = call_options(&given, Call::Command, |_, option, value| {
            if option.name == "env" && !is_absent(&value)? {
                variables = env::variables(&value)?;
            }
            Ok(option.name == "env")
        })?;
        let mut text = options.apply_to_text(CommandText::new(os_string(&text, "command")?));
        for (name, value) in variables {
            text = text.env(name, value.unwrap_or_default());
        }
        text.validate().map_err(refused)?;
        Ok(NativeCommandText { text, options })
    }
}

impl NativeCommandText {
    pub fn parts(&self) -> (CommandText, Run, EventOptions, Duration) {
        (self.text.clone(), self.options.run.clone(), events(&self.options), grace(&self.options))
    }
}

/// The options of a job's events. TypeScript changes `when_full` once it knows whether the caller reads.
fn events(options: &CallOptions) -> EventOptions {
    options.events().when_full(WhenFull::Wait)
}

fn grace(options: &CallOptions) -> Duration {
    options.run.get("grace").as_duration().unwrap_or_default()
}

/// Converts the options of a call. `own` handles options that only some calls have, and returns false for others.
fn call_options<'env>(
    given: &Object<'env>,
    call: Call,
    mut own: impl FnMut(&mut CallOptions, &OptionSpec, Unknown<'env>) -> Result<bool>,
) -> Result<CallOptions> {
    let mut options = CallOptions::new(call);
    for key in Object::keys(given)? {
        let Some(value) = given.get::<Unknown<'_>>(&key)? else { continue };
        if value.get_type()? == napi::ValueType::Undefined {
            continue;
        }
        let option = find(&key, call)?;
        if own(&mut options, option, value)? {
            continue;
        }
        match option.name {
            "limiter" if is_absent(&value)? => {}
            "limiter" => options.limiter(instance::<NativeLimiter>(&value, "limiter", "Limiter")?.native()),
            "limits" | "spill" => set_fields(&mut options, option.name, &value, call)?,
            _ => set(&mut options, option, &key, value)?,
        }
    }
    Ok(options)
}

/// Sets the options whose values are the fields of an object.
fn set_fields(options: &mut CallOptions, name: &str, value: &Unknown<'_>, call: Call) -> Result<()> {
    if is_absent(value)? {
        return Ok(());
    }
    let fields = object(value, name, "an object")?;
    if name == "spill" {
        options.run = std::mem::take(&mut options.run).spill(Spill::default());
    }
    for key in Object::keys(&fields)? {
        let shown = format!("{name}.{key}");
        let option = find(&shown, call)?;
        if let Some(value) = fields.get::<Unknown<'_>>(&key)?
            && value.get_type()? != napi::ValueType::Undefined
        {
            set(options, option, &shown, value)?;
        }
    }
    Ok(())
}

/// The letters of an option's name in this package.
fn camel_case(name: &str) -> impl Iterator<Item = char> + '_ {
    let words = name.split('_').enumerate();
    words.flat_map(|(index, word)| {
        let (first, rest) = word.split_at(usize::from(index > 0));
        first.chars().map(|letter| letter.to_ascii_uppercase()).chain(rest.chars())
    })
}

/// The option that the caller names.
fn find(name: &str, call: Call) -> Result<&'static OptionSpec> {
    named(name, call).ok_or_else(|| unknown(name, call))
}

fn named(name: &str, call: Call) -> Option<&'static OptionSpec> {
    options::of(call).find(|option| camel_case(option.name).eq(name.chars()))
}

/// Sets an option. An error text of the core gets the option's name as the caller has spelled it.
fn set(options: &mut CallOptions, option: &OptionSpec, spelled: &str, value: Unknown<'_>) -> Result<()> {
    let value = option_value(option.kind, spelled, value)?;
    options.set(option.name, value).map_err(|error| {
        let message = error.message();
        match message.strip_prefix(option.name) {
            Some(rest) => wrong(format!("{spelled}{rest}")),
            None => wrong(message),
        }
    })
}

fn unknown(name: &str, call: Call) -> Error {
    if options::find(call, name).is_some() {
        return wrong(format!("unexpected option {name:?}; its name is {}", camel_case(name).collect::<String>()));
    }
    let accepts = |other| named(name, other).is_some();
    let instead = match (name, call) {
        ("shell", _) => "; for a shell command line pass sh(command) as argv",
        ("stdio", _) => "; see stdin, stdout and stderr",
        ("maxBuffer", _) => "; see keep, outputLimit and spill",
        ("killSignal", _) => "; see grace",
        ("encoding", _) => "; the result has bytes and text",
        (_, Call::Command) if accepts(Call::Session) => "; it belongs to the session",
        (_, Call::Run) if accepts(Call::Start) => "; start() accepts it",
        (_, Call::Start) if accepts(Call::Run) => "; run() accepts it",
        _ => "",
    };
    wrong(format!("unexpected option {name:?}{instead}"))
}
