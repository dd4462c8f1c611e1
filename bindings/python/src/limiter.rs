// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python class `spawnfd.Limiter`, which bounds concurrent runs, and the waits for its permits.

use std::sync::{Mutex, PoisonError};

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
/// request passes the permit to the next waiting run.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct PermitRequest {
    state: Mutex<PermitState>,
    /// The wakeup that fires when the run may start.
    #[pyo3(get)]
    ready: Wakeup,
}

#[derive(Debug)]
enum PermitState {
    Waiting(Acquiring),
    Granted(Permit),
    /// A run has taken the permit, or the request was cancelled.
    Released,
}

impl PermitRequest {
    /// Sets the state to `Released`; returns the previous state.
    fn release(&self) -> PermitState {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), PermitState::Released)
    }

    /// Transfers the permit to a run.
    pub fn take(&self) -> Option<Permit> {
        match self.release() {
            PermitState::Granted(permit) => Some(permit),
            _ => None,
        }
    }
}

#[pymethods]
impl PermitRequest {
    #[new]
    fn new(limiter: &Bound<'_, Limiter>) -> PermitRequest {
        let ready = Wakeup::default();
        let mut acquiring = limiter.get().0.acquire_async();
        acquiring.when_ready(ready.firing());
        PermitRequest { state: Mutex::new(PermitState::Waiting(acquiring)), ready }
    }

    /// Returns True once the permit is available, None before.
    fn is_granted(&self) -> Option<bool> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let PermitState::Waiting(acquiring) = &mut *state
            && let Some(permit) = acquiring.take()
        {
            *state = PermitState::Granted(permit);
        }
        matches!(*state, PermitState::Granted(_)).then_some(true)
    }

    /// Cancels the request, or returns the permit to the limiter.
    fn cancel(&self) {
        drop(self.release());
    }
}
