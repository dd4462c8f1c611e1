// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust half of the Python class `Child`: a started program.

use std::borrow::Cow;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use spawnfd::options::Call;

use crate::arguments::{borrow, integer, seconds};
use crate::errors;
use crate::options::Options;
use crate::queue::{CHECK_INTERVAL, wait_readable};
use crate::request::Request;

/// A started program and its pidfd.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Child {
    pid: u32,
    pidfd: i32,
    /// The core's handle. Threads lock it only for single system calls, never while they wait.
    child: Mutex<spawnfd::Child>,
    /// The exit code or negated signal number, set when this object reaps the program.
    returncode: OnceLock<i32>,
}

/// Returns the exit code, or the negated signal number, as subprocess does.
fn returncode(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
}

impl Child {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, spawnfd::Child> {
        self.child.lock_py_attached(py).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[pymethods]
impl Child {
    #[new]
    fn new(
        py: Python<'_>,
        program: Option<&Bound<'_, PyAny>>,
        args: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Child> {
        let mut request = Request::new(program, args, Options::new(options, Call::Spawn)?)?;
        request.audit(py)?;
        match py.detach(|| request.command.spawn()) {
            Ok(child) => Ok(Child {
                pid: child.id(),
                pidfd: child.as_fd().as_raw_fd(),
                child: Mutex::new(child),
                returncode: OnceLock::new(),
            }),
            Err(error) => Err(request.context.exception(py, &error)),
        }
    }

    /// How the program was started; the values are those of `Result.started`.
    #[getter]
    fn started(&self, py: Python<'_>) -> Cow<'static, str> {
        self.lock(py).started().name()
    }

    #[getter]
    fn pid(&self) -> u32 {
        self.pid
    }

    fn fileno(&self) -> i32 {
        self.pidfd
    }

    /// Transfers the caller's ends of the pipes: a descriptor or None for each of stdin, stdout, stderr.
    fn take_pipes(&self, py: Python<'_>) -> (Option<i32>, Option<i32>, Option<i32>) {
        let mut child = self.lock(py);
        let stdin = child.stdin.take().map(|pipe| OwnedFd::from(pipe).into_raw_fd());
        let stdout = child.stdout.take().map(|pipe| OwnedFd::from(pipe).into_raw_fd());
        let stderr = child.stderr.take().map(|pipe| OwnedFd::from(pipe).into_raw_fd());
        (stdin, stdout, stderr)
    }

    #[getter]
    fn returncode(&self) -> Option<i32> {
        self.returncode.get().copied()
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        if self.returncode.get().is_none() {
            let status = self.lock(py).try_wait().map_err(|error| errors::exception(py, &error, None))?;
            if let Some(status) = status {
                let _ = self.returncode.set(returncode(status));
            }
        }
        Ok(self.returncode())
    }

    /// Waits for the program's end. Python's signal handlers run during the wait, and may raise.
    fn wait(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Option<i32>> {
        let deadline = seconds(timeout, "timeout")?.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(code) = self.poll(py)? {
                return Ok(Some(code));
            }
            // Wait without the lock, because the pidfd is open as long as this object exists. Limit the sleep, because
            // the application may have put another file at this number, and that file would not wake this thread.
            let next_check = Instant::now() + CHECK_INTERVAL;
            let until = deadline.map_or(next_check, |deadline| deadline.min(next_check));
            if !wait_readable(py, &borrow(self.pidfd), until)? && deadline == Some(until) {
                return Ok(None);
            }
        }
    }

    fn send_signal(&self, py: Python<'_>, signal: &Bound<'_, PyAny>) -> PyResult<()> {
        let signal = integer(signal, &"signal")?;
        self.lock(py).signal(signal).map_err(|error| errors::exception(py, &error, None))
    }

    /// Returns seconds of CPU time and the largest resident set in bytes; None before the program is reaped.
    fn usage(&self, py: Python<'_>) -> Option<(f64, u64)> {
        self.lock(py).usage().map(|usage| (usage.cpu.as_secs_f64(), usage.max_rss))
    }
}
