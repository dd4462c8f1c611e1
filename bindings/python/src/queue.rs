// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the engine's thread, which never takes the GIL, to the thread of an event loop, which is woken once for a
//! batch.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::event::{EventfdFlags, eventfd};
use spawnfd::{Output, RunHandle};

use crate::errors;
use crate::result::RunResult;

/// Finished runs of one event loop, and the descriptor that says that there are some.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    finished: Mutex<Vec<Finished>>,
    wake: OwnedFd,
}

/// A run that has ended: its key among the pending ones, and what came of it.
#[derive(Debug)]
struct Finished {
    key: u64,
    outcome: spawnfd::Result<Output>,
    args: Vec<OsString>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn push(&self, finished: Finished) {
        let mut queue = self.lock();
        let first = queue.is_empty();
        queue.push(finished);
        drop(queue);
        if first {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Queue {
    /// What the engine is to do with a run that has ended.
    pub fn sender(&self, key: u64, args: Vec<OsString>) -> impl FnOnce(spawnfd::Result<Output>) + Send + 'static {
        let shared = self.0.clone();
        move |outcome| shared.push(Finished { key, outcome, args })
    }
}

#[pymethods]
impl Queue {
    #[new]
    fn new() -> PyResult<Queue> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| PyOSError::new_err((errno.raw_os_error(), "eventfd")))?;
        Ok(Queue(Arc::new(Shared { finished: Mutex::default(), wake })))
    }

    /// The eventfd to wait for.
    fn fileno(&self) -> i32 {
        self.0.wake.as_raw_fd()
    }

    /// Takes all finished runs, and gives each future of `pending` that waits for one its result or exception.
    fn drain(&self, py: Python<'_>, pending: &Bound<'_, PyDict>) -> PyResult<()> {
        // Read before the queue is emptied: a run that is pushed in between wakes once more than needed.
        let _ = rustix::io::read(&self.0.wake, &mut [0; 8]);
        let finished = std::mem::take(&mut *self.0.lock());
        for Finished { key, outcome, args } in finished {
            let Some(future) = pending.get_item(key)? else { continue };
            pending.del_item(key)?;
            if future.call_method0(intern!(py, "done"))?.is_truthy()? {
                continue;
            }
            match outcome {
                Ok(output) => {
                    future.call_method1(intern!(py, "set_result"), (RunResult::new(output, args),))?;
                }
                Err(error) => {
                    let exception = errors::exception(py, &error, args.first().map(OsString::as_os_str));
                    future.call_method1(intern!(py, "set_exception"), (exception,))?;
                }
            }
        }
        Ok(())
    }
}

/// A run under way.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Running(pub RunHandle);

#[pymethods]
impl Running {
    /// Kills the program and its process group, if it still runs.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.0.cancel());
    }
}
