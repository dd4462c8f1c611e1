// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd.Result`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use spawnfd::{Drain, Output, SpillEnd};

use crate::classes::Class;
use crate::pickled;

/// What came of a run: how it ended, what it wrote, what it used.
///
/// An exit code, a timeout and cut output are results, not exceptions; `check()` makes one of them.
#[pyclass(frozen, module = "spawnfd", name = "Result")]
#[derive(Debug)]
pub struct RunResult {
    output: Arc<Output>,
    args: Vec<OsString>,
    /// Made when somebody asks for them.
    stdout: OnceLock<Py<PyBytes>>,
    stderr: OnceLock<Py<PyBytes>>,
}

impl RunResult {
    pub fn new(output: Arc<Output>, args: Vec<OsString>) -> RunResult {
        RunResult { output, args, stdout: OnceLock::new(), stderr: OnceLock::new() }
    }
}

/// Always the same object. No lock is held while it is made, as that may run any Python code.
fn python_bytes(py: Python<'_>, made: &OnceLock<Py<PyBytes>>, native: &[u8]) -> Py<PyBytes> {
    if made.get().is_none() {
        let _ = made.set(PyBytes::new(py, native).unbind());
    }
    made.get().map_or_else(|| PyBytes::new(py, native).unbind(), |bytes| bytes.clone_ref(py))
}

#[pymethods]
impl RunResult {
    /// Whether the program ended by itself with exit code 0.
    #[getter]
    fn ok(&self) -> bool {
        self.output.ok()
    }

    /// The exit code; None if a signal ended the program, its status is lost, or it could not be killed.
    #[getter]
    fn code(&self) -> Option<i32> {
        self.output.code()
    }

    /// The number of the signal that ended the program; None if it exited, its status is lost, or it could not be killed.
    #[getter]
    fn signal(&self) -> Option<i32> {
        self.output.signal()
    }

    /// Whether somebody else has taken the program's status (a wait(-1) of this process, SIGCHLD ignored), and the kernel does not
    /// keep it (before Linux 6.15): how it ended is not known then, and it is not ok.
    #[getter]
    fn status_lost(&self) -> bool {
        self.output.status_lost
    }

    /// Why it ended: "exited" (by itself, or by somebody else's signal), "timeout", "cancelled", "output_limit" or
    /// "limit".
    #[getter]
    fn stop(&self) -> &'static str {
        self.output.stop.name()
    }

    /// The limit it had reached, and who enforced it, where `stop` is "limit", as in "memory (cgroup)"; else None.
    #[getter]
    fn limit(&self) -> Option<String> {
        self.output.limit.map(|limit| limit.to_string())
    }

    /// Who enforced each of its Limits: "cgroup" (the kernel, the tree together), "rlimit" (the kernel, each process for
    /// itself, or all of the user), "watch" (this library, which looks now and then) or "nobody".
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let limits = PyDict::new(py);
        for limit in &self.output.limits {
            limits.set_item(limit.resource.to_string(), limit.by.to_string())?;
        }
        Ok(limits)
    }

    /// Captured standard output: its head, then its tail.
    #[getter]
    fn stdout(&self, py: Python<'_>) -> Py<PyBytes> {
        python_bytes(py, &self.stdout, &self.output.stdout)
    }

    /// Captured standard error, likewise; empty if merged into standard output.
    #[getter]
    fn stderr(&self, py: Python<'_>) -> Py<PyBytes> {
        python_bytes(py, &self.stderr, &self.output.stderr)
    }

    /// Standard output decoded from UTF-8, what is none replaced; a character cut by an omission is left out.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.output.text())
    }

    /// How many bytes of both streams were not kept: they lie between head and tail.
    #[getter]
    fn omitted_bytes(&self) -> u64 {
        self.output.omitted_bytes
    }

    /// How many bytes both streams had.
    #[getter]
    fn seen_bytes(&self) -> u64 {
        self.output.seen_bytes
    }

    /// The file with all of the output; None if none was asked for, needed, or could be made.
    ///
    /// Unless it is to persist it goes with the last reference to this result, and to its job, in the process that ran the
    /// program: a pickled result names it, no more.
    #[getter]
    fn spill_path(&self) -> Option<&OsStr> {
        self.output.spill.as_ref()?.file.as_ref().map(|file| file.path().as_os_str())
    }

    /// What became of that file: its length, and whether it is whole; None if none was asked for or needed.
    #[getter]
    fn spilled<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static SPILLED: Class = Class::of("spawnfd._types", "Spilled");
        let Some(spilled) = &self.output.spill else { return Ok(None) };
        let (end, errno) = match spilled.end {
            SpillEnd::Whole => ("whole", None),
            SpillEnd::Capped => ("capped", None),
            SpillEnd::Failed(errno) => ("failed", Some(errno.raw())),
            _ => ("failed", None),
        };
        SPILLED.get(py)?.call1((spilled.bytes, end, errno)).map(Some)
    }

    /// Whether the program stopped reading, or ended, before all of `input` (or what was written) was taken.
    #[getter]
    fn input_refused(&self) -> bool {
        self.output.input_refused
    }

    /// How reading ended: "eof", or "cut: " and the pids that still held the pipe, or the terminal, after the program had ended.
    #[getter]
    fn drain(&self) -> String {
        match &self.output.drain {
            Drain::Eof => "eof".into(),
            Drain::Cut(pids) if !pids.is_empty() => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                format!("cut: {}", pids.join(" "))
            }
            _ => "cut: ?".into(),
        }
    }

    /// How far control of the process tree reached: "group", "guard", "cgroup" or "pidns"; see docs/trees.md.
    #[getter]
    fn tree(&self) -> String {
        self.output.tree.to_string()
    }

    /// Whether leaving the session was no way out of that. Where it is one ("group", "guard") a process that has called setsid may
    /// have survived, and is not among the leftovers.
    #[getter]
    fn tree_complete(&self) -> bool {
        self.output.tree.is_complete()
    }

    /// Processes of the program's tree that outlived it, as far as the tier finds them, and their fates. A program that could not be killed
    /// comes first: it still runs, and the library reaps it when it ends.
    #[getter]
    fn leftovers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        static LEFTOVER: Class = Class::of("spawnfd._types", "Leftover");
        let made = self
            .output
            .leftovers
            .iter()
            .map(|leftover| LEFTOVER.get(py)?.call1((leftover.pid, &leftover.name, leftover.fate.name())));
        made.collect()
    }

    /// Whether it could not be looked who outlived it: no descriptor was free for that, or /proc cannot be read. There may be somebody then,
    /// and whom only looking finds lives on.
    #[getter]
    fn leftovers_unknown(&self) -> bool {
        self.output.leftovers_unknown
    }

    /// Seconds from the start of the spawn to the end of reading.
    #[getter]
    fn wall(&self) -> f64 {
        self.output.wall.as_secs_f64()
    }

    /// Seconds of user and system time that the program, and descendants it waited for, used. 0 where somebody else has waited for
    /// it, as the kernel does where SIGCHLD is ignored.
    #[getter]
    fn cpu(&self) -> f64 {
        self.output.usage.cpu.as_secs_f64()
    }

    /// The largest resident set of any of them, in bytes; 0 as `cpu`. Never less than this process's own as it started the program.
    #[getter]
    fn max_rss(&self) -> u64 {
        self.output.usage.max_rss
    }

    /// How the program was started: "clone"; "kernel" (by one call, of a kernel that has our patches); from a
    /// Warm "reserve", "fork", "zygote" or "pool", or "cold: " and why it was not (docs/warm.md).
    #[getter]
    fn started(&self) -> Cow<'static, str> {
        self.output.started.name()
    }

    /// The program's argv, a sandbox's before it; what came as bytes or path is a str here, decoded as os.fsdecode() does.
    #[getter]
    fn args<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.args)
    }

    /// Returns this result if it is ok.
    ///
    /// Raises:
    ///     ExitError: It is not; `result` of it is this.
    fn check(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        static EXIT_ERROR: Class = Class::of("spawnfd._errors", "ExitError");
        if slf.get().ok() {
            return Ok(slf);
        }
        Err(PyErr::from_value(EXIT_ERROR.get(slf.py())?.call1((slf,))?))
    }

    /// It does not change: the same.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pickled::reduce(py, &self.output, &self.args)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        use std::fmt::Write as _;
        let mut text = format!("<Result {}", self.stop());
        match (self.code(), self.signal()) {
            (Some(code), _) => write!(text, " code={code}"),
            (None, Some(signal)) => write!(text, " signal={signal}"),
            (None, None) if self.output.status_lost => write!(text, " status_lost"),
            // The program could not be killed.
            (None, None) => match self.output.leftovers.first() {
                Some(program) => write!(text, " {}", program.fate.name()),
                None => Ok(()),
            },
        }
        .ok();
        if let Some(limit) = self.limit() {
            write!(text, " limit={limit:?}").ok();
        }
        for (name, bytes) in [("stdout", self.stdout(py)), ("stderr", self.stderr(py))] {
            let all = bytes.as_bytes(py);
            if !all.is_empty() {
                let start = PyBytes::new(py, &all[..all.len().min(60)]).repr()?;
                let start = start.to_string_lossy();
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
        write!(text, " wall={:.4} args={}>", self.wall(), self.args(py)?.repr()?.to_string_lossy()).ok();
        Ok(text)
    }
}

/// Makes a Result of what its pickle has.
#[pyfunction]
pub fn restore(state: pickled::State) -> PyResult<RunResult> {
    let (output, args) = pickled::output(state)?;
    Ok(RunResult::new(output.into(), args))
}
