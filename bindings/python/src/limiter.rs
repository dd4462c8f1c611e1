// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python class `spawnfd.Limiter`, which bounds concurrent runs, and the waits for its permits.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spawnfd::limits::{Acquiring, Permit};

use crate::arguments::integer;
use crate::queue::Wakeup;

/// Bounds the number of concurrent runs: `run(argv, limiter=limiter)`, and the like.
///
/// Before it starts its program, a run waits for a permit, first come, first served. It keeps
/// the permit until its Result is available. Any number of threads and event loops can share a
/// limiter. A forked process begins with the same limit and all permits free.
///
/// Args:
///     limit: The number of permits. With 0 no run starts until `limit` is raised.
///
/// Raises:
///     TypeError, ValueError: `limit` is not a valid count.
#[pyclass(frozen, module = "spawnfd")]
#[derive(Debug)]
pub struct Limiter(pub spawnfd::limits::Limiter);

#[pymethods]
impl Limiter {
    #[new]
    fn new(limit: &Bound<'_, PyAny>) -> PyResult<Limiter> {
        Ok(Limiter(spawnfd::limits::Limiter::new(integer(limit, &"limit")?)))
    }

    /// How many runs may be active at once.
    ///
    /// The limit can be changed at any time. Lowering the limit does not end active runs.
    #[getter]
    fn limit(&self) -> usize {
        self.0.limit()
    }

    #[setter]
    fn set_limit(&self, limit: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.set_limit(integer(limit, &"limit")?);
        Ok(())
    }

    /// How many runs are active.
    #[getter]
    fn running(&self) -> usize {
        self.0.running()
    }

    /// How many runs wait for a permit.
    #[getter]
    fn waiting(&self) -> usize {
        self.0.waiting()
    }

    fn __repr__(&self) -> String {
        let (limit, running, waiting) = (self.0.limit(), self.0.running(), self.0.waiting());
        format!("<spawnfd.Limiter limit={limit} running={running} waiting={waiting}>")
    }
}

/// A request for a limiter's permit. Once granted, the request holds the permit. Dropping the
/// request passes the permit to the next waiting run. A request without a limiter is granted at once.
///
/// As a context manager, the request is cancelled at the end of the block.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct PermitRequest {
    /// `None` without a limiter, and once a run has taken the permit or the request was cancelled.
    acquiring: Mutex<Option<Acquiring>>,
    /// The wakeup that fires when the run may start.
    #[pyo3(get)]
    ready: Wakeup,
}

impl PermitRequest {
    fn acquiring(&self) -> MutexGuard<'_, Option<Acquiring>> {
        self.acquiring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Transfers the permit to a run.
    pub fn take(&self) -> Option<Permit> {
        let mut acquiring = self.acquiring().take()?;
        acquiring.take()
    }
}

#[pymethods]
impl PermitRequest {
    #[new]
    fn new(limiter: Option<&Bound<'_, Limiter>>) -> PermitRequest {
        let ready = Wakeup::default();
        let mut acquiring = limiter.map(|limiter| limiter.get().0.acquire_async());
        if let Some(acquiring) = &mut acquiring {
            acquiring.when_ready(ready.firing());
        }
        PermitRequest { acquiring: Mutex::new(acquiring), ready }
    }

    /// Returns True once the permit is available, None before.
    fn is_granted(&self) -> Option<bool> {
        self.acquiring().as_mut().is_none_or(Acquiring::is_ready).then_some(true)
    }

    /// Cancels the request, or returns the permit to the limiter.
    fn cancel(&self) {
        let acquiring = self.acquiring().take();
        drop(acquiring);
    }

    fn __enter__(this: Py<PermitRequest>) -> Py<PermitRequest> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        self.cancel();
    }
}
