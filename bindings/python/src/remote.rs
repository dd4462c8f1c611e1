// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust half of the Python class `Remote`: programs on another machine. No function in this file waits for the server.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use spawnfd::Command;
use spawnfd::internal::CallOptions;
use spawnfd::job::TerminalSize;
use spawnfd::limits::Limiter as CoreLimiter;
use spawnfd::options::Call;
use spawnfd_remote::far::ServeOptions;
use spawnfd_remote::near::{
    Asking, Opening, RemoteOptions, RemoteSession as CoreSession, ServerProgram, Transfer as TransferOptions,
    TransferStop, TransportKind, Waiting,
};

use crate::arguments::{integer, seconds, wrong_value};
use crate::connection::Connection;
use crate::errors::ErrorContext;
use crate::job::Job;
use crate::limiter::{Limiter, PermitRequest};
use crate::options::Options;
use crate::queue::{Queue, Wakeup};
use crate::reported::ReportedArguments;
use crate::request::Request;
use crate::session::{CommandText, SessionSettings};

/// A connection to `spawnfd serve`. Dropping the last reference ends the transport, and with it all programs.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Remote {
    pub connection: Arc<Connection>,
    /// The transport starts a server that must be there.
    needs_server: bool,
    is_closed: AtomicBool,
    /// Fires when the server has answered, or cannot answer any more.
    #[pyo3(get)]
    answered: Wakeup,
    /// Fires when the transport has ended.
    #[pyo3(get)]
    ended: Wakeup,
}

#[pymethods]
impl Remote {
    /// Starts the transport. `programs`: the server programs for the other side, whose shell runs the rest of the
    /// transport's arguments. `joins`: the transport joins these to a line, as ssh does.
    #[new]
    fn new(
        py: Python<'_>,
        argv: &Bound<'_, PyAny>,
        lease: Option<&Bound<'_, PyAny>>,
        programs: Option<Vec<PathBuf>>,
        joins: bool,
    ) -> PyResult<Remote> {
        let request = Request::new(None, argv, Options::new(&PyDict::new(py), Call::Start)?)?;
        request.audit(py)?;
        let Request { command, context, .. } = request;
        let mut options = RemoteOptions::default();
        options.lease = seconds(lease, "lease")?;
        if options.lease.is_some_and(|lease| lease.is_zero()) {
            return Err(wrong_value(&"lease", "must be > 0, or None"));
        }
        let needs_server = programs.is_none();
        let program = Path::new(&context.program).file_name().unwrap_or(OsStr::new(""));
        let transport = program.to_string_lossy().into_owned();
        let core = py.detach(|| match programs {
            None => spawnfd_remote::Remote::begin(&command, &options),
            Some(programs) => {
                let programs = programs.into_iter().map(ServerProgram::of).collect::<Result<Vec<_>, _>>()?;
                let kind = if joins { TransportKind::Line } else { TransportKind::Arguments };
                spawnfd_remote::Remote::begin_with_program(command, kind, &programs, &options)
            }
        });
        let core = core.map_err(|error| context.exception(py, &error))?;
        let (answered, ended) = (Wakeup::default(), Wakeup::default());
        core.answered().when_done(answered.firing());
        core.transport().when_done(ended.firing());
        let connection = Arc::new(Connection::new(core, transport, context));
        Ok(Remote { connection, needs_server, is_closed: false.into(), answered, ended })
    }

    /// Returns True once the server has answered, None before.
    fn has_answered(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        match self.connection.core().answered().try_wait() {
            Ok(answer) => Ok(answer.map(|_| true)),
            Err(error) if self.needs_server && lacks_program(self.connection.core().transport()) => {
                let message = format!("{}; program= copies the server there", error.message());
                let error = spawnfd::internal::error(error.stage(), error.errno(), error.call(), &message);
                Err(self.connection.exception(py, &error))
            }
            Err(error) => Err(self.connection.exception(py, &error)),
        }
    }

    /// Ends the connection, because the server has not answered in time, and raises the error.
    fn give_up(&self, py: Python<'_>, timeout: f64) -> PyErr {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
        let error = py.detach(|| self.connection.core().give_up(timeout));
        self.connection.exception(py, &error)
    }

    /// The server's program on its machine. None: it is not the command `spawnfd`, or has not answered.
    #[getter]
    fn program(&self) -> Option<PathBuf> {
        let hello = self.connection.core().hello()?;
        hello.files.first().map(|program| PathBuf::from(OsStr::from_bytes(program)))
    }

    #[getter(r#where)]
    fn place(&self) -> String {
        self.connection.place()
    }

    /// Begins to start a program. `permit` holds the limiter's permit. `watched`: the task that starts the job counts as a
    /// watcher (a reader of events()).
    fn start(
        &self,
        py: Python<'_>,
        argv: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
        permit: &PermitRequest,
        watched: bool,
    ) -> PyResult<RemoteStart> {
        let permits = permit.take().into_iter().collect();
        let request = Request::new(None, argv, Options::remote(options, Call::Start)?)?;
        request.audit(py)?;
        let Request { command, mut options, reported, context, .. } = request;
        options.hold |= watched;
        let core = self.connection.core();
        match py.detach(|| core.begin_start(&command, &options.run, permits, options.events())) {
            Ok(waiting) => {
                Ok(RemoteStart::of(waiting, options.into(), reported, context, self.connection.clone(), None))
            }
            Err(error) => Err(context.exception(py, &error)),
        }
    }

    /// Asks the server for a sign of life.
    fn ping(&self, py: Python<'_>) -> PyResult<Question> {
        let asked = py.detach(|| self.connection.core().begin_ping());
        asked
            .map(|asking| Question::of(asking, &self.connection))
            .map_err(|error| self.connection.exception(py, &error))
    }

    /// Begins to copy a file or a directory to the other side, or from it.
    fn transfer(
        &self,
        is_put: bool,
        source: PathBuf,
        target: PathBuf,
        max_bytes: Option<u64>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Transfer> {
        let mut options = TransferOptions::default();
        (options.max_bytes, options.timeout) = (max_bytes, seconds(timeout, "timeout")?);
        Transfer::start(self.connection.clone(), is_put, source, target, options)
    }

    /// Prepares a session whose shell has not started yet.
    fn session(
        &self,
        program: &Bound<'_, PyAny>,
        args: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<RemoteSession> {
        let (connection, py) = (self.connection.clone(), program.py());
        let (request, settings) = SessionSettings::new(program, args, Options::remote(options, Call::Session)?)?;
        // The check of the arguments is part of the start, which follows later.
        connection
            .core()
            .check_session(&request.command, &request.options.session)
            .map_err(|error| request.context.exception(py, &error))?;
        Ok(RemoteSession {
            connection,
            request,
            settings,
            turns: CoreLimiter::new(1),
            state: Mutex::default(),
            closed: false.into(),
            ended: Wakeup::default(),
        })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Ends the connection, and with it all programs.
    fn close(&self, py: Python<'_>) {
        self.is_closed.store(true, Ordering::Relaxed);
        py.detach(|| self.connection.core().close());
    }

    /// Returns True once the transport has ended, None before.
    fn has_ended(&self) -> Option<bool> {
        (!matches!(self.connection.core().transport().try_wait(), Ok(None))).then_some(true)
    }
}

/// Whether a transport has ended because the program on the other side does not exist. Shells and `docker exec` exit with
/// 127 then, and `kubectl exec` has the words of the container's runtime.
fn lacks_program(transport: &spawnfd::Job) -> bool {
    let Ok(Some(output)) = transport.try_wait() else { return false };
    let words = output.stderr_text();
    output.code() == Some(127) || (words.contains("executable file") && words.contains("not found"))
}

/// A job whose program the server has been told to start. Dropping it ends the program.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct RemoteStart {
    pending: Mutex<Option<PendingStart>>,
    /// Fires when the program has started, or not.
    #[pyo3(get)]
    done: Wakeup,
}

#[derive(Debug)]
struct PendingStart {
    waiting: Waiting,
    options: Arc<CallOptions>,
    reported: ReportedArguments,
    context: ErrorContext,
    connection: Arc<Connection>,
    /// For a command of a session: whether the session has a terminal.
    terminal: Option<bool>,
}

impl RemoteStart {
    fn of(
        waiting: Waiting,
        options: Arc<CallOptions>,
        reported: ReportedArguments,
        context: ErrorContext,
        connection: Arc<Connection>,
        terminal: Option<bool>,
    ) -> RemoteStart {
        let done = Wakeup::default();
        waiting.start().when_done(done.firing());
        let pending = PendingStart { waiting, options, reported, context, connection, terminal };
        RemoteStart { pending: Mutex::new(Some(pending)), done }
    }

    fn take(&self) -> Option<PendingStart> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl RemoteStart {
    /// Returns True once the program has started or failed to start, None before.
    fn is_over(&self) -> Option<bool> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = pending.as_ref().is_none_or(|pending| !matches!(pending.waiting.start().try_wait(), Ok(None)));
        is_over.then_some(true)
    }

    /// Appends the job of the started program to `started`. Raises the error of a failed start.
    fn finish(&self, py: Python<'_>, started: &Bound<'_, PyList>) -> PyResult<()> {
        let Some(pending) = self.take() else { return Ok(()) };
        let PendingStart { waiting, options, reported, context, connection, terminal } = pending;
        match py.detach(|| waiting.wait()) {
            Ok(job) => {
                let mut job = Job::of(job, &options, reported, context);
                job.connection = Some(connection);
                if let Some(has_terminal) = terminal {
                    (job.is_command, job.has_terminal) = (true, has_terminal);
                }
                started.append(job)
            }
            Err(error) => Err(context.exception(py, &error)),
        }
    }

    /// Ends the program, unless finish() has taken its job.
    fn cancel(&self, py: Python<'_>) {
        let pending = self.take();
        py.detach(|| drop(pending));
    }
}

/// A question to the server.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Question {
    asking: Asking,
    connection: Arc<Connection>,
    /// Fires when the answer is available.
    #[pyo3(get)]
    done: Wakeup,
}

impl Question {
    fn of(asking: Asking, connection: &Arc<Connection>) -> Question {
        let done = Wakeup::default();
        asking.job().when_done(done.firing());
        Question { asking, connection: connection.clone(), done }
    }
}

#[pymethods]
impl Question {
    /// Returns the processes that the answer lists, or None before the answer.
    fn answer(&self, py: Python<'_>) -> PyResult<Option<Vec<(u32, String)>>> {
        if matches!(self.asking.job().try_wait(), Ok(None)) {
            return Ok(None);
        }
        let processes = self.asking.wait().map_err(|error| self.connection.exception(py, &error))?;
        Ok(Some(processes.into_iter().map(|process| (process.pid, process.name)).collect()))
    }

    /// Seconds since the question.
    fn elapsed(&self) -> f64 {
        self.asking.elapsed().as_secs_f64()
    }
}

/// A transfer of files, on a thread of its own.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Transfer {
    connection: Arc<Connection>,
    stop: TransferStop,
    outcome: Arc<OnceLock<Result<(), spawnfd::Error>>>,
    /// Fires when the transfer has ended.
    #[pyo3(get)]
    done: Wakeup,
}

impl Transfer {
    fn start(
        connection: Arc<Connection>,
        is_put: bool,
        source: PathBuf,
        target: PathBuf,
        options: TransferOptions,
    ) -> PyResult<Transfer> {
        let (done, outcome) = (Wakeup::default(), Arc::<OnceLock<_>>::default());
        let stop = options.stop.clone();
        let (fire, set, core) = (done.firing(), outcome.clone(), connection.clone());
        std::thread::Builder::new().name("spawnfd-files".to_owned()).spawn(move || {
            let transfer = if is_put { spawnfd_remote::Remote::put } else { spawnfd_remote::Remote::get };
            let _ = set.set(transfer(core.core(), source, target, &options));
            drop(core);
            fire();
        })?;
        Ok(Transfer { connection, stop, outcome, done })
    }
}

#[pymethods]
impl Transfer {
    /// Returns True once the transfer has succeeded, None before.
    fn result(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        match self.outcome.get() {
            None => Ok(None),
            Some(Ok(())) => Ok(Some(true)),
            Some(Err(error)) => Err(self.connection.exception(py, error)),
        }
    }

    /// Whether the transfer has ended.
    fn has_ended(&self) -> Option<bool> {
        self.outcome.get().map(|_| true)
    }

    /// Ends the transfer.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.stop.stop());
    }
}

/// The Rust half of the Python class `RemoteSession`. It has the methods of [`Session`](crate::session::Session).
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct RemoteSession {
    connection: Arc<Connection>,
    request: Request,
    settings: SessionSettings,
    /// Has one permit, for the command whose turn it is.
    turns: CoreLimiter,
    state: Mutex<Shell>,
    closed: AtomicBool,
    /// Fires when the shell has ended.
    #[pyo3(get)]
    ended: Wakeup,
}

/// The shell of a session.
#[derive(Debug, Default)]
enum Shell {
    #[default]
    None,
    Opening(Arc<PendingShell>),
    Open(Arc<CoreSession>),
}

#[derive(Debug)]
struct PendingShell {
    opening: Mutex<Option<Opening>>,
    start_is_over: Wakeup,
}

/// The start of a shell.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct RemoteShellStart(Arc<PendingShell>);

#[pymethods]
impl RemoteShellStart {
    /// Fires when the shell is ready, or has failed to start.
    #[getter]
    fn done(&self) -> Wakeup {
        self.0.start_is_over.clone()
    }

    /// Returns True once the start has succeeded or failed, None before.
    fn is_over(&self) -> Option<bool> {
        let opening = self.0.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = opening.as_ref().is_none_or(|opening| !matches!(opening.start().try_wait(), Ok(None)));
        is_over.then_some(true)
    }
}

impl RemoteSession {
    fn state(&self) -> std::sync::MutexGuard<'_, Shell> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn core(&self) -> Option<Arc<CoreSession>> {
        match &*self.state() {
            Shell::Open(core) => Some(core.clone()),
            _ => None,
        }
    }
}

#[pymethods]
impl RemoteSession {
    #[getter]
    fn turns(&self) -> Limiter {
        Limiter(self.turns.clone())
    }

    #[getter]
    fn queue(&self) -> Option<bool> {
        self.settings.queue
    }

    #[getter(r#where)]
    fn place(&self) -> String {
        self.connection.place()
    }

    /// Whether the session has not been opened yet. Later, the server starts a new shell if one is needed.
    fn needs_shell(&self) -> bool {
        !matches!(&*self.state(), Shell::Open(_))
    }

    /// Opens the session if it is not open. Returns the start that the caller waits for, or None if the session is open.
    fn begin_shell(
        &self,
        py: Python<'_>,
        _text: Option<&CommandText>,
        permit: Option<&Bound<'_, PermitRequest>>,
    ) -> PyResult<Option<RemoteShellStart>> {
        let permit = permit.and_then(|request| request.get().take());
        if self.closed() {
            return Err(PyValueError::new_err("the session is closed"));
        }
        if matches!(&*self.state(), Shell::None) {
            self.request.event.raise(py)?;
        }
        let begin = || {
            let mut state = self.state();
            match &*state {
                Shell::Open(_) => Ok(None),
                Shell::Opening(pending) => Ok(Some(pending.clone())),
                Shell::None => {
                    let (command, options) = (&self.request.command, &self.request.options.session);
                    let permits = permit.into_iter().collect();
                    let opening = self.connection.core().begin_session(command, options, permits)?;
                    let start_is_over = Wakeup::default();
                    opening.start().when_done(start_is_over.firing());
                    let pending = Arc::new(PendingShell { opening: Mutex::new(Some(opening)), start_is_over });
                    *state = Shell::Opening(pending.clone());
                    Ok(Some(pending))
                }
            }
        };
        let begun = py.detach(begin).map_err(|error| self.request.context.exception(py, &error))?;
        Ok(begun.map(RemoteShellStart))
    }

    /// Completes a start that is over. Raises the error of a failed start, for the first caller.
    fn finish_shell(&self, py: Python<'_>, start: &RemoteShellStart) -> PyResult<()> {
        let finish = || {
            let mut state = self.state();
            let opening = start.0.opening.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(opening) = opening else { return Ok(()) };
            *state = Shell::None;
            let core = opening.wait()?;
            core.shell().when_done(self.ended.firing());
            *state = Shell::Open(Arc::new(core));
            Ok(())
        };
        py.detach(finish).map_err(|error| self.request.context.exception(py, &error))
    }

    /// Begins to start a command in the shell. `turn` holds the permit of `turns`, if the command has waited for it.
    fn start(
        &self,
        py: Python<'_>,
        command: &CommandText,
        turn: &PermitRequest,
        permit: &PermitRequest,
        _queue: Option<&Bound<'_, Queue>>,
        _jobs: &Bound<'_, PyList>,
    ) -> PyResult<RemoteStart> {
        let permits = [turn, permit].into_iter().filter_map(PermitRequest::take).collect();
        let CommandText { core: text, text: shown, options } = command;
        let Some(core) = self.core() else { return Err(PyValueError::new_err("the session is closed")) };
        let context = self.request.context.of_shell();
        let begun = py.detach(|| core.begin_start(text, &options.run, permits, options.events()));
        let waiting = begun.map_err(|error| context.exception(py, &error))?;
        let SessionSettings { merge, has_terminal, .. } = self.settings;
        let reported = ReportedArguments { argv: vec![shown.clone()], stderr_merged: merge, place: None };
        let options = options.clone();
        Ok(RemoteStart::of(waiting, options, reported, context, self.connection.clone(), Some(has_terminal)))
    }

    fn interrupt(&self, py: Python<'_>) {
        if let Some(core) = self.core() {
            py.detach(|| core.interrupt());
        }
    }

    fn resize(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, columns: &Bound<'_, PyAny>) -> PyResult<()> {
        let (rows, columns) = (integer(rows, &"rows")?, integer(columns, &"columns")?);
        self.settings.check_terminal()?;
        if let Some(core) = self.core() {
            py.detach(|| core.resize(TerminalSize::new(rows, columns)));
        }
        Ok(())
    }

    /// Asks for the processes of the session. None: the session is not open.
    fn processes(&self, py: Python<'_>) -> PyResult<Option<Question>> {
        let Some(core) = self.core() else { return Ok(None) };
        match py.detach(|| core.begin_processes()) {
            Ok(asking) => Ok(Some(Question::of(asking, &self.connection))),
            Err(error) => Err(self.request.context.exception(py, &error)),
        }
    }

    #[getter]
    fn pid(&self) -> Option<u32> {
        let core = self.core()?;
        matches!(core.shell().try_wait(), Ok(None)).then(|| core.id())
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
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        py.detach(|| match &*self.state() {
            Shell::Open(core) => core.begin_close(),
            // The drop of a start ends the shell.
            Shell::Opening(pending) => {
                let opening = pending.opening.lock().unwrap_or_else(PoisonError::into_inner).take();
                drop(opening);
                pending.start_is_over.fire();
            }
            Shell::None => {}
        });
    }

    /// Returns True once the session has no shell, None before.
    fn has_ended(&self) -> Option<bool> {
        self.core().is_none_or(|core| !matches!(core.shell().try_wait(), Ok(None))).then_some(true)
    }

    /// Ends the shell and its processes: SIGTERM, then SIGKILL after `grace` seconds.
    fn stop(&self, py: Python<'_>, grace: f64) {
        let grace = Duration::try_from_secs_f64(grace).unwrap_or(Duration::MAX);
        if let Some(core) = self.core() {
            py.detach(|| core.shell().stop(grace));
        }
    }
}

/// Serves standard input and output, like the command `spawnfd serve`, until the other side ends. Exit next. `files`: the
/// command that packs and unpacks files.
#[pyfunction]
#[pyo3(signature = (files = Vec::new()))]
pub fn serve(py: Python<'_>, files: Vec<OsString>) -> PyResult<()> {
    let mut options = ServeOptions::default();
    options.files = files;
    match py.detach(|| spawnfd_remote::serve(&options)) {
        Ok(_) => Ok(()),
        Err(error) => Err(PyOSError::new_err(error.to_string())),
    }
}

/// Starts `argv`, a command that calls serve(), and waits for its end. Then, or if this process or the server is killed,
/// all programs are killed. Returns the exit code, negative for a signal. Exit next.
#[pyfunction]
pub fn supervise(py: Python<'_>, argv: Vec<OsString>) -> PyResult<i32> {
    let Some((program, args)) = argv.split_first() else { return Err(wrong_value(&"argv", "must not be empty")) };
    match py.detach(|| spawnfd_remote::far::supervise(Command::new(program).args(args))) {
        Ok(status) => Ok(status.map_or(125, |status| status.code().unwrap_or(-status.signal().unwrap_or(0)))),
        Err(error) => Err(PyOSError::new_err(error.to_string())),
    }
}
