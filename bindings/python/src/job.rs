// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust half of the Python class `Job`. No function in this file blocks. To wait for a state,
//! the Python part listens to a wakeup, checks the state again, and then waits for the wakeup.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyBrokenPipeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use spawnfd::error::Errno;
use spawnfd::internal::CallOptions;
use spawnfd::job::{
    Decoder, Events, LineEnd, OutputReader, ReadStatus, Stream, TerminalSize, Until, WhenFull, text_of,
};
use spawnfd::options::Call;

use crate::arguments::{bytes, integer, keyword, seconds, wrong_value};
use crate::classes::restored_by;
use crate::connection::Connection;
use crate::errors::ErrorContext;
use crate::limiter::PermitRequest;
use crate::options::{Options, grace};
use crate::queue::{Queue, Wakeup};
use crate::reported::ReportedArguments;
use crate::request::Request;
use crate::result::RunResult;

/// The handle of a supervised run.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Job {
    /// `Some` until this object is dropped.
    job: Option<spawnfd::Job>,
    reported: ReportedArguments,
    context: ErrorContext,
    /// The connection to the machine where the program runs, if that is another one.
    pub connection: Option<Arc<Connection>>,
    result: OnceLock<Py<RunResult>>,
    output: Mutex<PendingOutput>,
    detached: AtomicBool,
    /// Whether the run is a command of a session, whose events end with its result.
    pub is_command: bool,
    /// Whether a watcher's event loop reads the output.
    is_read_by_loop: AtomicBool,
    grace: Duration,
    #[pyo3(get)]
    pub has_terminal: bool,
    /// Fires when the result is available.
    #[pyo3(get)]
    done: Wakeup,
    /// Fires when the input buffer has space, or the program has closed its input.
    #[pyo3(get)]
    writable: Wakeup,
    /// Fires when there are events.
    #[pyo3(get)]
    readable: Wakeup,
    /// Fires when output has arrived, and when the result is available.
    #[pyo3(get)]
    arrived: Wakeup,
}

/// The output that is pending for events().
#[derive(Debug)]
struct PendingOutput {
    events: Events,
    decoders: [Decoder; 2],
    ready: VecDeque<Event>,
    ended: bool,
    /// The number of watchers (readers of events()). While there is one, the program blocks when
    /// the buffer is full.
    watchers: usize,
    /// Whether the task that started the job counts as a watcher, although it has not called
    /// events() yet.
    hold: bool,
}

impl PendingOutput {
    fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() && !self.ended {
            match self.events.try_next()? {
                spawnfd::job::Event::Chunk { stream, bytes, .. } => {
                    let (before, decoded) = self.decoders[stream.index()].take(&bytes);
                    self.ready.push_back(Event { stream: Some(stream), bytes, before, decoded, ..Event::default() });
                }
                spawnfd::job::Event::Line { stream, mut bytes, end, .. } => {
                    bytes.extend_from_slice(end.as_bytes());
                    let (decoded, partial) = (bytes.len(), end == LineEnd::Split);
                    self.ready.push_back(Event { stream: Some(stream), bytes, decoded, partial, ..Event::default() });
                }
                spawnfd::job::Event::Lost { bytes: lost, .. } => {
                    self.finish_text();
                    self.ready.push_back(Event { lost, ..Event::default() });
                }
                spawnfd::job::Event::End => {
                    self.finish_text();
                    self.ended = true;
                }
                _ => {}
            }
        }
        self.ready.pop_front()
    }

    fn has_next(&self) -> bool {
        !self.ready.is_empty() || self.ended || self.events.has_next()
    }

    /// Emits an incomplete character at the end of each stream as it is.
    fn finish_text(&mut self) {
        for (decoder, stream) in self.decoders.iter_mut().zip(Stream::ALL) {
            let before = decoder.take_incomplete();
            if !before.is_empty() {
                self.ready.push_back(Event { stream: Some(stream), before, ..Event::default() });
            }
        }
    }

    fn release_hold(&mut self) {
        if std::mem::take(&mut self.hold) {
            self.watch(-1);
        }
    }

    fn watch(&mut self, change: isize) {
        self.watchers = self.watchers.saturating_add_signed(change);
        self.events.set_when_full(if self.watchers > 0 { WhenFull::Wait } else { WhenFull::DropOldest });
    }
}

impl Job {
    /// Creates the handle of a run that was started with these options.
    pub fn of(
        (job, mut events): (spawnfd::Job, Events),
        options: &CallOptions,
        reported: ReportedArguments,
        context: ErrorContext,
    ) -> Job {
        let [done, writable, readable, arrived]: [Wakeup; 4] = Default::default();
        job.when_done(done.firing());
        job.on_writable(writable.firing());
        job.on_output(arrived.firing());
        events.on_event(readable.firing());
        let output = PendingOutput {
            events,
            decoders: Default::default(),
            ready: VecDeque::new(),
            ended: false,
            watchers: options.hold.into(),
            hold: options.hold,
        };
        Job {
            job: Some(job),
            reported,
            context,
            connection: None,
            result: OnceLock::new(),
            output: Mutex::new(output),
            detached: false.into(),
            is_command: false,
            is_read_by_loop: false.into(),
            grace: grace(&options.run),
            has_terminal: !options.run.get("terminal").is_none(),
            done,
            writable,
            readable,
            arrived,
        }
    }

    fn job(&self) -> &spawnfd::Job {
        self.job.as_ref().expect("the job is not dropped")
    }

    fn output(&self, py: Python<'_>) -> MutexGuard<'_, PendingOutput> {
        self.output.lock_py_attached(py).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[pymethods]
impl Job {
    /// Starts the program, and appends its job to `started`, so that a signal handler cannot raise between the start
    /// and the caller's first reference to the job. `permit` holds the limiter's permit. `queue` is the queue of the event
    /// loop that drives the run. The task that starts the job then counts as a watcher (a reader of events()). None: a
    /// thread of the library drives the run.
    #[staticmethod]
    fn start(
        py: Python<'_>,
        program: Option<&Bound<'_, PyAny>>,
        args: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
        permit: Option<&Bound<'_, PermitRequest>>,
        queue: Option<&Bound<'_, Queue>>,
        started: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        // Take the permit out of the request first, so that an error returns it to the limiter at
        // once.
        let permit = permit.and_then(|request| request.get().take());
        let request = Request::new(program, args, Options::new(options, Call::Start)?)?;
        request.audit(py)?;
        let Request { command, mut options, reported, context, .. } = request;
        options.hold |= queue.is_some();
        options.run = options.run.permit(permit);
        let queue = queue.map(Bound::get);
        match py.detach(|| Queue::enter(queue, || command.start_events(&options.run, options.events()))) {
            Ok(job) => started.append(Job::of(job, &options, reported, context)),
            Err(error) => Err(context.exception(py, &error)),
        }
    }

    #[getter]
    fn pid(&self) -> u32 {
        self.job().id()
    }

    /// Seconds between SIGTERM and SIGKILL.
    #[getter]
    fn grace(&self) -> f64 {
        self.grace.as_secs_f64()
    }

    #[getter]
    fn detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    #[getter]
    fn args(&self) -> Vec<OsString> {
        self.reported.argv.clone()
    }

    /// Returns the result, or None while the program runs.
    fn result(&self, py: Python<'_>) -> PyResult<Option<Py<RunResult>>> {
        if self.result.get().is_none() {
            match self.job().try_wait() {
                Ok(None) => return Ok(None),
                Ok(Some(output)) => {
                    let reported = self.reported.at(self.connection.as_deref().map(Connection::place));
                    let _ = self.result.set(Py::new(py, RunResult::new(output, reported))?);
                }
                Err(error) => return Err(self.context.exception(py, &error)),
            }
        }
        Ok(self.result.get().map(|result| result.clone_ref(py)))
    }

    fn read(&self, py: Python<'_>, since: &Bound<'_, PyAny>) -> PyResult<Chunk> {
        let since = integer(since, &"since")?;
        // Release the GIL, because the call may wait for a spill to a slow disk.
        Ok(Chunk(py.detach(|| self.job().read(since))))
    }

    /// Whether read() returns all output. The result, or the error, is about to be available.
    fn output_has_ended(&self) -> bool {
        self.job().output_has_ended()
    }

    /// Seconds since the latest output, or since the start.
    fn idle(&self) -> f64 {
        self.job().idle().as_secs_f64()
    }

    /// Writes data to the program, or to the input buffer; returns how many bytes it took, or None if the buffer is full.
    fn write(&self, data: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let data = bytes(data, "data")?;
        match self.job().write(&data) {
            Ok(0) if !data.is_empty() => Ok(None),
            Ok(written) => Ok(Some(written)),
            Err(error) if error.errno() == Errno::EPIPE => {
                Err(PyBrokenPipeError::new_err((Errno::EPIPE.raw(), "the program no longer reads its input")))
            }
            Err(_) => {
                let message = "write(): the program's input is not writable: start it with stdin=\"stream\"";
                Err(PyValueError::new_err(message))
            }
        }
    }

    fn close_stdin(&self) {
        self.job().close_stdin();
    }

    /// Ends the program and its process tree. If `grace` is None, the run's own grace applies.
    fn stop(&self, grace: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let grace = match grace {
            Some(grace) => seconds(Some(grace), "grace")?.unwrap_or(Duration::MAX),
            None => self.grace,
        };
        self.job().stop(grace);
        Ok(())
    }

    /// Ends the program and its process tree, with the run's own grace.
    fn cancel(&self) {
        self.job().stop(self.grace);
    }

    fn signal(&self, signal: &Bound<'_, PyAny>, tree: bool) -> PyResult<()> {
        let number = integer(signal, &"signal")?;
        let sent = self.job().signal(number, tree);
        sent.map_err(|_| wrong_value(&"signal", format_args!("{number} is not a signal number")))
    }

    fn resize(&self, rows: &Bound<'_, PyAny>, columns: &Bound<'_, PyAny>) -> PyResult<()> {
        let (rows, columns) = (integer(rows, &"rows")?, integer(columns, &"columns")?);
        if !self.has_terminal {
            return Err(PyValueError::new_err("resize(): the job was not started with a terminal"));
        }
        self.job().resize(TerminalSize::new(rows, columns));
        Ok(())
    }

    /// After this call, dropping the job does not end the program.
    fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    /// Returns the next event; None if there is none yet, False after the last one.
    fn event<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut output = self.output(py);
        match output.next() {
            Some(event) => Ok(Bound::new(py, event)?.into_any()),
            None if output.ended => Ok(false.into_pyobject(py)?.to_owned().into_any()),
            None => Ok(py.None().into_bound(py)),
        }
    }

    /// Adds a watcher (a reader of events()), and makes later events lines of at most `max` bytes,
    /// or chunks if `max` is None. `until` is "result" or "closed". None: the default of the job.
    ///
    /// While there are watchers, the program blocks when the buffer is full. Without a watcher the oldest bytes are
    /// dropped.
    fn watch(
        slf: &Bound<'_, Self>,
        max: Option<&Bound<'_, PyAny>>,
        until: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Watcher> {
        let max = max.map(|max| integer(max, &"max_line")).transpose()?;
        let until = match until {
            Some(until) => keyword(until, "until", &[("result", Until::Result), ("closed", Until::Closed)])?,
            None if slf.get().is_command => Until::Result,
            None => Until::Closed,
        };
        let mut output = slf.get().output(slf.py());
        output.events.set_until(until);
        output.ended = false;
        if max.is_some() {
            output.finish_text();
        }
        output.events.set_lines(max);
        output.watch(1);
        output.release_hold();
        drop(output);
        Ok(Watcher { job: slf.clone().unbind(), reader: Mutex::new(None) })
    }

    /// Whether event() would return an event, or the end. True or None.
    fn has_event(&self, py: Python<'_>) -> Option<bool> {
        self.output(py).has_next().then_some(true)
    }

    /// Whether an incomplete line is pending, which flush_lines() would make an event.
    fn has_open_line(&self, py: Python<'_>) -> bool {
        self.output(py).events.has_open_line()
    }

    fn flush_lines(&self, py: Python<'_>) {
        self.output(py).events.flush_lines();
    }

    /// The task that started the job no longer counts as a watcher (a reader of events()).
    fn release_hold(&self, py: Python<'_>) {
        self.output(py).release_hold();
    }
}

/// A reader of a job's events. While a Watcher exists, the program blocks when the event buffer is
/// full.
///
/// One native call creates the Watcher and counts it, so no signal handler runs in between.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct Watcher {
    job: Py<Job>,
    /// Reads the output in the event loop's thread.
    reader: Mutex<Option<OutputReader>>,
}

impl Watcher {
    fn reader(&self, py: Python<'_>) -> MutexGuard<'_, Option<OutputReader>> {
        self.reader.lock_py_attached(py).unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[pymethods]
impl Watcher {
    /// Takes over reading from the engine, unless another watcher has done so. Returns the descriptors of stdout and
    /// stderr, to be watched for input; None for a stream that this watcher does not read.
    fn begin_reading(&self, py: Python<'_>) -> [Option<i32>; 2] {
        let (job, mut reader) = (self.job.get(), self.reader(py));
        if job.is_read_by_loop.swap(true, Ordering::Relaxed) {
            return [None; 2];
        }
        *reader = job.job().reader();
        job.is_read_by_loop.store(reader.is_some(), Ordering::Relaxed);
        let fd = |stream| Some(reader.as_ref()?.fd(stream)?.as_raw_fd());
        Stream::ALL.map(fd)
    }

    /// Reads once from stdout (0) or stderr (1). Returns "watch" if the loop shall continue to watch the descriptor,
    /// "full" if it shall watch again after all events are taken, or "end".
    fn read(&self, py: Python<'_>, stream: usize) -> &'static str {
        let job = self.job.get();
        let mut output = job.output(py);
        let status = match (&mut *self.reader(py), Stream::ALL.get(stream)) {
            (Some(reader), Some(stream)) => reader.read(*stream, &mut output.events),
            _ => ReadStatus::End,
        };
        if output.watchers > 1 {
            drop(output);
            job.readable.fire();
        }
        match status {
            ReadStatus::Watch => "watch",
            ReadStatus::Full => "full",
            _ => "end",
        }
    }

    /// Whether the descriptor of stdout (0) or stderr (1) still refers to the pipe.
    fn is_own(&self, py: Python<'_>, stream: usize) -> bool {
        let stream = Stream::ALL.get(stream);
        self.reader(py).as_ref().zip(stream).is_some_and(|(reader, stream)| reader.is_own(*stream))
    }

    /// Gives reading back to the engine. The descriptors may be closed after this call.
    fn end_reading(&self, py: Python<'_>) {
        if self.reader(py).take().is_some() {
            self.job.get().is_read_by_loop.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        Python::attach(|py| {
            self.end_reading(py);
            self.job.get().output(py).watch(-1);
        });
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(job) = self.job.take() else { return };
        if *self.detached.get_mut() {
            job.detach();
        } else {
            // The end of a program that runs searches /proc, and may wait for the engine. If this thread cannot attach,
            // it drops the job here.
            let _ = Python::try_attach(|py| py.detach(|| drop(job)));
        }
    }
}

/// A piece of a job's output, in order of arrival.
#[pyclass(frozen, module = "spawnfd")]
#[derive(Debug, Default)]
pub struct Event {
    stream: Option<Stream>,
    bytes: Vec<u8>,
    /// The text begins with these bytes: a character of the previous chunk that continues in this one.
    before: Vec<u8>,
    /// The number of first bytes that belong to the text. The others begin a character.
    decoded: usize,
    lost: u64,
    partial: bool,
}

#[pymethods]
impl Event {
    /// The stream: "stdout" or "stderr".
    ///
    /// None if this event reports dropped output: see `lost`.
    #[getter]
    fn stream(&self) -> Option<&'static str> {
        self.stream.map(|stream| ["stdout", "stderr"][stream.index()])
    }

    /// The bytes. A line includes its line ending.
    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    /// The bytes decoded as UTF-8; invalid bytes become U+FFFD.
    ///
    /// A character that is split between two chunks belongs to the text of the second one.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &text_of(&self.before, &self.bytes[..self.decoded]))
    }

    /// Whether this is a piece of a line: `max_line` or `flush_after` of events() has split it.
    ///
    /// The next event of the same stream continues the line. False for the last piece.
    #[getter]
    fn partial(&self) -> bool {
        self.partial
    }

    /// How many bytes of both streams were dropped here because they were not read in time.
    ///
    /// 0 for an event that has output.
    #[getter]
    fn lost(&self) -> u64 {
        self.lost
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let before = PyBytes::new(py, &self.before);
        let state = (self.stream.map(Stream::index), self.bytes(py), before, self.decoded, self.lost, self.partial);
        restored_by(py, "restore_event", state)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match self.stream() {
            None => format!("<Event lost={}>", self.lost),
            Some(stream) => {
                let partial = if self.partial { " partial" } else { "" };
                format!("<Event {stream} {}{partial}>", self.text(py).repr()?.to_string_lossy())
            }
        })
    }
}

/// The output of both streams from a position on, in order of arrival.
#[pyclass(frozen, module = "spawnfd")]
#[derive(Debug)]
pub struct Chunk(spawnfd::job::Chunk);

#[pymethods]
impl Chunk {
    /// The bytes.
    ///
    /// While the job runs, an incomplete character at the end is left for the next read.
    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.bytes)
    }

    /// The bytes decoded as UTF-8; invalid bytes become U+FFFD.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.0.text())
    }

    /// The position to pass to the next read().
    #[getter]
    fn next(&self) -> u64 {
        self.0.next
    }

    /// How many bytes after the requested position are no longer available.
    #[getter]
    fn lost(&self) -> u64 {
        self.0.lost
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        restored_by(py, "restore_chunk", (self.bytes(py), self.0.next, self.0.lost))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<Chunk {} next={} lost={}>", self.text(py).repr()?.to_string_lossy(), self.0.next, self.0.lost))
    }
}

/// Recreates an Event from its pickled fields.
#[pyfunction]
pub fn restore_event(
    stream: Option<usize>,
    bytes: Vec<u8>,
    before: Vec<u8>,
    decoded: usize,
    lost: u64,
    partial: bool,
) -> Event {
    let stream = stream.and_then(|index| Stream::ALL.get(index).copied());
    let decoded = decoded.min(bytes.len());
    Event { stream, bytes, before, decoded, lost, partial }
}

/// Recreates a Chunk from its pickled fields.
#[pyfunction]
pub fn restore_chunk(bytes: Vec<u8>, next: u64, lost: u64) -> Chunk {
    Chunk(spawnfd::job::Chunk::new(bytes, next, lost))
}
