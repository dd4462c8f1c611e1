// SPDX-License-Identifier: MIT OR Apache-2.0
//! The native half of LauncherThread.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use spawnfd::LauncherStats;

use crate::arguments::{wrong_type, wrong_value};
use crate::errors;

/// A thread that starts programs, until it is closed.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct LauncherThread(Mutex<State>);

/// The thread, or what it had done when it was closed.
#[derive(Debug)]
enum State {
    Open(spawnfd::LauncherThread),
    Closed(LauncherStats),
}

impl LauncherThread {
    /// Held for no longer than it takes to copy what is in it: nobody waits for it, a fork's copy included, which has one thread
    /// that did not hold it.
    fn state<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn open(&self) -> Option<spawnfd::LauncherThread> {
        self.state(|state| match state {
            State::Open(launcher) => Some(launcher.clone()),
            State::Closed(_) => None,
        })
    }
}

#[pymethods]
impl LauncherThread {
    #[new]
    fn new(py: Python<'_>) -> PyResult<LauncherThread> {
        match py.detach(spawnfd::LauncherThread::new) {
            Ok(launcher) => Ok(LauncherThread(Mutex::new(State::Open(launcher)))),
            Err(error) => Err(errors::exception(py, &error, None)),
        }
    }

    /// How many programs it has started, and how many went without it, by the reason.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<(u64, Bound<'py, PyDict>)> {
        let stats = self.state(|state| match state {
            State::Open(launcher) => launcher.stats(),
            State::Closed(stats) => stats.clone(),
        });
        let fell_back = PyDict::new(py);
        for (reason, count) in stats.fell_back {
            fell_back.set_item(reason, count)?;
        }
        Ok((stats.spawned, fell_back))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.open().is_none()
    }

    /// Ends the thread, as soon as no call under way uses it.
    fn close(&self, py: Python<'_>) {
        let launcher = self.state(|state| match state {
            State::Open(launcher) => {
                let stats = launcher.stats();
                match std::mem::replace(state, State::Closed(stats)) {
                    State::Open(launcher) => Some(launcher),
                    State::Closed(_) => None,
                }
            }
            State::Closed(_) => None,
        });
        py.detach(|| drop(launcher));
    }
}

/// The launcher an option names.
pub fn launcher(value: &Bound<'_, PyAny>) -> PyResult<spawnfd::LauncherThread> {
    let core = value.getattr_opt("_core")?;
    let Some(native) = core.as_ref().and_then(|core| core.cast::<LauncherThread>().ok()) else {
        return Err(wrong_type(&"launcher", "spawnfd.LauncherThread or None", value));
    };
    native.get().open().ok_or_else(|| wrong_value(&"launcher", "it is closed"))
}
