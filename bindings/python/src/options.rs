// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keyword arguments of `spawn`, `run`, `start` and sessions: the options of the core's table, as Python values. An
//! argument that is None, or the default keyword of a stream, counts as absent, except if None is a value of the option.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use spawnfd::job::Spill;
use spawnfd::limits::Limits;
use spawnfd::options::{self, Call, Kind, OptionSpec, Value};
use spawnfd::session::SessionOptions;
use spawnfd::{Error, Run};

use crate::arguments::{boolean, bytes, integer, number, os_string, seconds, text, wrong_type, wrong_value};
use crate::classes::PythonClass;
use crate::limiter::Limiter;
use crate::stdio;

/// The size in bytes of the input buffer of a job with stdin="stream".
const WRITABLE: usize = 64 << 10;

/// The options of a call.
#[derive(Default)]
pub struct Options<'py> {
    /// The options of the run, or of the session's command.
    pub run: Run,
    /// The options of a session.
    pub session: SessionOptions,
    pub cwd: Option<Bound<'py, PyAny>>,
    pub env: Option<Bound<'py, PyAny>>,
    pub stdin: Option<Bound<'py, PyAny>>,
    pub stdout: Option<Bound<'py, PyAny>>,
    pub stderr: Option<Bound<'py, PyAny>>,
    pub actions: Option<Bound<'py, PyAny>>,
    pub arg0: Option<Bound<'py, PyAny>>,
    pub sandbox: Option<Bound<'py, PyAny>>,
    pub warm: Option<Bound<'py, PyAny>>,
    pub hold: bool,
    /// None: the session decides for each command.
    pub queue: Option<bool>,
}

impl<'py> Options<'py> {
    /// Takes the options from the keyword arguments of a call.
    pub fn new(given: &Bound<'py, PyDict>, call: Call) -> PyResult<Options<'py>> {
        let mut options = Options::default();
        if matches!(call, Call::Start | Call::Command)
            && let Some(window) = options::find(call, "window")
        {
            options.set("window", (window.default)(), call)?;
        }
        for (name, value) in given.iter() {
            let name = name.cast::<PyString>()?.to_str()?;
            let Some(option) = options::find(call, name) else { return Err(unexpected_option(name, call)) };
            if !value.is_none() {
                options.add(option, value, call)?;
            } else if option.optional && !matches!(option.kind, Kind::Object | Kind::Stream(_) | Kind::Path) {
                options.set(name, Value::None, call)?;
            }
        }
        options.check_combinations(call)?;
        Ok(options)
    }

    fn add(&mut self, option: &OptionSpec, value: Bound<'py, PyAny>, call: Call) -> PyResult<()> {
        let name = option.name;
        let streams = [("stdin", &mut self.stdin), ("stdout", &mut self.stdout), ("stderr", &mut self.stderr)];
        for (number, (stream, field)) in streams.into_iter().enumerate() {
            if name == stream {
                if call == Call::Session && stdio::is_session_merge(&value)? {
                    self.session = self.session.clone().merge(true);
                } else if call == Call::Command && stdio::is_command_stream(&value)?
                    || !matches!(call, Call::Session | Call::Command) && !stdio::is_default(number, call, &value)
                {
                    *field = Some(value);
                }
                return Ok(());
            }
        }
        match name {
            "cwd" => self.cwd = Some(value),
            "env" => self.env = Some(value),
            "actions" => self.actions = Some(value),
            "arg0" => self.arg0 = Some(value),
            "sandbox" => self.sandbox = Some(value),
            "warm" => self.warm = Some(value),
            "hold" => self.hold = boolean(&value, name)?,
            "queue" => self.queue = Some(boolean(&value, name)?),
            "limiter" => {
                let Ok(limiter) = value.cast::<Limiter>() else {
                    return Err(wrong_type(&name, "spawnfd.Limiter or None", &value));
                };
                let limiter = &limiter.get().0;
                match call {
                    Call::Session => self.session = self.session.clone().limiter(limiter),
                    _ => self.run = self.run.clone().limiter(limiter),
                }
            }
            "limits" | "spill" => self.add_fields(name, &value, call)?,
            _ => {
                let value = native(option, name, &value)?;
                self.set(name, value, call)?;
            }
        }
        Ok(())
    }

    /// Sets the options whose values are the fields of a Limits or a Spill.
    fn add_fields(&mut self, name: &str, value: &Bound<'py, PyAny>, call: Call) -> PyResult<()> {
        static LIMITS: PythonClass = PythonClass::of("spawnfd._types", "Limits");
        static SPILL: PythonClass = PythonClass::of("spawnfd._types", "Spill");
        let (class, expected) = match name {
            "limits" => (&LIMITS, "spawnfd.Limits or None"),
            _ => (&SPILL, "spawnfd.Spill or None"),
        };
        if !value.is_instance(&class.get(value.py())?)? {
            return Err(wrong_type(&name, expected, value));
        }
        match name {
            "spill" => self.run = std::mem::take(&mut self.run).spill(Spill::default()),
            _ if call != Call::Session => self.run = std::mem::take(&mut self.run).limits(Limits::new()),
            _ => {}
        }
        for option in options::of(call) {
            let Some(("limits" | "spill", field)) = option.name.split_once('.').filter(|(of, _)| *of == name) else {
                continue;
            };
            let value = value.getattr(field)?;
            if !value.is_none() || !option.optional {
                self.set(option.name, native(option, option.name, &value)?, call)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Value, call: Call) -> PyResult<()> {
        let set = if call == Call::Session { self.session.set(name, value) } else { self.run.set(name, value) };
        set.map_err(|error: Error| PyValueError::new_err(error.message().into_owned()))
    }

    fn check_combinations(&mut self, call: Call) -> PyResult<()> {
        let has_input = !self.run.get("input").is_none();
        if has_input && self.stdin.is_some() {
            return Err(wrong_value(&"input", "cannot be combined with stdin"));
        }
        let has_terminal = !self.run.get("terminal").is_none();
        let others = [(&self.stdin, "stdin"), (&self.stdout, "stdout"), (&self.stderr, "stderr")];
        let is_other = |given: &Option<Bound<'_, PyAny>>| given.as_ref().is_some_and(|given| !stdio::is_stream(given));
        if has_terminal && let Some((_, name)) = others.iter().find(|(given, _)| is_other(given)) {
            return Err(wrong_value(
                &"terminal",
                format_args!("cannot be combined with {name}: the terminal is all three streams"),
            ));
        }
        let writes = self.stdin.as_ref().is_some_and(stdio::is_stream) || has_terminal && !has_input;
        if writes && matches!(call, Call::Start | Call::Command) {
            self.run = std::mem::take(&mut self.run).writable(WRITABLE);
        }
        Ok(())
    }
}

/// Converts a Python value to one that the core's table accepts.
fn native(option: &OptionSpec, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    Ok(match option.kind {
        Kind::Flag => Value::Bool(boolean(value, name)?),
        Kind::Count | Kind::Bytes => Value::Integer(integer(value, &name)?),
        Kind::Number => Value::Number(number(value, &name, "float or None")?),
        // More seconds than a Duration can have mean no end.
        Kind::Duration => Value::Duration(seconds(Some(value), name)?.unwrap_or(std::time::Duration::MAX)),
        Kind::Text => Value::Text(text(value, name, "str or None")?.into()),
        Kind::Path => Value::Text(os_string(value, &name)?),
        Kind::Data => Value::Bytes(bytes(value, name)?.into()),
        Kind::HeadTail => match value.cast::<PyString>() {
            Ok(word) => Value::Text((*word.to_string_lossy()).into()),
            Err(_) => {
                let (head, tail) = pair(value, name, "a tuple of two int (bytes of head and of tail), or \"all\"")?;
                Value::Pair(head, tail)
            }
        },
        Kind::TerminalSize => {
            // The first item of os.terminal_size is the number of columns.
            static TERMINAL_SIZE: PythonClass = PythonClass::of("os", "terminal_size");
            let (first, second) = pair(value, name, "a tuple of two int: rows and columns")?;
            let is_reversed = value.is_instance(&TERMINAL_SIZE.get(value.py())?)?;
            if is_reversed { Value::Pair(second, first) } else { Value::Pair(first, second) }
        }
        Kind::Word(words) => match value.cast::<PyString>() {
            Ok(word) => Value::Text((*word.to_string_lossy()).into()),
            Err(_) => {
                let all: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
                return Err(wrong_type(&name, &format!("one of {}", all.join(", ")), value));
            }
        },
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
