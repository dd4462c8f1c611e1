// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd.Result`.

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyBytes, PyList, PyString};
use spawnfd::{Drain, Output, Started, Stop};
use std::sync::Mutex;

/// What came of a run: how it ended, what it wrote, what it used.
///
/// An exit code, a timeout and cut output are results, not exceptions; `check()` makes one of them.
#[pyclass(frozen, module = "spawnfd", name = "Result")]
#[derive(Debug)]
pub struct RunResult {
    output: Output,
    args: Vec<OsString>,
    stdout: Mutex<Captured>,
    stderr: Mutex<Captured>,
}

/// Captured bytes, made Python's when somebody asks for them.
#[derive(Debug)]
enum Captured {
    Native(Vec<u8>),
    Python(Py<PyBytes>),
}

fn python_bytes(captured: &Mutex<Captured>, py: Python<'_>) -> Py<PyBytes> {
    let mut captured = captured.lock_py_attached(py).unwrap_or_else(|poisoned| poisoned.into_inner());
    match &*captured {
        Captured::Python(bytes) => bytes.clone_ref(py),
        Captured::Native(native) => {
            let bytes = PyBytes::new(py, native).unbind();
            *captured = Captured::Python(bytes.clone_ref(py));
            bytes
        }
    }
}

impl RunResult {
    pub fn new(mut output: Output, args: Vec<OsString>) -> RunResult {
        let stdout = Mutex::new(Captured::Native(std::mem::take(&mut output.stdout)));
        let stderr = Mutex::new(Captured::Native(std::mem::take(&mut output.stderr)));
        RunResult { output, args, stdout, stderr }
    }
}

#[pymethods]
impl RunResult {
    /// Whether the program ended by itself with exit code 0.
    #[getter]
    fn ok(&self) -> bool {
        self.output.ok()
    }

    /// The exit code; None if a signal ended the program.
    #[getter]
    fn code(&self) -> Option<i32> {
        self.output.code()
    }

    /// The number of the signal that ended the program; None if it exited.
    #[getter]
    fn signal(&self) -> Option<i32> {
        self.output.signal()
    }

    /// Why it ended: "exited" (by itself, or by somebody else's signal), "timeout" or "cancelled".
    #[getter]
    fn stop(&self) -> &'static str {
        match self.output.stop {
            Stop::Exited => "exited",
            Stop::Timeout => "timeout",
            Stop::Cancelled => "cancelled",
            _ => "unknown",
        }
    }

    /// Captured standard output: its head, then its tail.
    #[getter]
    fn stdout(&self, py: Python<'_>) -> Py<PyBytes> {
        python_bytes(&self.stdout, py)
    }

    /// Captured standard error, likewise; empty if merged into standard output.
    #[getter]
    fn stderr(&self, py: Python<'_>) -> Py<PyBytes> {
        python_bytes(&self.stderr, py)
    }

    /// Standard output decoded from UTF-8, what is none replaced.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let stdout = self.stdout(py);
        let stdout = stdout.as_bytes(py);
        Ok(PyString::new(py, &String::from_utf8_lossy(stdout)))
    }

    /// How many bytes of both streams were not kept: they lie between head and tail.
    #[getter]
    fn omitted_bytes(&self) -> u64 {
        self.output.omitted_bytes
    }

    /// The file the whole output was written to; None.
    #[getter]
    fn spill_path(&self) -> Option<String> {
        None
    }

    /// How reading ended: "eof", or "cut: " and the pids that still held the pipe after the program had ended.
    #[getter]
    fn drain(&self) -> String {
        match self.leftovers().as_slice() {
            _ if self.output.drain == Drain::Eof => "eof".into(),
            [] => "cut: ?".into(),
            pids => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                format!("cut: {}", pids.join(" "))
            }
        }
    }

    /// The pids of those processes.
    #[getter]
    fn leftovers(&self) -> Vec<u32> {
        match &self.output.drain {
            Drain::Cut(pids) => pids.clone(),
            _ => Vec::new(),
        }
    }

    /// Seconds from the start of the spawn to the end of reading.
    #[getter]
    fn wall(&self) -> f64 {
        self.output.wall.as_secs_f64()
    }

    /// Seconds of user and system time that the program, and descendants it waited for, used.
    #[getter]
    fn cpu(&self) -> f64 {
        self.output.usage.cpu.as_secs_f64()
    }

    /// The largest resident set of any of them, in bytes.
    #[getter]
    fn max_rss(&self) -> u64 {
        self.output.usage.max_rss
    }

    /// How the program was started: "clone".
    #[getter]
    fn started(&self) -> &'static str {
        match self.output.started {
            Started::Clone => "clone",
            _ => "unknown",
        }
    }

    /// The program's argv; what came as bytes or path is a str here, decoded as os.fsdecode() does.
    #[getter]
    fn args<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.args)
    }

    /// Returns this result if it is ok.
    ///
    /// Raises ExitError, which carries it, if not.
    fn check(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        static EXIT_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if slf.get().ok() {
            return Ok(slf);
        }
        let class: &Bound<'_, PyAny> = EXIT_ERROR.import(slf.py(), "spawnfd._errors", "ExitError")?;
        Err(PyErr::from_value(class.call1((slf,))?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        use std::fmt::Write as _;
        let mut text = format!("<Result {}", self.stop());
        match (self.code(), self.signal()) {
            (Some(code), _) => write!(text, " code={code}"),
            (None, signal) => write!(text, " signal={}", signal.unwrap_or(0)),
        }
        .ok();
        for (name, bytes) in [("stdout", self.stdout(py)), ("stderr", self.stderr(py))] {
            let all = bytes.as_bytes(py);
            if !all.is_empty() {
                let start = PyBytes::new(py, &all[..all.len().min(60)]).repr()?;
                let more = if all.len() > 60 { format!("... ({} bytes)", all.len()) } else { String::new() };
                write!(text, " {name}={start}{more}").ok();
            }
        }
        if self.output.omitted_bytes > 0 {
            write!(text, " omitted_bytes={}", self.output.omitted_bytes).ok();
        }
        if self.output.drain != Drain::Eof {
            write!(text, " drain={:?}", self.drain()).ok();
        }
        write!(text, " wall={:.4} args={}>", self.wall(), self.args(py)?.repr()?).ok();
        Ok(text)
    }
}
