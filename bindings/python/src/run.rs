// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured runs: blocking in the calling thread, or driven by an event loop.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use spawnfd::Output;
use spawnfd::options::Call;

use crate::errors::ErrorContext;
use crate::limiter::PermitRequest;
use crate::options::{Options, grace};
use crate::queue::Wakeup;
use crate::reported::ReportedArguments;
use crate::request::Request;
use crate::result::RunResult;
use crate::session::Session;
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
    let mut request = Request::new(program, args, Options::new(options, Call::Run)?)?;
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
/// If `program` is a Session, the program runs beside its shell. `permit` holds the limiter's permit for this run.
#[pyfunction]
pub fn begin(
    py: Python<'_>,
    program: Option<&Bound<'_, PyAny>>,
    args: &Bound<'_, PyAny>,
    options: &Bound<'_, PyDict>,
    permit: Option<&Bound<'_, PermitRequest>>,
    started: &Bound<'_, PyList>,
) -> PyResult<()> {
    // Take the permit out of the request first, so that an error returns it to the limiter at once.
    let permit = permit.and_then(|request| request.get().take());
    let session = program.and_then(|program| program.cast::<Session>().ok());
    let program = program.filter(|_| session.is_none());
    let mut request = Request::new(program, args, Options::new(options, Call::Run)?)?;
    request.audit(py)?;
    request.options.run = request.options.run.permit(permit);
    let run = ActiveRun::of(request, session.map(|session| session.get().core()));
    run.poll(py);
    started.append(run)
}

/// The name of the way, the seconds saved, the meaning of the reason for a cold start, the remedy, and all in sentences.
type Explanation = (String, f64, Option<&'static str>, Option<&'static str>, String);

/// Finds out how a run would start from the Warm.
#[pyfunction]
pub fn explain(warm: &Bound<'_, Warm>, argv: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<Explanation> {
    let py = warm.py();
    let warm = warm.get().open()?;
    let mut request = Request::new(None, argv, Options::new(options, Call::Run)?)?;
    match py.detach(|| warm.explain(&mut request.command)) {
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
    reported: ReportedArguments,
    context: ErrorContext,
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

enum ActiveRunState {
    Active(Pin<Box<dyn Future<Output = spawnfd::Result<Output>> + Send>>),
    Ended(spawnfd::Result<Arc<Output>>),
}

impl ActiveRun {
    fn of(request: Request, session: Option<Arc<spawnfd::Session>>) -> ActiveRun {
        let Request { mut command, options, reported, context, .. } = request;
        let (grace, run) = (grace(&options.run).as_secs_f64(), options.run);
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let is_stopped = is_cancelled.clone();
        let future = async move {
            if let Some(session) = session {
                session.side_state_async().await?.apply(&mut command);
            }
            let stop = poll_fn(|_| if is_stopped.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending });
            command.run_until(&run, stop).await
        };
        let state = Mutex::new(ActiveRunState::Active(Box::pin(future)));
        ActiveRun { state, is_cancelled, reported, context, done: Wakeup::default(), grace }
    }

    /// Continues the run without waiting; the first call starts the program. Returns the outcome of a run that has
    /// ended.
    fn poll(&self, py: Python<'_>) -> Option<spawnfd::Result<Arc<Output>>> {
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let ActiveRunState::Active(future) = &mut *state {
                match future.as_mut().poll(&mut Context::from_waker(&self.done.waker())) {
                    Poll::Ready(outcome) => *state = ActiveRunState::Ended(outcome.map(Arc::new)),
                    Poll::Pending => return None,
                }
            }
            match &*state {
                ActiveRunState::Ended(outcome) => Some(outcome.clone()),
                ActiveRunState::Active(_) => None,
            }
        })
    }
}

#[pymethods]
impl ActiveRun {
    /// Continues the run. Returns the result, or None while the program runs.
    fn result(&self, py: Python<'_>) -> PyResult<Option<RunResult>> {
        let output = self.poll(py).transpose().map_err(|error| self.context.exception(py, &error))?;
        Ok(output.map(|output| RunResult::new(output, self.reported.clone())))
    }

    /// Ends the program and its process tree, if it still runs.
    fn cancel(&self, py: Python<'_>) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.poll(py);
    }
}
