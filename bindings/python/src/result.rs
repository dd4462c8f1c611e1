// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python class `spawnfd.Result`: the outcome of a run.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use pythonize::{depythonize, pythonize};
use serde::{Deserialize, Serialize};
use spawnfd::Output;
use spawnfd::internal::Stored;
use spawnfd::job::{Drain, SpillEnd, Stream};

use crate::arguments::wrong_value;
use crate::classes::{PythonClass, restored_by};
use crate::reported::ReportedArguments;

/// The outcome of a run: exit status, captured output and resource usage.
///
/// A nonzero exit code, a timeout and truncated output are results, not exceptions. `check()`
/// raises ExitError for a result that is not ok.
#[pyclass(frozen, module = "spawnfd", name = "Result")]
#[derive(Debug)]
pub struct RunResult {
    output: Arc<Output>,
    reported: ReportedArguments,
    /// The Python objects for the captured output, which the first access creates.
    stdout: OnceLock<Py<PyBytes>>,
    stderr: OnceLock<Py<PyBytes>>,
}

impl RunResult {
    pub fn new(output: Arc<Output>, reported: ReportedArguments) -> RunResult {
        RunResult { output, reported, stdout: OnceLock::new(), stderr: OnceLock::new() }
    }
}

/// Returns captured output as bytes, the same object for each call. Creating the object may run any
/// Python code, so this function holds no lock while it creates the object.
fn python_bytes(py: Python<'_>, object: &OnceLock<Py<PyBytes>>, native: &[u8]) -> Py<PyBytes> {
    if object.get().is_none() {
        let _ = object.set(PyBytes::new(py, native).unbind());
    }
    object.get().map_or_else(|| PyBytes::new(py, native).unbind(), |bytes| bytes.clone_ref(py))
}

/// The contents of `Result.to_dict()`.
#[derive(Serialize)]
struct Dict<'a> {
    program: Option<Cow<'a, str>>,
    args: Vec<Cow<'a, str>>,
    #[serde(flatten)]
    output: &'a Output,
}

/// The maximum length of the command in the repr, in characters.
const SHOWN_COMMAND: usize = 80;

/// The maximum length of the command in the message of ExitError, in characters.
const SHOWN_IN_ERROR: usize = 504;

#[pymethods]
impl RunResult {
    /// Whether the program ended by itself with exit code 0.
    #[getter]
    fn ok(&self) -> bool {
        self.output.ok()
    }

    /// The exit code.
    ///
    /// None if a signal ended the program, its status is lost, or it could not be killed.
    #[getter]
    fn code(&self) -> Option<i32> {
        self.output.code()
    }

    /// The exit code, or -N if signal N ended the program, as in subprocess.
    ///
    /// None if the status is lost, or if the program could not be killed.
    #[getter]
    fn returncode(&self) -> Option<i32> {
        self.output.code().or_else(|| self.output.signal().map(|signal| -signal))
    }

    /// The number of the signal that ended the program.
    ///
    /// None if the program exited, its status is lost, or it could not be killed.
    #[getter]
    fn signal(&self) -> Option<i32> {
        self.output.signal()
    }

    /// Whether the exit status is unknown. The result is then not ok.
    ///
    /// Other code reaped the program: a wait(-1) of this process, or an ignored SIGCHLD, takes the
    /// status. From Linux 6.15 on the kernel keeps the status and nothing is lost.
    ///
    /// Or a session's shell has not proved that it ran the command to its end, for example because
    /// the command called exit.
    #[getter]
    fn status_lost(&self) -> bool {
        self.output.status_lost
    }

    /// Why the run ended.
    ///
    /// "exited": the program ended by itself or by a signal that the library did not send.
    /// "timeout", "idle_timeout", "output_limit", "limit": the library ended the program, because
    /// of that argument (`limits` for "limit"). "cancelled": the caller ended it. "lost": the
    /// program ended, and its status is lost (see `status_lost`).
    #[getter]
    fn stop(&self) -> &'static str {
        self.output.stop.name()
    }

    /// The limit that was reached, and its enforcer, such as "memory (cgroup)".
    ///
    /// None unless `stop` is "limit".
    #[getter]
    fn limit(&self) -> Option<String> {
        self.output.limit.map(|limit| limit.to_string())
    }

    /// The enforcer of each of the run's Limits.
    ///
    /// "cgroup": the kernel, for the whole process tree. "rlimit": the kernel, for each process or
    /// for all processes of the user. "watch": this library, by periodic checks. "unenforced": the
    /// limit is not enforced.
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let limits = PyDict::new(py);
        for limit in &self.output.limits {
            limits.set_item(limit.resource.to_string(), limit.by.to_string())?;
        }
        Ok(limits)
    }

    /// Captured standard output: head, marker line if bytes are omitted, tail.
    ///
    /// The option `marker` sets the text of the line. `stdout_head`, `stdout_tail` and `omitted`
    /// have the exact bytes.
    #[getter]
    fn stdout(&self, py: Python<'_>) -> Py<PyBytes> {
        python_bytes(py, &self.stdout, &self.output.stdout)
    }

    /// Captured standard error: head, marker line if bytes are omitted, tail.
    ///
    /// Empty if merged into standard output.
    #[getter]
    fn stderr(&self, py: Python<'_>) -> Py<PyBytes> {
        python_bytes(py, &self.stderr, &self.output.stderr)
    }

    /// `stdout` decoded as UTF-8; invalid bytes become U+FFFD.
    ///
    /// A character that is split by omitted output is dropped.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.output.stdout_text())
    }

    /// `stderr` decoded as UTF-8; invalid bytes become U+FFFD.
    ///
    /// A character that is split by omitted output is dropped.
    #[getter]
    fn stderr_text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.output.stderr_text())
    }

    /// The kept bytes of standard output before omitted bytes; all bytes if none is omitted.
    #[getter]
    fn stdout_head<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.output.head(Stream::Stdout))
    }

    /// The kept bytes of standard output after omitted bytes; empty if none is omitted.
    #[getter]
    fn stdout_tail<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.output.tail(Stream::Stdout))
    }

    /// The kept bytes of standard error before omitted bytes; all bytes if none is omitted.
    #[getter]
    fn stderr_head<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.output.head(Stream::Stderr))
    }

    /// The kept bytes of standard error after omitted bytes; empty if none is omitted.
    #[getter]
    fn stderr_tail<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.output.tail(Stream::Stderr))
    }

    /// How many bytes of "stdout" and "stderr" were not kept, and where they begin.
    #[getter]
    fn omitted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        static OMITTED: PythonClass = PythonClass::of("spawnfd._types", "Omitted");
        let both = PyDict::new(py);
        for stream in Stream::ALL {
            let omitted = self.output.omitted(stream);
            both.set_item(stream.name(), OMITTED.get(py)?.call1((omitted.bytes, omitted.offset))?)?;
        }
        Ok(both)
    }

    /// The output of both streams in order of arrival. None without the option `combined`.
    ///
    /// The bytes of all pieces of a stream equal `stdout` or `stderr`. If bytes of a stream are
    /// omitted, one piece has the marker line, at the place where the first of them arrived.
    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        static PIECE: PythonClass = PythonClass::of("spawnfd._types", "OutputPiece");
        let Some(pieces) = self.output.pieces() else { return Ok(None) };
        let pieces = pieces.into_iter().map(|piece| {
            PIECE.get(py)?.call1((piece.stream.name(), PyBytes::new(py, piece.bytes), piece.text, piece.omitted))
        });
        pieces.collect::<PyResult<_>>().map(Some)
    }

    /// How many bytes of both streams together were not kept: those between head and tail.
    #[getter]
    fn omitted_bytes(&self) -> u64 {
        self.output.omitted_bytes
    }

    /// How many bytes the program wrote to both streams.
    #[getter]
    fn seen_bytes(&self) -> u64 {
        self.output.seen_bytes
    }

    /// The file with all of the output.
    ///
    /// None if no spill was requested or needed, or if the file could not be created. Unless it is
    /// persistent, the process that ran the program removes the file with its last reference to
    /// this result and its job. A pickled result only names the file and does not keep it.
    #[getter]
    fn spill_path(&self) -> Option<&OsStr> {
        self.output.spill.as_ref()?.file.as_ref().map(|file| file.path().as_os_str())
    }

    /// The length of the spill file, and whether it is complete.
    ///
    /// None if no spill was requested or needed.
    #[getter]
    fn spilled<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static SPILLED: PythonClass = PythonClass::of("spawnfd._types", "Spilled");
        let Some(spilled) = &self.output.spill else { return Ok(None) };
        let (end, errno) = match spilled.end {
            SpillEnd::Whole => ("whole", None),
            SpillEnd::Capped => ("capped", None),
            SpillEnd::Failed(errno) => ("failed", Some(errno.raw())),
            _ => ("failed", None),
        };
        SPILLED.get(py)?.call1((spilled.bytes, end, errno)).map(Some)
    }

    /// Whether the program did not get all of its input: `input`, and data passed to write().
    ///
    /// It ended or stopped reading before, or a terminal has cut a line above 4,095 bytes.
    #[getter]
    fn input_refused(&self) -> bool {
        self.output.input_refused
    }

    /// How reading ended: "eof", or "cut: " and pids.
    ///
    /// The pids are those of processes that kept the pipe or terminal open after the program's end.
    #[getter]
    fn drain(&self) -> String {
        self.output.drain.to_string()
    }

    /// The tier that controlled the process tree: "group", "guard", "subreaper", "cgroup" or
    /// "pidns".
    ///
    /// See docs/trees.md.
    #[getter]
    fn tree(&self) -> String {
        self.output.tree.to_string()
    }

    /// Whether the tier (see `tree`) tracks processes that leave the session.
    ///
    /// If False (tiers "group" and "guard"), a process that called setsid() may have survived
    /// without being listed in `leftovers`.
    #[getter]
    fn tree_complete(&self) -> bool {
        self.output.tree.is_complete()
    }

    /// Processes of the program's tree that outlived it, and their fates.
    ///
    /// The list has the processes that the tier (see `tree`) can find. A program that could not be
    /// killed comes first: it still runs, and the library reaps it when it ends.
    #[getter]
    fn leftovers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        static LEFTOVER: PythonClass = PythonClass::of("spawnfd._types", "Leftover");
        let leftovers = self
            .output
            .leftovers
            .iter()
            .map(|leftover| LEFTOVER.get(py)?.call1((leftover.pid, &leftover.name, leftover.fate.name())));
        leftovers.collect()
    }

    /// Whether the library could not search for surviving processes.
    ///
    /// No descriptor was free for the search, or /proc cannot be read. Processes may have survived;
    /// those that only a search finds were not killed.
    #[getter]
    fn leftovers_unknown(&self) -> bool {
        self.output.leftovers_unknown
    }

    /// Seconds from the start of the spawn to the end of reading.
    #[getter]
    fn wall(&self) -> f64 {
        self.output.wall.as_secs_f64()
    }

    /// Seconds of user and system time used by the program and by descendants it waited for.
    ///
    /// 0 if other code reaped the program, or if SIGCHLD is ignored and the kernel reaped it.
    #[getter]
    fn cpu(&self) -> f64 {
        self.output.usage.cpu.as_secs_f64()
    }

    /// The largest resident set of the program and of descendants it waited for, in bytes.
    ///
    /// 0 in the same cases as `cpu`. Never less than the resident set of this process when it
    /// started the program.
    #[getter]
    fn max_rss(&self) -> u64 {
        self.output.usage.max_rss
    }

    /// How the program was started.
    ///
    /// "clone"; "kernel" (one system call of a kernel with this project's patches); from a Warm
    /// "reserve", "fork", "zygote" or "pool"; or "cold: " and the reason why no parked process was
    /// used (docs/warm-reference.md). "session": a session's shell ran the command. "portable":
    /// the package has no native part (docs/portable.md).
    #[getter]
    fn started(&self) -> Cow<'static, str> {
        self.output.started.name()
    }

    /// The program's argv, preceded by the sandbox's command if there is one.
    ///
    /// A command of a session has one item, its text. Bytes and paths are decoded like os.fsdecode() does.
    #[getter]
    fn args<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.reported.argv)
    }

    /// The place where the program has run, if a Remote has started it: the host name and the transport.
    ///
    /// None if it has run on this machine.
    #[getter(r#where)]
    fn place(&self) -> Option<&str> {
        self.reported.place.as_deref()
    }

    /// The working directory of a session's shell after the command.
    ///
    /// The path is the value of `$PWD` if that names the directory.
    ///
    /// None if the shell has exited, and for other runs.
    #[getter]
    fn cwd(&self) -> Option<&Path> {
        self.output.cwd.as_deref()
    }

    /// Whether the session's shell exited during the command.
    ///
    /// The command called exit or exec, a signal ended the shell, or the library killed the shell
    /// because the command did not end otherwise. The command's own status is then lost. False for
    /// other runs.
    #[getter]
    fn shell_exited(&self) -> bool {
        self.output.shell_exited
    }

    /// The exit code of a shell that exited during the command, or -N if signal N ended it.
    ///
    /// A trap may have chosen the code, so it is not the status of the command. None if the shell
    /// has not exited, and for other runs.
    #[getter]
    fn shell_code(&self) -> Option<i32> {
        self.output.shell_code()
    }

    /// False. The running job that run() of a session may return has True.
    ///
    /// Type checkers know which of the two it is after `isinstance(job, spawnfd.Job)`.
    #[getter]
    fn running(&self) -> bool {
        false
    }

    /// Returns the message of ExitError.
    fn _exit_message(&self, py: Python<'_>) -> PyResult<String> {
        let args = shortened(self.args(py)?.repr()?.to_string_lossy().into_owned(), SHOWN_IN_ERROR);
        Ok(self.output.exit_message(&args, self.reported.stderr_merged))
    }

    /// Returns this result if it is ok.
    ///
    /// Raises:
    ///     ExitError: The result is not ok. The exception's `result` is this result.
    fn check(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        static EXIT_ERROR: PythonClass = PythonClass::of("spawnfd._errors", "ExitError");
        if slf.get().ok() {
            return Ok(slf);
        }
        Err(PyErr::from_value(EXIT_ERROR.get(slf.py())?.call1((slf,))?))
    }

    /// Returns the result as values that json.dumps() accepts.
    ///
    /// The keys are those of `spawnfd run --capture --json`, which its --help explains, without
    /// `prepare_seconds`. Output, arguments and paths are str; invalid bytes become U+FFFD.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let argv = &self.reported.argv;
        let program = argv.first().map(|program| program.to_string_lossy());
        let args = argv.iter().map(|arg| arg.to_string_lossy()).collect();
        Ok(pythonize(py, &Dict { program, args, output: &self.output })?)
    }

    /// A Result is immutable, so a copy is the same object.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = pythonize(py, &State { output: Stored(&*self.output), reported: &self.reported })?;
        restored_by(py, "restore", (state,))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let command = self.args(py)?.repr()?.to_string_lossy().into_owned();
        let mut parts = vec!["<Result".to_owned(), shortened(command, SHOWN_COMMAND)];
        match (self.code(), self.signal()) {
            (Some(code), _) => parts.push(format!("code={code}")),
            (None, Some(signal)) => parts.push(format!("signal={signal}")),
            (None, None) if self.output.status_lost => parts.push("status_lost".to_owned()),
            // A program without code and signal could not be killed.
            (None, None) => parts.extend(self.output.leftovers.first().map(|program| program.fate.name().to_owned())),
        }
        parts.push(format!("stop={} tree={} wall={:.4} s", self.stop(), self.tree(), self.wall()));
        parts.extend(self.place().map(|place| format!("where={place:?}")));
        parts.extend(self.limit().map(|limit| format!("limit={limit:?}")));
        parts.extend(self.shell_code().map(|code| format!("shell_code={code}")));
        if self.output.drain != Drain::Eof {
            parts.push(format!("drain={:?}", self.drain()));
        }
        if self.output.omitted_bytes > 0 {
            parts.push(format!("omitted_bytes={}", self.output.omitted_bytes));
        }
        let sizes = [("stdout", self.output.stdout.len()), ("stderr", self.output.stderr.len())];
        for (name, size) in sizes.into_iter().filter(|(_, size)| *size > 0) {
            parts.push(format!("{name}={size} {}", if size == 1 { "byte" } else { "bytes" }));
        }
        Ok(parts.join(" ") + ">")
    }
}

/// Shortens the repr of a list to at most `max` characters.
fn shortened(list: String, max: usize) -> String {
    match list.char_indices().nth(max) {
        Some(_) => list.chars().take(max - "...]".len()).chain("...]".chars()).collect(),
        None => list,
    }
}

/// The state of a pickled Result.
#[derive(Serialize, Deserialize)]
struct State<O, R> {
    #[serde(flatten)]
    output: O,
    #[serde(flatten)]
    reported: R,
}

/// Recreates a Result from its pickled state.
#[pyfunction]
pub fn restore(state: &Bound<'_, PyAny>) -> PyResult<RunResult> {
    let state: State<Stored<Output>, ReportedArguments> = depythonize(state).map_err(|error| {
        let reason = format!("another version of spawnfd has pickled it ({error})");
        wrong_value(&"Result", reason)
    })?;
    Ok(RunResult::new(state.output.0.into(), state.reported))
}
