// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keyword arguments of `spawn`, `run`, `start` and sessions: the options of the core's table, as Python values. An
//! argument that is None, or the default keyword of a stream, counts as absent, except if None is a value of the option.

use std::iter::zip;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use spawnfd::internal::{CallOptions, stream_number};
use spawnfd::options::{self, Call, Kind, OptionSpec, Value};
use spawnfd::{Run, Stdio};

use crate::arguments::{
    boolean, borrow, bytes, integer, number, os_string, quoted, seconds, text, wrong_type, wrong_value,
};
use crate::classes::PythonClass;
use crate::limiter::Limiter;
use crate::stdio::{self, Stream};

/// The options of a call.
#[derive(Debug)]
pub struct Options<'py> {
    pub call: Call,
    /// The program runs on another machine.
    pub is_remote: bool,
    /// The options that have the same values on every front.
    pub core: CallOptions,
    pub cwd: Option<Bound<'py, PyAny>>,
    pub env: Option<Bound<'py, PyAny>>,
    pub actions: Option<Bound<'py, PyAny>>,
    pub sandbox: Option<Bound<'py, PyAny>>,
    pub warm: Option<Bound<'py, PyAny>>,
    /// None: the session decides for each command.
    pub queue: Option<bool>,
}

impl<'py> Options<'py> {
    /// Takes the options from the keyword arguments of a call.
    pub fn new(given: &Bound<'py, PyDict>, call: Call) -> PyResult<Options<'py>> {
        let core = CallOptions::new(call);
        let mut options = Options {
            call,
            is_remote: false,
            core,
            cwd: None,
            env: None,
            actions: None,
            sandbox: None,
            warm: None,
            queue: None,
        };
        for (name, value) in given.iter() {
            let name = name.cast::<PyString>()?.to_str()?;
            let Some(option) = options::find(call, name) else { return Err(unexpected_option(name, call)) };
            if !value.is_none() {
                options.add(option, value)?;
            } else if option.optional && !matches!(option.kind, Kind::Object | Kind::Stream(_) | Kind::Path) {
                options.set(name, Value::None)?;
            }
        }
        options.check_combinations()?;
        Ok(options)
    }

    /// The options of a call for another machine.
    pub fn remote(given: &Bound<'py, PyDict>, call: Call) -> PyResult<Options<'py>> {
        Ok(Options { is_remote: true, ..Options::new(given, call)? })
    }

    /// Whether the run has a terminal, which is all its streams.
    pub fn has_terminal(&self) -> bool {
        !self.core.run.get("terminal").is_none()
    }

    fn add(&mut self, option: &OptionSpec, value: Bound<'py, PyAny>) -> PyResult<()> {
        let name = option.name;
        match (name, option.kind) {
            (_, Kind::Stream(words)) => match stdio::stream(option, words, self.call, &value)? {
                Stream::Word(word) => self.set(name, word.into())?,
                Stream::Descriptor(fd) => {
                    let number = stream_number(name).unwrap_or_default();
                    self.core.streams[number] = Some(Stdio::Descriptor(borrow(fd).into()));
                }
            },
            ("cwd", _) if self.call != Call::Command => self.cwd = Some(value),
            ("env", _) => self.env = Some(value),
            ("actions", _) => self.actions = Some(value),
            ("sandbox", _) => self.sandbox = Some(value),
            ("warm", _) => self.warm = Some(value),
            ("queue", _) => self.queue = Some(boolean(&value, name)?),
            ("limiter", _) => {
                let Ok(limiter) = value.cast::<Limiter>() else {
                    return Err(wrong_type(&name, "spawnfd.Limiter or None", &value));
                };
                self.core.limiter(&limiter.get().0);
            }
            ("limits" | "spill", _) => self.add_fields(name, &value)?,
            _ => self.set(name, native(option, &value)?)?,
        }
        Ok(())
    }

    /// Sets the options whose values are the fields of a Limits or a Spill.
    fn add_fields(&mut self, name: &str, value: &Bound<'py, PyAny>) -> PyResult<()> {
        static LIMITS: PythonClass = PythonClass::of("spawnfd._types", "Limits");
        static SPILL: PythonClass = PythonClass::of("spawnfd._types", "Spill");
        let (class, expected) = match name {
            "limits" => (&LIMITS, "spawnfd.Limits or None"),
            _ => (&SPILL, "spawnfd.Spill or None"),
        };
        if !value.is_instance(&class.get(value.py())?)? {
            return Err(wrong_type(&name, expected, value));
        }
        for option in options::of(self.call) {
            let Some((_, field)) = option.name.split_once('.').filter(|(of, _)| *of == name) else { continue };
            let value = value.getattr(field)?;
            if !value.is_none() || !option.optional {
                self.set(option.name, native(option, &value)?)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Value) -> PyResult<()> {
        self.core.set(name, value).map_err(|error| PyValueError::new_err(error.message().into_owned()))
    }

    fn check_combinations(&mut self) -> PyResult<()> {
        let (has_input, has_terminal) = (!self.core.run.get("input").is_none(), self.has_terminal());
        let [stdin, ..] = &self.core.streams;
        if has_input && (stdin.is_some() || !self.core.run.get("writable").is_none()) {
            return Err(wrong_value(&"input", "cannot be combined with stdin"));
        }
        let mut others = zip(["stdin", "stdout", "stderr"], &self.core.streams);
        if has_terminal && let Some((name, _)) = others.find(|(_, stdio)| stdio.is_some()) {
            return Err(wrong_value(
                &"terminal",
                format_args!("cannot be combined with {name}: the terminal is all three streams"),
            ));
        }
        match self.call {
            Call::Start if has_terminal && !has_input => self.set("stdin", "stream".into()),
            _ => Ok(()),
        }
    }
}

/// The time between SIGTERM and SIGKILL.
pub fn grace(run: &Run) -> Duration {
    run.get("grace").as_duration().unwrap_or_default()
}

/// Converts a Python value to one that the core's table accepts.
fn native(option: &OptionSpec, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let name = option.name;
    if let (Kind::HeadTail | Kind::Word(_), Ok(word)) = (option.kind, value.cast::<PyString>()) {
        return Ok(Value::Text((*word.to_string_lossy()).into()));
    }
    Ok(match option.kind {
        Kind::Flag => Value::Bool(boolean(value, name)?),
        Kind::Count | Kind::Bytes => Value::Integer(integer(value, &name)?),
        Kind::Number => Value::Number(number(value, &name, "float or None")?),
        // More seconds than a Duration can have mean no end.
        Kind::Duration => Value::Duration(seconds(Some(value), name)?.unwrap_or(Duration::MAX)),
        Kind::Text => Value::Text(text(value, name, "str or None")?.into()),
        Kind::Path => Value::Text(os_string(value, &name)?),
        Kind::Data => Value::Bytes(bytes(value, name)?.into()),
        Kind::HeadTail => {
            let (head, tail) = pair(value, name, "a tuple of two int (bytes of head and of tail), or \"all\"")?;
            Value::Pair(head, tail)
        }
        Kind::TerminalSize => {
            // The first item of os.terminal_size is the number of columns.
            static TERMINAL_SIZE: PythonClass = PythonClass::of("os", "terminal_size");
            let (first, second) = pair(value, name, "a tuple of two int: rows and columns")?;
            let is_reversed = value.is_instance(&TERMINAL_SIZE.get(value.py())?)?;
            if is_reversed { Value::Pair(second, first) } else { Value::Pair(first, second) }
        }
        Kind::Word(words) => return Err(wrong_type(&name, &format!("one of {}", quoted(words)), value)),
        _ => return Err(wrong_type(&name, "a value of another type", value)),
    })
}

/// Returns the error for an unknown option. For an option of subprocess the message names the equivalent.
fn unexpected_option(name: &str, kind: Call) -> PyErr {
    let accepts = |call| options::find(call, name).is_some();
    let instead = match (name, kind) {
        ("stdout", Call::Command) => "; both streams are captured, and the command can redirect them",
        ("stderr", Call::Command) => "; pass stderr=\"merge\" to the session, or append 2>&1 to the command",
        ("leftovers", Call::Command) => "; background jobs of a command run on in the session",
        ("yield_after", Call::Command) => "; run() accepts it",
        ("shell" | "actions" | "arg0", Call::Command) => "; the session's shell runs the command",
        ("shell" | "executable", Call::Session) => "; the first argument is the shell",
        ("stdin" | "stdout", Call::Session) => "; each command has streams of its own",
        (_, Call::Command) if accepts(Call::Session) => "; it is an option of the session",
        (_, Call::Command) if accepts(Call::Start) => "; start() accepts it",
        (_, Call::Session) if accepts(Call::Command) => "; run() and start() of the session accept it",
        ("capture_output", Call::Run | Call::Start | Call::Command) => "; both streams are captured by default",
        ("text" | "encoding" | "errors" | "universal_newlines", Call::Run | Call::Start | Call::Command) => {
            "; Result.text is decoded as UTF-8"
        }
        ("check", Call::Run | Call::Start | Call::Command) => "; call check() of the Result",
        (_, Call::Session | Call::Command) => "",
        ("shell", _) => "; for a shell command line pass spawnfd.sh(command) as argv",
        ("preexec_fn" | "umask" | "user" | "group" | "extra_groups" | "process_group", _) => "; see spawnfd.actions",
        ("pass_fds", _) => "; use actions=[spawnfd.actions.Descriptor(fd)]",
        ("close_fds", _) => "; the program gets only the standard streams and the descriptors that actions pass",
        ("start_new_session", Call::Spawn) => "; use actions=[spawnfd.actions.Setsid()]",
        ("start_new_session", _) => "; a supervised run always starts a new session",
        ("executable", _) => "; argv[0] is the program to start, and arg0= sets the argv[0] that it sees",
        ("timeout", Call::Spawn) => "; pass it to Child.wait(), or use run()",
        (_, Call::Spawn) if accepts(Call::Run) => "; run() and start() accept it",
        (_, Call::Spawn | Call::Run) if accepts(Call::Start) => "; start() accepts it",
        _ => "",
    };
    PyTypeError::new_err(format!("unexpected keyword argument {name:?}{instead}"))
}

/// Converts a tuple of two integers.
fn pair<'py, T>(value: &Bound<'py, PyAny>, name: &str, expected: &str) -> PyResult<(T, T)>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let pair = value.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
    let Some(pair) = pair else { return Err(wrong_type(&name, expected, value)) };
    let item = |index| integer(&pair.get_item(index)?, &format_args!("{name}[{index}]"));
    Ok((item(0)?, item(1)?))
}
