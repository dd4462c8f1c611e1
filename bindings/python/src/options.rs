// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keyword arguments of `spawn`, `run` and `start`, as the Python part passes them. An argument that is None, or
//! the default keyword of a stream, counts as absent. For `marker`, None is a value.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use spawnfd::Run;
use spawnfd::job::{Leftovers, Spill, TerminalSize};
use spawnfd::limits::{Enforce, Limits};
use spawnfd::tree::TreeControl;

use crate::arguments::{boolean, bytes, integer, number, os_string, seconds, text, wrong_type, wrong_value};
use crate::classes::PythonClass;
use crate::limiter::Limiter;
use crate::stdio::{self, CallKind};

/// The size in bytes of the input buffer of a job with stdin="stream".
const WRITABLE: usize = 64 << 10;

/// The default `window`: how many bytes of the latest output a job keeps for read().
const WINDOW: usize = 1 << 20;

macro_rules! options {
    ($($kinds:expr => $($name:ident),+;)+) => {
        /// The arguments that were passed.
        pub struct Options<'py> {
            $($(pub $name: Option<Bound<'py, PyAny>>,)+)+
        }

        impl<'py> Options<'py> {
            fn of_locals(locals: &Bound<'py, PyDict>) -> PyResult<Options<'py>> {
                let given = |name| Ok::<_, PyErr>(locals.get_item(name)?.filter(|value| !value.is_none()));
                Ok(Options { $($($name: given(intern!(locals.py(), stringify!($name)))?,)+)+ })
            }
        }

        /// Whether this kind of call accepts the option.
        fn accepts(kind: CallKind, name: &str) -> bool {
            use CallKind::{Command, Run, Session, Spawn, Start};
            match name {
                $($(stringify!($name) => $kinds.contains(&kind),)+)+
                _ => false,
            }
        }
    };
}

options! {
    [Spawn, Run, Start, Session, Command] => cwd, env;
    [Spawn, Run, Start, Session] => stderr, sandbox, warm;
    [Spawn, Run, Start, Command] => stdin;
    [Spawn, Run, Start] => stdout, actions, arg0;
    [Run, Start, Session, Command] => grace, limiter;
    [Run, Start, Session] => tree, limits;
    [Run, Start, Command] => timeout, idle_timeout, input, keep, marker, combined, spill, output_limit, drain;
    [Run, Start] => leftovers;
    [Run, Start, Session] => terminal;
    [Start, Command] => window;
    [Start] => hold;
    [Session] => login, restart, startup_timeout, echo, queue;
}

impl<'py> Options<'py> {
    /// Takes the options from the local variables of the Python function that was called. Its variable `unknown` is a
    /// dict of the keyword arguments that it does not have.
    pub fn new(locals: &Bound<'py, PyDict>, kind: CallKind) -> PyResult<Options<'py>> {
        if let Some(unknown) = locals.get_item(intern!(locals.py(), "unknown"))?
            && let Some((name, _)) = unknown.cast::<PyDict>()?.iter().next()
        {
            return Err(unexpected_option(name.cast::<PyString>()?.to_str()?, kind));
        }
        let mut options = Options::of_locals(locals)?;
        options.marker = locals.get_item(intern!(locals.py(), "marker"))?;
        for (number, stream) in [&mut options.stdin, &mut options.stdout, &mut options.stderr].into_iter().enumerate() {
            if stream.as_ref().is_some_and(|stream| stdio::is_default(number, kind, stream)) {
                *stream = None;
            }
        }
        Ok(options)
    }

    /// Takes the options of a session's command from the local variables of the Python function that was called.
    pub fn of_command(locals: &Bound<'py, PyDict>) -> PyResult<Options<'py>> {
        let mut options = Options::new(locals, CallKind::Command)?;
        if let Some(stdin) = &options.stdin
            && !stdio::is_command_stream(stdin)?
        {
            options.stdin = None;
        }
        Ok(options)
    }

    /// Returns the settings of a job: those of a run, an output buffer for read(), and an input buffer for write().
    pub fn job(&self) -> PyResult<Run> {
        let window = self.window.as_ref().map_or(Ok(WINDOW), |window| integer(window, &"window"))?;
        let run = self.run()?.window(window);
        let values = run.values();
        let streams =
            self.stdin.as_ref().is_some_and(stdio::is_stream) || values.terminal.is_some() && !values.has_input;
        Ok(if streams { run.writable(WRITABLE) } else { run })
    }

    /// Returns the settings of a run.
    pub fn run(&self) -> PyResult<Run> {
        let mut run = Run::new()
            .timeout(seconds(self.timeout.as_ref(), "timeout")?)
            .idle_timeout(seconds(self.idle_timeout.as_ref(), "idle_timeout")?);
        if let Some(grace) = &self.grace {
            run = run.grace(seconds(Some(grace), "grace")?.unwrap_or(std::time::Duration::MAX));
        }
        if let Some(drain) = &self.drain {
            run = run.drain(seconds(Some(drain), "drain")?.unwrap_or(std::time::Duration::MAX));
        }
        if let Some(keep) = &self.keep {
            run = if keep.cast::<PyString>().is_ok() {
                keyword(keep, "keep", &[("all", ())])?;
                run.keep_all()
            } else {
                let (head, tail) = pair(keep, "keep", "a tuple of two int (bytes of head and of tail), or \"all\"")?;
                run.keep(head, tail)
            };
        }
        if let Some(marker) = &self.marker {
            let marker = if marker.is_none() { None } else { Some(text(marker, "marker", "str or None")?) };
            run = run.marker(marker.as_deref());
        }
        if let Some(combined) = &self.combined {
            run = run.combined(boolean(combined, "combined")?);
        }
        run = run.spill(self.spill.as_ref().map(spill).transpose()?);
        let output_limit =
            self.output_limit.as_ref().map(|limit| integer::<u64>(limit, &"output_limit")).transpose()?;
        run = run.output_limit(output_limit);
        if let Some(tree) = &self.tree {
            let words = [
                ("group", TreeControl::Group),
                ("guard", TreeControl::Guard),
                ("cgroup", TreeControl::Cgroup),
                ("pidns", TreeControl::Pidns),
                ("subreaper", TreeControl::Subreaper),
                ("auto", TreeControl::Auto),
            ];
            run = run.tree(keyword(tree, "tree", &words)?);
        }
        if let Some(leftovers) = &self.leftovers {
            let words: Vec<_> = Leftovers::ALL.iter().map(|&leftovers| (leftovers.name(), leftovers)).collect();
            run = run.leftovers(keyword(leftovers, "leftovers", &words)?);
        }
        if let Some(given) = &self.limits {
            run = run.limits(limits(given)?);
        }
        if let Some(limiter) = &self.limiter {
            let Ok(limiter) = limiter.cast::<Limiter>() else {
                return Err(wrong_type(&"limiter", "spawnfd.Limiter or None", limiter));
            };
            run = run.limiter(&limiter.get().0);
        }
        if let Some(input) = &self.input {
            if self.stdin.is_some() {
                return Err(wrong_value(&"input", "cannot be combined with stdin"));
            }
            run = run.input(bytes(input, "input")?);
        }
        if let Some(terminal) = &self.terminal {
            // The first item of os.terminal_size is the number of columns.
            static TERMINAL_SIZE: PythonClass = PythonClass::of("os", "terminal_size");
            let (mut rows, mut columns) = pair(terminal, "terminal", "a tuple of two int: rows and columns")?;
            if terminal.is_instance(&TERMINAL_SIZE.get(terminal.py())?)? {
                (rows, columns) = (columns, rows);
            }
            run = run.terminal(TerminalSize::new(rows, columns));
            let others = [(&self.stdin, "stdin"), (&self.stdout, "stdout"), (&self.stderr, "stderr")];
            if let Some((_, name)) =
                others.iter().find(|(given, _)| given.as_ref().is_some_and(|given| !stdio::is_stream(given)))
            {
                return Err(wrong_value(
                    &"terminal",
                    format_args!("cannot be combined with {name}: the terminal is all three streams"),
                ));
            }
        }
        Ok(run)
    }
}

/// Returns the error for an unknown option. For an option of subprocess the message names the equivalent.
fn unexpected_option(name: &str, kind: CallKind) -> PyErr {
    let instead = match (name, kind) {
        ("stdout", CallKind::Command) => "; both streams are captured, and the command can redirect them",
        ("stderr", CallKind::Command) => "; pass stderr=\"merge\" to the session, or append 2>&1 to the command",
        ("leftovers", CallKind::Command) => "; background jobs of a command run on in the session",
        ("yield_after", CallKind::Command) => "; run() accepts it",
        ("shell" | "actions" | "arg0", CallKind::Command) => "; the session's shell runs the command",
        ("shell" | "executable", CallKind::Session) => "; the first argument is the shell",
        ("stdin" | "stdout", CallKind::Session) => "; each command has streams of its own",
        (_, CallKind::Command) if accepts(CallKind::Session, name) => "; it is an option of the session",
        (_, CallKind::Command) if accepts(CallKind::Start, name) => "; start() accepts it",
        (_, CallKind::Session) if accepts(CallKind::Command, name) => "; run() and start() of the session accept it",
        ("capture_output", CallKind::Run | CallKind::Start | CallKind::Command) => {
            "; both streams are captured by default"
        }
        (
            "text" | "encoding" | "errors" | "universal_newlines",
            CallKind::Run | CallKind::Start | CallKind::Command,
        ) => "; Result.text is decoded as UTF-8",
        ("check", CallKind::Run | CallKind::Start | CallKind::Command) => "; call check() of the Result",
        (_, CallKind::Session | CallKind::Command) => "",
        ("shell", _) => "; for a shell command line pass spawnfd.sh(command) as argv",
        ("preexec_fn" | "umask" | "user" | "group" | "extra_groups" | "process_group", _) => "; see spawnfd.actions",
        ("pass_fds", _) => "; use actions=[spawnfd.actions.Descriptor(fd)]",
        ("close_fds", _) => "; the program gets only the standard streams and the descriptors that actions pass",
        ("start_new_session", CallKind::Spawn) => "; use actions=[spawnfd.actions.Setsid()]",
        ("start_new_session", _) => "; a supervised run always starts a new session",
        ("executable", _) => "; argv[0] is the program to start, and arg0= sets the argv[0] that it sees",
        ("timeout", CallKind::Spawn) => "; pass it to Child.wait(), or use run()",
        (_, CallKind::Spawn) if accepts(CallKind::Run, name) => "; run() and start() accept it",
        (_, CallKind::Spawn | CallKind::Run) if accepts(CallKind::Start, name) => "; start() accepts it",
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

/// Converts a keyword, such as "guard", to its value.
pub fn keyword<T: Copy>(value: &Bound<'_, PyAny>, name: &str, words: &[(&str, T)]) -> PyResult<T> {
    let all = || words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    let Ok(given) = value.cast::<PyString>() else {
        return Err(wrong_type(&name, &format!("one of {}", all()), value));
    };
    let given = given.to_string_lossy();
    let found = words.iter().find(|(word, _)| *word == given);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| wrong_value(&name, format_args!("expected one of {}, got {given:?}", all())))
}

fn limits(value: &Bound<'_, PyAny>) -> PyResult<Limits> {
    static LIMITS: PythonClass = PythonClass::of("spawnfd._types", "Limits");
    if !value.is_instance(&LIMITS.get(value.py())?)? {
        return Err(wrong_type(&"limits", "spawnfd.Limits or None", value));
    }
    let given = |name: &str| value.getattr(name).map(|value| Some(value).filter(|value| !value.is_none()));
    let at_least = |name: &str, least: &str, valid: bool| {
        let wrong = || {
            let value = value.getattr(name)?;
            Ok(PyValueError::new_err(format!("limits.{name} must be {least}, got {value}")))
        };
        if valid { Ok(()) } else { Err(wrong().unwrap_or_else(|error: PyErr| error)) }
    };
    let memory = given("memory")?.map(|bytes| integer::<u64>(&bytes, &"limits.memory")).transpose()?;
    at_least("memory", "> 0", memory != Some(0))?;
    let pids = given("pids")?.map(|number| integer::<u64>(&number, &"limits.pids")).transpose()?;
    at_least("pids", "> 0", pids != Some(0))?;
    let cpu_time = seconds(given("cpu_time")?.as_ref(), "limits.cpu_time")?;
    at_least("cpu_time", "> 0", cpu_time != Some(std::time::Duration::ZERO))?;
    let mut limits = Limits::new().memory(memory).pids(pids).cpu_time(cpu_time);
    if let Some(cpus) = given("cpus")? {
        let number = number(&cpus, &"limits.cpus", "float or None")?;
        at_least("cpus", ">= 0.01", number >= 0.01)?;
        if number > 1e6 {
            return Err(wrong_value(&"limits.cpus", format_args!("{number} is out of range")));
        }
        limits = limits.cpus(number);
    }
    let words = [
        ("auto", Enforce::Auto),
        ("cgroup", Enforce::Cgroup),
        ("watch", Enforce::Watch),
        ("best-effort", Enforce::BestEffort),
    ];
    Ok(limits.enforce(keyword(&value.getattr("enforce")?, "limits.enforce", &words)?))
}

fn spill(value: &Bound<'_, PyAny>) -> PyResult<Spill> {
    static SPILL: PythonClass = PythonClass::of("spawnfd._types", "Spill");
    if !value.is_instance(&SPILL.get(value.py())?)? {
        return Err(wrong_type(&"spill", "spawnfd.Spill or None", value));
    }
    let mut spill = Spill::new(integer(&value.getattr("max_bytes")?, &"spill.max_bytes")?);
    let dir = value.getattr("dir")?;
    if !dir.is_none() {
        spill = spill.dir(os_string(&dir, &"spill.dir")?);
    }
    Ok(if value.getattr("persist")?.is_truthy()? { spill.persist() } else { spill })
}
