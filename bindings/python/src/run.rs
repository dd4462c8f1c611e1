// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured runs: blocking in the calling thread, or driven by an event loop.

use std::fmt;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyList};
use spawnfd::internal::stopped_before_start;
use spawnfd::limits::Permit;
use spawnfd::options::Call;
use spawnfd::{Command, Job, Output, Run};

use crate::connection::Connection;
use crate::env::Env;
use crate::errors::ErrorContext;
use crate::limiter::PermitRequest;
use crate::options::{Options, grace};
use crate::queue::{Queue, Wakeup};
use crate::remote::Remote;
use crate::reported::ReportedArguments;
use crate::request::{AuditEvent, Request};
use crate::result::RunResult;
use crate::session::{Session, StateError};
use crate::warm::Warm;

/// Runs a program to its end in the calling thread.
///
/// Python's signal handlers run during the call. If a handler raises, the call ends the program and raises the same.
#[pyfunction]
pub fn run(
    py: Python<'_>,
    program: Option<&Bound<'_, PyAny>>,
    args: &Bound<'_, PyAny>,
    options: &Bound<'_, PyDict>,
) -> PyResult<RunResult> {
    let request = Request::new(program, args, Options::new(options, Call::Run)?)?;
    request.audit(py)?;
    let mut raised = None;
    let outcome = py.detach(|| {
        // While the interpreter is being finalized, attaching fails, and no handlers run.
        request.command.run_interruptible(&request.options.run, || match Python::try_attach(|py| py.check_signals()) {
            None | Some(Ok(())) => false,
            Some(Err(error)) => {
                raised.get_or_insert(error);
                true
            }
        })
    });
    if let Some(error) = raised {
        if let Ok(output) = outcome {
            let value = error.value(py);
            if !value.hasattr("result").unwrap_or(true) {
                // An exception that accepts no attributes propagates without the result.
                let _ = value.setattr("result", RunResult::new(output.into(), request.reported));
            }
        }
        return Err(error);
    }
    match outcome {
        Ok(output) => Ok(RunResult::new(output.into(), request.reported)),
        Err(error) => Err(request.context.exception(py, &error)),
    }
}

/// Starts a program in the calling thread, and appends the run to `started`, so that a signal handler cannot raise
/// between the start and the caller's first reference to the run. The run has the error of a failed start, too.
///
/// If `program` is a Session, the program runs beside its shell. Its audit event follows when the session's state is
/// known. If `program` is a Remote, the program runs on the other side of that connection. `permit` holds the limiter's
/// permit for this run. `queue` is the queue of the event loop that drives the run; None: a thread of the library drives
/// it.
#[pyfunction]
pub fn begin(
    py: Python<'_>,
    program: Option<&Bound<'_, PyAny>>,
    args: &Bound<'_, PyAny>,
    options: &Bound<'_, PyDict>,
    permit: Option<&Bound<'_, PermitRequest>>,
    queue: Option<Py<Queue>>,
    started: &Bound<'_, PyList>,
) -> PyResult<()> {
    // Take the permit out of the request first, so that an error returns it to the limiter at once.
    let permit = permit.and_then(|request| request.get().take());
    let session = program.and_then(|program| program.cast::<Session>().ok());
    let remote = program.and_then(|program| program.cast::<Remote>().ok());
    let program = program.filter(|_| session.is_none() && remote.is_none());
    let options = if remote.is_some() { Options::remote } else { Options::new }(options, Call::Run)?;
    let mut request = Request::new(program, args, options)?;
    if session.is_none() {
        request.audit(py)?;
    }
    let run = match remote {
        Some(remote) => ActiveRun::remote(py, request, permit, remote.get().connection.clone())?,
        None => {
            request.options.run = request.options.run.permit(permit);
            ActiveRun::of(py, request, session.map(Bound::get), queue)?
        }
    };
    run.poll(py)?;
    started.append(run)
}

/// The name of the way, the seconds saved, the meaning of the reason for a cold start, the remedy, and all in sentences.
type Explanation = (String, f64, Option<&'static str>, Option<&'static str>, String);

/// Finds out how a run would start from the Warm.
#[pyfunction]
pub fn explain(warm: &Bound<'_, Warm>, argv: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<Explanation> {
    let py = warm.py();
    let warm = warm.get().open()?;
    let request = Request::new(None, argv, Options::new(options, Call::Run)?)?;
    match py.detach(|| warm.explain(&request.command)) {
        Ok(found) => {
            let name = found.started.name().into_owned();
            Ok((name, found.saves.as_secs_f64(), found.meaning(), found.remedy(), found.to_string()))
        }
        Err(error) => Err(request.context.exception(py, &error)),
    }
}

/// Ends the core's idle threads, and returns once they have ended.
#[pyfunction]
pub fn end_idle_threads(py: Python<'_>) {
    py.detach(spawnfd::internal::end_idle_threads);
}

/// A run that the calling thread drives. Dropping it ends the program.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
pub struct ActiveRun {
    state: Mutex<ActiveRunState>,
    is_cancelled: Arc<AtomicBool>,
    /// The queue of the event loop that drives the run.
    queue: Option<Py<Queue>>,
    reported: ReportedArguments,
    context: ErrorContext,
    /// The connection to the machine where the program runs, if that is another one.
    connection: Option<Arc<Connection>>,
    /// Fires when result() can continue the run.
    #[pyo3(get)]
    done: Wakeup,
    /// Seconds between SIGTERM and SIGKILL.
    #[pyo3(get)]
    grace: f64,
}

impl fmt::Debug for ActiveRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveRun").field("reported", &self.reported).finish_non_exhaustive()
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A program that has the state of its session, and the options of its run.
type SideProgram = Result<Box<(Command<'static>, Run)>, StateError>;

enum ActiveRunState {
    /// The program waits for the state of its session.
    Reading(BoxFuture<SideProgram>),
    Active(BoxFuture<spawnfd::Result<Arc<Output>>>),
    Ended(spawnfd::Result<Arc<Output>>),
}

impl ActiveRunState {
    /// The first poll starts the program. A poll after `is_cancelled` is set ends the program.
    fn active(command: Command<'static>, run: Run, is_cancelled: Arc<AtomicBool>) -> ActiveRunState {
        ActiveRunState::Active(Box::pin(async move {
            let stop = poll_fn(|_| if is_cancelled.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending });
            command.run_until(&run, stop).await.map(Arc::new)
        }))
    }

    /// Waits for a run on another machine. A poll after `is_cancelled` is set ends the program.
    fn remote(job: Job, grace: Duration, is_cancelled: Arc<AtomicBool>) -> ActiveRunState {
        ActiveRunState::Active(Box::pin(async move {
            let mut outcome = pin!(job.wait_async());
            poll_fn(|context| {
                if is_cancelled.load(Ordering::Relaxed) {
                    job.stop(grace);
                }
                outcome.as_mut().poll(context)
            })
            .await
        }))
    }
}

/// The outcome of a poll.
enum Progress {
    Pending,
    /// The program can start, unless an audit hook refuses.
    Ready(SideProgram),
    Ended(spawnfd::Result<Arc<Output>>),
}

impl ActiveRun {
    /// `session`: the program runs beside the shell of this session.
    fn of(
        py: Python<'_>,
        request: Request,
        session: Option<&Session>,
        queue: Option<Py<Queue>>,
    ) -> PyResult<ActiveRun> {
        let Request { mut command, options, reported, context, .. } = request;
        let (grace, run) = (grace(&options.run).as_secs_f64(), options.run);
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let state = match session {
            Some(session) => {
                let reading = session.read_state(py)?;
                ActiveRunState::Reading(Box::pin(async move {
                    reading.await.map(|state| {
                        state.apply(&mut command);
                        Box::new((command, run))
                    })
                }))
            }
            None => ActiveRunState::active(command, run, is_cancelled.clone()),
        };
        let (state, done) = (Mutex::new(state), Wakeup::default());
        Ok(ActiveRun { state, is_cancelled, queue, reported, context, connection: None, done, grace })
    }

    /// A run on the other side of a connection.
    fn remote(
        py: Python<'_>,
        request: Request,
        permit: Option<Permit>,
        connection: Arc<Connection>,
    ) -> PyResult<ActiveRun> {
        let Request { command, options, reported, context, .. } = request;
        let permits = permit.into_iter().collect();
        let begun = py.detach(|| connection.core().begin_run(&command, &options.run, permits));
        let job = begun.map_err(|error| context.exception(py, &error))?;
        let (grace, is_cancelled) = (grace(&options.run), Arc::new(AtomicBool::new(false)));
        let state = Mutex::new(ActiveRunState::remote(job, grace, is_cancelled.clone()));
        let (grace, done) = (grace.as_secs_f64(), Wakeup::default());
        Ok(ActiveRun { state, is_cancelled, queue: None, reported, context, connection: Some(connection), done, grace })
    }

    /// Continues the run without waiting; the first call starts the program, or the shell that prints the session's
    /// state. Returns the outcome of a run that has ended.
    ///
    /// # Errors
    /// The session's state could not be read, or an audit hook has refused the start of the program beside the shell.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<spawnfd::Result<Arc<Output>>>> {
        loop {
            match self.advance(py) {
                Progress::Pending => return Ok(None),
                Progress::Ended(outcome) => return Ok(Some(outcome)),
                Progress::Ready(program) => {
                    let (command, run) = *program.map_err(|(error, context)| context.exception(py, &error))?;
                    // Only now are the program's directory and environment known.
                    let cwd = command.get_current_dir().map(Path::as_os_str);
                    let env = command.get_env().cloned().map(Env::of);
                    AuditEvent::new(py, &self.context.program, &self.reported.argv, cwd, env)?.raise(py)?;
                    let active = ActiveRunState::active(command, run, self.is_cancelled.clone());
                    *self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) = active;
                }
            }
        }
    }

    /// Polls the current step of the run, without the GIL.
    fn advance(&self, py: Python<'_>) -> Progress {
        let queue = self.queue.as_ref().map(Py::get);
        py.detach(|| Queue::enter(queue, || self.advance_detached()))
    }

    fn advance_detached(&self) -> Progress {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waker = self.done.waker();
        let mut context = Context::from_waker(&waker);
        match &mut *state {
            ActiveRunState::Reading(_) if self.is_cancelled.load(Ordering::Relaxed) => {
                // This ends the shell that prints the session's state.
                *state = ActiveRunState::Ended(Err(stopped_before_start()));
            }
            ActiveRunState::Reading(reading) => {
                let Poll::Ready(program) = reading.as_mut().poll(&mut context) else { return Progress::Pending };
                // If the caller cannot start the program, the run has ended.
                *state = ActiveRunState::Ended(Err(stopped_before_start()));
                return Progress::Ready(program);
            }
            ActiveRunState::Active(program) => {
                let Poll::Ready(outcome) = program.as_mut().poll(&mut context) else { return Progress::Pending };
                *state = ActiveRunState::Ended(outcome);
            }
            ActiveRunState::Ended(_) => {}
        }
        match &*state {
            ActiveRunState::Ended(outcome) => Progress::Ended(outcome.clone()),
            _ => Progress::Pending,
        }
    }
}

impl Drop for ActiveRun {
    /// Ends a run that is active. The GIL is released meanwhile, because the end may search /proc and wait for the engine.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !matches!(state, ActiveRunState::Ended(_)) {
            let active = std::mem::replace(state, ActiveRunState::Ended(Err(stopped_before_start())));
            // If the thread cannot attach, the closure drops the run.
            Python::try_attach(|py| py.detach(|| drop(active)));
        }
    }
}

#[pymethods]
impl ActiveRun {
    /// Continues the run. Returns the result, or None while the program runs.
    fn result(&self, py: Python<'_>) -> PyResult<Option<RunResult>> {
        let output = self.poll(py)?.transpose().map_err(|error| self.context.exception(py, &error))?;
        Ok(output
            .map(|output| RunResult::new(output, self.reported.at(self.connection.as_deref().map(Connection::place)))))
    }

    /// Ends the program and its process tree, if it still runs.
    fn cancel(&self, py: Python<'_>) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.advance(py);
    }
}
