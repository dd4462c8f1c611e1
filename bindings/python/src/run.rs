// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured runs: blocking in the calling thread, or finished by the engine for an event loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use spawnfd::Run;
use spawnfd::options::Call;

use crate::limiter::PermitRequest;
use crate::options::Options;
use crate::queue::Queue;
use crate::request::Request;
use crate::result::RunResult;
use crate::warm::Warm;

/// The time between SIGTERM and SIGKILL.
pub fn grace(run: &Run) -> Duration {
    run.get("grace").as_duration().unwrap_or_default()
}

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
    let request = Request::new(program, args, Options::new(options, Call::Run)?, false)?;
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
/// between the start and the caller's first reference to the run. Once the program has ended, `queue` gets the outcome
/// under `key`.
///
/// `permit` holds the limiter's permit for this run. `repeated` is true if this call repeats a start whose parked
/// process a signal killed before that process executed the program.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "one call from Python for each run")]
pub fn begin(
    py: Python<'_>,
    queue: &Bound<'_, Queue>,
    key: u64,
    program: Option<&Bound<'_, PyAny>>,
    args: &Bound<'_, PyAny>,
    options: &Bound<'_, PyDict>,
    permit: Option<&Bound<'_, PermitRequest>>,
    repeated: bool,
    started: &Bound<'_, PyList>,
) -> PyResult<()> {
    // Take the permit out of the request first, so that an error returns it to the limiter at once.
    let permit = permit.and_then(|request| request.get().take());
    let mut request = Request::new(program, args, Options::new(options, Call::Run)?, repeated)?;
    request.options.run = request.options.run.permit(permit);
    if repeated {
        request.command.start_cold();
    }
    // The callback owns one reference. If run_then() below fails, the error needs the other one.
    let context = Arc::new(request.context);
    let send = queue.get().sender(key, request.reported, context.clone());
    let ended = Arc::new(AtomicBool::new(false));
    let ended_in_callback = ended.clone();
    let done = move |outcome| {
        ended_in_callback.store(true, Ordering::Relaxed);
        send(outcome);
    };
    match py.detach(|| request.command.run_then(&request.options.run, done)) {
        Ok(handle) => started.append(ActiveRun { handle, ended, grace: grace(&request.options.run).as_secs_f64() }),
        Err(error) => Err(context.exception(py, &error)),
    }
}

/// The name of the way, the seconds saved, the meaning of the reason for a cold start, the remedy, and all in sentences.
type Explanation = (String, f64, Option<&'static str>, Option<&'static str>, String);

/// Finds out how a run would start from the Warm.
#[pyfunction]
pub fn explain(warm: &Bound<'_, Warm>, argv: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<Explanation> {
    let py = warm.py();
    let warm = warm.get().open()?;
    // Nothing starts, so no audit hook is called.
    let request = Request::new(None, argv, Options::new(options, Call::Run)?, true)?;
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

/// An active run. Dropping it ends the program.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct ActiveRun {
    handle: spawnfd::job::RunHandle,
    ended: Arc<AtomicBool>,
    /// Seconds between SIGTERM and SIGKILL.
    #[pyo3(get)]
    grace: f64,
}

#[pymethods]
impl ActiveRun {
    /// Ends the program and its process tree, if it still runs.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.handle.cancel());
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        // No code waits for the program any more, so end the program.
        if !self.ended.load(Ordering::Relaxed) {
            self.handle.cancel();
        }
    }
}
