// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust half of the Python classes `Session` and `SyncSession`: a shell that keeps its state. No function in this file
//! waits for a command.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping};
use spawnfd::internal::{CallOptions, PerProcess, SavedState, SideState};
use spawnfd::job::TerminalSize;
use spawnfd::options::{Call, Value};

use crate::arguments::{integer, os_string, os_string_or, os_strings, variables, wrong_type, wrong_value};
use crate::env::Env;
use crate::errors::ErrorContext;
use crate::job::Job;
use crate::limiter::{Limiter, PermitRequest};
use crate::options::Options;
use crate::queue::{Queue, Wakeup};
use crate::reported::ReportedArguments;
use crate::request::{AuditEvent, Request};
use crate::template::Template;

/// A shell that keeps its state from command to command. Dropping it ends the shell.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Session {
    core: Arc<spawnfd::Session>,
    context: ErrorContext,
    /// The audit event for each start of a shell.
    event: AuditEvent,
    settings: SessionSettings,
    /// The start of a shell that has not read its startup files yet.
    start: PerProcess<Option<Arc<PendingShell>>>,
    closed: AtomicBool,
    /// Fires when the shell has ended after begin_close().
    #[pyo3(get)]
    ended: Wakeup,
}

/// The options of a session that its Python half or its results need.
#[derive(Clone, Copy, Debug)]
pub struct SessionSettings {
    /// The time that the shell has to exit after the session is closed.
    pub grace: Duration,
    pub has_terminal: bool,
    /// Whether the standard error of each command is part of its standard output.
    pub merge: bool,
    /// Whether commands wait for each other. None: the caller decides for each command.
    pub queue: Option<bool>,
}

impl SessionSettings {
    /// Builds the request for the shell of a session.
    pub fn new(
        program: &Bound<'_, PyAny>,
        args: &Bound<'_, PyAny>,
        options: Options<'_>,
    ) -> PyResult<(Request, SessionSettings)> {
        let (settings, queue) = (&options.core.session, options.queue);
        let has_terminal = !settings.get("terminal").is_none();
        let grace = settings.get("grace").as_duration().unwrap_or_default();
        let merge = matches!(settings.get("merge"), Value::Bool(true)) || has_terminal;
        if let Some(cwd) = &options.cwd {
            os_string_or(cwd, &"cwd", "a path (str, bytes or os.PathLike)")?;
        }
        let request = if program.is_instance_of::<Template>() {
            Request::new(Some(program), args, options)?
        } else {
            let expected = "str, bytes, os.PathLike or spawnfd.Template";
            let mut argv = vec![os_string_or(program, &"program", expected)?];
            argv.append(&mut os_strings(args, "args")?);
            Request::new(None, PyList::new(program.py(), argv)?.as_any(), options)?
        };
        Ok((request, SessionSettings { grace, has_terminal, merge, queue }))
    }

    /// Refuses a new size of a terminal that the session does not have.
    pub fn check_terminal(&self) -> PyResult<()> {
        match self.has_terminal {
            true => Ok(()),
            false => Err(PyValueError::new_err("resize(): the session was not created with a terminal")),
        }
    }
}

/// An error of the shell that prints a session's state, and the names that the error refers to.
pub type StateError = (spawnfd::Error, ErrorContext);

#[derive(Debug)]
struct PendingShell {
    job: spawnfd::Job,
    done: Wakeup,
}

/// The start of a shell.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct ShellStart(Arc<PendingShell>);

#[pymethods]
impl ShellStart {
    /// Fires when the shell is ready, or has failed to start.
    #[getter]
    fn done(&self) -> Wakeup {
        self.0.done.clone()
    }

    /// Returns True once the start has succeeded or failed, None before.
    fn is_over(&self) -> Option<bool> {
        (!matches!(self.0.job.try_wait(), Ok(None))).then_some(true)
    }
}

/// The text of a command, with its own directory and variables, and its options.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct CommandText {
    pub core: spawnfd::session::CommandText,
    pub text: OsString,
    pub options: Arc<CallOptions>,
}

#[pymethods]
impl CommandText {
    /// `watched`: the task that starts the command counts as a watcher (a reader of events()).
    #[new]
    fn new(command: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>, watched: bool) -> PyResult<CommandText> {
        let text = os_string(command, &"command")?;
        let options = Options::new(options, Call::Command)?;
        let mut core = options.core.apply_to_text(spawnfd::session::CommandText::new(&text));
        if let Some(env) = &options.env {
            let expected = "a mapping of str: the variables that the command has besides the session's";
            let Ok(mapping) = env.cast::<PyMapping>() else { return Err(wrong_type(&"env", expected, env)) };
            for (name, value) in variables(mapping, "env")? {
                let name = name.into_string().map_err(|name| {
                    wrong_value(&"env", format_args!("{name:?} is not a name of a variable in a shell"))
                })?;
                core = core.env(name, value);
            }
        }
        core.validate().map_err(|error| PyValueError::new_err(error.message().to_string()))?;
        let mut options = options.core;
        options.hold = watched;
        Ok(CommandText { core, text, options: Arc::new(options) })
    }
}

#[pymethods]
impl Session {
    /// Creates a session whose shell has not started yet. `program` is a Template, or names the program.
    #[new]
    fn new(
        py: Python<'_>,
        program: &Bound<'_, PyAny>,
        args: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Session> {
        let (request, settings) = SessionSettings::new(program, args, Options::new(options, Call::Session)?)?;
        let Request { command, options, context, event, .. } = request;
        let core = py.detach(|| spawnfd::Session::new(command, options.session));
        Ok(Session {
            core: Arc::new(core.map_err(|error| context.exception(py, &error))?),
            context,
            event,
            settings,
            start: PerProcess::new(None),
            closed: false.into(),
            ended: Wakeup::default(),
        })
    }

    /// Whether commands wait for each other. None: the caller decides for each command.
    #[getter]
    fn queue(&self) -> Option<bool> {
        self.settings.queue
    }

    /// Has one permit, for the command whose turn it is.
    #[getter]
    fn turns(&self) -> Limiter {
        Limiter(self.core.turns().clone())
    }

    /// Whether the next command has to start a shell, which needs a permit of the session's limiter.
    fn needs_shell(&self, py: Python<'_>) -> bool {
        py.detach(|| self.core.needs_shell())
    }

    /// Starts a shell if the session needs one. Returns the start that the caller waits for, or None if a shell runs.
    /// `text` is the command that needs the shell, if there is one. `permit` holds the permit of the session's limiter.
    fn begin_shell(
        &self,
        py: Python<'_>,
        text: Option<&CommandText>,
        permit: Option<&Bound<'_, PermitRequest>>,
    ) -> PyResult<Option<ShellStart>> {
        let permit = permit.and_then(|request| request.get().take());
        if self.closed() {
            return Err(PyValueError::new_err("the session is closed"));
        }
        if self.start.lock().is_none() && self.needs_shell(py) {
            self.event.raise(py)?;
        }
        let begin = || {
            let mut start = self.start.lock();
            if start.is_none() {
                if let Some(text) = text {
                    self.core.start_in_directory_of(&text.core);
                }
                *start = self.core.begin_shell(permit)?.map(|job| {
                    let done = Wakeup::default();
                    job.when_done(done.firing());
                    Arc::new(PendingShell { job, done })
                });
            }
            Ok(start.clone())
        };
        py.detach(begin).map(|start| start.map(ShellStart)).map_err(|error| self.context.exception(py, &error))
    }

    /// Completes a start that is over. Raises the error of a failed start, for the first caller.
    fn finish_shell(&self, py: Python<'_>, start: &ShellStart) -> PyResult<()> {
        let finish = || {
            let taken = self.start.lock().take_if(|pending| Arc::ptr_eq(pending, &start.0));
            taken.map_or(Ok(()), |pending| self.core.finish_shell(pending.job.wait()))
        };
        py.detach(finish).map_err(|error| self.context.exception(py, &error))
    }

    /// Starts a command in the shell, and appends its job to `jobs`. `turn` holds the permit of `turns`, if the command
    /// has waited for it. [`Job::start`] explains the other arguments.
    fn start(
        &self,
        py: Python<'_>,
        command: &CommandText,
        turn: &PermitRequest,
        permit: &PermitRequest,
        queue: Option<&Bound<'_, Queue>>,
        jobs: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let permits = [turn, permit].into_iter().filter_map(PermitRequest::take).collect();
        let CommandText { core, text, options } = command;
        let queue = queue.map(Bound::get);
        let start = || self.core.start_events_with(core, &options.run, permits, options.events());
        let started = py.detach(|| Queue::enter(queue, start)).map_err(|error| self.context.exception(py, &error))?;
        let reported = ReportedArguments { argv: vec![text.clone()], stderr_merged: self.settings.merge, place: None };
        let mut job = Job::of(started, options, reported, self.context.of_shell());
        (job.is_command, job.has_terminal) = (true, self.settings.has_terminal);
        jobs.append(job)
    }

    fn interrupt(&self, py: Python<'_>) {
        py.detach(|| self.core.interrupt());
    }

    fn resize(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, columns: &Bound<'_, PyAny>) -> PyResult<()> {
        let (rows, columns) = (integer(rows, &"rows")?, integer(columns, &"columns")?);
        self.settings.check_terminal()?;
        let resized = py.detach(|| self.core.resize(TerminalSize::new(rows, columns)));
        resized.map_err(|error| self.context.exception(py, &error))
    }

    /// Returns the pid and the name of each process of the session except the shell.
    fn processes(&self, py: Python<'_>) -> Vec<(u32, String)> {
        let processes = py.detach(|| self.core.processes());
        processes.into_iter().map(|process| (process.pid, process.name)).collect()
    }

    #[getter]
    fn pid(&self, py: Python<'_>) -> Option<u32> {
        py.detach(|| self.core.id())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Seconds that the shell has to exit after begin_close().
    #[getter]
    fn grace(&self) -> f64 {
        self.settings.grace.as_secs_f64()
    }

    /// Closes the session: the shell reads the end of its input.
    fn begin_close(&self, py: Python<'_>) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            py.detach(|| self.core.begin_close_with(self.ended.firing()));
        }
    }

    /// Returns True once the session has no shell, None before.
    fn has_ended(&self, py: Python<'_>) -> Option<bool> {
        py.detach(|| self.core.has_ended()).then_some(true)
    }

    /// Ends the shell and its processes: SIGTERM, then SIGKILL after `grace` seconds.
    fn stop(&self, py: Python<'_>, grace: f64) {
        let grace = Duration::try_from_secs_f64(grace).unwrap_or(Duration::MAX);
        py.detach(|| self.core.stop_shell(grace));
    }
}

impl Session {
    /// Returns a lazy future that reads the state for a program beside the shell. If another shell prints the state, this
    /// call raises the audit event for the start of that shell.
    pub fn read_state(
        &self,
        py: Python<'_>,
    ) -> PyResult<impl Future<Output = Result<SideState, StateError>> + Send + use<>> {
        let context = self.context.of_shell();
        let saved = py.detach(|| self.core.saved_state()).map_err(|error| context.exception(py, &error))?;
        if let SavedState::Saved { argv, .. } = &saved {
            AuditEvent::new(py, &argv[0], argv, None::<Env>, Some(Env::of(spawnfd::Env::empty())))?.raise(py)?;
        }
        let core = self.core.clone();
        Ok(async move { core.read_state_async(saved).await.map_err(|error| (error, context)) })
    }
}
