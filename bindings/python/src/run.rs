// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured runs: blocking in the calling thread, or finished by the engine for an event loop.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use spawnfd::Run;

use crate::arguments::{bytes, integer, seconds, wrong_type, wrong_value};
use crate::queue::{Queue, Running};
use crate::request::{Request, Spawning};
use crate::result::RunResult;
use crate::stdio::Use;

/// What only a captured run has: timeout, input, keep.
type Capture<'py> = (Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>, Bound<'py, PyAny>);

fn prepare(spawning: Spawning<'_>, (timeout, input, keep): Capture<'_>) -> PyResult<(Request, Run)> {
    let mut run = Run::new();
    run.timeout = seconds(timeout.as_ref(), "timeout")?;
    let expected = "a pair of int: bytes of head and of tail";
    let pair = keep.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
    let Some(pair) = pair else { return Err(wrong_type(&"keep", expected, &keep)) };
    run.keep = (integer(&pair.get_item(0)?, &"keep[0]")?, integer(&pair.get_item(1)?, &"keep[1]")?);
    if let Some(input) = input {
        if spawning.5.is_some() {
            return Err(wrong_value(&"input", "stdin is given too; one of them can be"));
        }
        run.input = Some(bytes(&input, "input")?);
    }
    Ok((Request::new(spawning, Use::Run)?, run))
}

/// Runs a program to its end in the calling thread. Python's signal handlers run meanwhile; one that raises ends the
/// program.
#[pyfunction]
pub fn run(py: Python<'_>, spawning: Spawning<'_>, capture: Capture<'_>) -> PyResult<RunResult> {
    let (mut request, run) = prepare(spawning, capture)?;
    let mut raised = None;
    let outcome = py.detach(|| {
        request.command.run_interruptible(&run, || match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                raised.get_or_insert(error);
                true
            }
        })
    });
    if let Some(error) = raised {
        return Err(error);
    }
    match outcome {
        Ok(output) => Ok(RunResult::new(output, request.args)),
        Err(error) => Err(request.exception(py, &error)),
    }
}

/// Starts a program in the calling thread; once it has ended, `queue` has what came of it under `key`.
#[pyfunction]
pub fn begin(
    py: Python<'_>,
    queue: &Bound<'_, Queue>,
    key: u64,
    spawning: Spawning<'_>,
    capture: Capture<'_>,
) -> PyResult<Running> {
    let (mut request, run) = prepare(spawning, capture)?;
    let done = queue.get().sender(key, std::mem::take(&mut request.args));
    match py.detach(|| request.command.run_then(&run, done)) {
        Ok(handle) => Ok(Running(handle)),
        Err(error) => Err(request.exception(py, &error)),
    }
}
