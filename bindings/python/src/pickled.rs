// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts a Result to plain values for pickle, and back.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use spawnfd::Output;
use spawnfd::child::Started;
use spawnfd::error::Errno;
use spawnfd::job::{Drain, Fate, Leftover, SpillEnd, SpillFile, Spilled, Stop};
use spawnfd::limits::{Enforcer, Limit, Resource};
use spawnfd::tree::Tier;

use crate::arguments::wrong_value;
use crate::classes::restored_by;
use crate::request::ReportedArguments;

/// Returns the error for a pickled word that this version does not have.
fn unknown(word: &str) -> PyErr {
    wrong_value(&"Result", format_args!("unknown value {word:?}, pickled by another version of spawnfd"))
}

/// Returns the value that has this name.
fn value_named<T: Copy>(all: &[T], name: fn(T) -> &'static str, word: &str) -> PyResult<T> {
    let found = all.iter().find(|known| name(**known) == word);
    found.copied().ok_or_else(|| unknown(word))
}

/// The spill file's path and length, and the end of the writing: "whole", "capped", or None and an errno.
type Spill = (Option<OsString>, u64, Option<&'static str>, i32);

fn limit_names(limit: &Limit) -> (String, String) {
    (limit.resource.to_string(), limit.by.to_string())
}

fn limit((resource, by): (String, String)) -> PyResult<Limit> {
    let resource = Resource::ALL.iter().find(|known| known.to_string() == resource);
    let by = Enforcer::ALL.iter().find(|known| known.to_string() == by);
    match (resource, by) {
        (Some(&resource), Some(&by)) => Ok(Limit::new(resource, by)),
        _ => Err(unknown("limit")),
    }
}

/// Implements `Result.__reduce__`.
pub fn reduce<'py>(py: Python<'py>, output: &Output, reported: &ReportedArguments) -> PyResult<Bound<'py, PyAny>> {
    let spill: Option<Spill> = output.spill.as_ref().map(|spilled| {
        let path = spilled.file.as_ref().map(|file| file.path().as_os_str().to_owned());
        let (end, errno) = match spilled.end {
            SpillEnd::Whole => (Some("whole"), 0),
            SpillEnd::Capped => (Some("capped"), 0),
            SpillEnd::Failed(errno) => (None, errno.raw()),
            _ => (None, 0),
        };
        (path, spilled.bytes, end, errno)
    });
    let holders = match &output.drain {
        Drain::Cut(pids) => Some(pids.clone()),
        _ => None,
    };
    let leftovers: Vec<_> = output.leftovers.iter().map(|left| (left.pid, &left.name, left.fate.name())).collect();
    let state = PyDict::new(py);
    state.set_item("status", output.status.map(ExitStatusExt::into_raw))?;
    state.set_item("status_lost", output.status_lost)?;
    state.set_item("stop", output.stop.name())?;
    state.set_item("stdout", PyBytes::new(py, &output.stdout))?;
    state.set_item("stderr", PyBytes::new(py, &output.stderr))?;
    state.set_item("cuts", output.cuts())?;
    state.set_item("order", output.order())?;
    state.set_item("omitted_bytes", output.omitted_bytes)?;
    state.set_item("seen_bytes", output.seen_bytes)?;
    state.set_item("spill", spill)?;
    state.set_item("holders", holders)?;
    state.set_item("wall_ns", nanoseconds(output.wall))?;
    state.set_item("cpu_ns", nanoseconds(output.usage.cpu))?;
    state.set_item("max_rss", output.usage.max_rss)?;
    state.set_item("tree", output.tree.name())?;
    state.set_item("leftovers", leftovers)?;
    state.set_item("leftovers_unknown", output.leftovers_unknown)?;
    let limits: Vec<_> = output.limits.iter().map(limit_names).collect();
    state.set_item("limits", limits)?;
    state.set_item("limit", output.limit.as_ref().map(limit_names))?;
    state.set_item("started", output.started.name())?;
    state.set_item("input_refused", output.input_refused)?;
    state.set_item("cwd", output.cwd.as_ref().map(|cwd| cwd.as_os_str()))?;
    state.set_item("shell_exited", output.shell_exited)?;
    state.set_item("shell_status", output.shell_status.map(ExitStatusExt::into_raw))?;
    state.set_item("args", &reported.argv)?;
    state.set_item("stderr_merged", reported.stderr_merged)?;
    restored_by(py, "restore", (state,))
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ResultState {
    status: Option<i32>,
    status_lost: bool,
    stop: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    cuts: [(usize, usize, u64); 2],
    order: Option<Vec<u64>>,
    omitted_bytes: u64,
    seen_bytes: u64,
    spill: Option<(Option<OsString>, u64, Option<String>, i32)>,
    holders: Option<Vec<u32>>,
    wall_ns: u64,
    cpu_ns: u64,
    max_rss: u64,
    tree: String,
    leftovers: Vec<(u32, String, String)>,
    leftovers_unknown: bool,
    limits: Vec<(String, String)>,
    limit: Option<(String, String)>,
    started: String,
    input_refused: bool,
    cwd: Option<OsString>,
    shell_exited: bool,
    shell_status: Option<i32>,
    args: Vec<OsString>,
    stderr_merged: bool,
}

/// Returns the output and the reported arguments of a pickle.
///
/// # Errors
/// KeyError, TypeError, ValueError: this version did not write the pickle.
pub fn output(state: ResultState) -> PyResult<(Output, ReportedArguments)> {
    let marked = state.cuts.map(|(head, marker, _)| head.saturating_add(marker));
    if marked[0] > state.stdout.len() || marked[1] > state.stderr.len() {
        return Err(wrong_value(&"Result", "the pickled head is longer than the stream"));
    }
    let mut output = Output::empty();
    output.status = state.status.map(ExitStatus::from_raw);
    output.status_lost = state.status_lost;
    output.stop = value_named(Stop::ALL, Stop::name, &state.stop)?;
    output.stdout = state.stdout;
    output.stderr = state.stderr;
    output.set_cuts(state.cuts);
    output.set_order(state.order);
    output.omitted_bytes = state.omitted_bytes;
    output.seen_bytes = state.seen_bytes;
    output.spill = state.spill.map(|(path, bytes, end, errno)| {
        let end = match end.as_deref() {
            Some("whole") => SpillEnd::Whole,
            Some(_) => SpillEnd::Capped,
            None => SpillEnd::Failed(Errno::from_raw(errno)),
        };
        Spilled::new(path.map(|path| SpillFile::of_other_process(path.into())), bytes, end)
    });
    output.drain = state.holders.map_or(Drain::Eof, Drain::Cut);
    output.wall = Duration::from_nanos(state.wall_ns);
    output.usage = spawnfd::child::Usage::new(Duration::from_nanos(state.cpu_ns), state.max_rss);
    output.tree = value_named(Tier::ALL, Tier::name, &state.tree)?;
    let fate = |word: &str| value_named(Fate::ALL, Fate::name, word);
    let left = |(pid, name, word): (u32, String, String)| Ok(Leftover::new(pid, name, fate(&word)?));
    output.leftovers = state.leftovers.into_iter().map(left).collect::<PyResult<_>>()?;
    output.leftovers_unknown = state.leftovers_unknown;
    output.limits = state.limits.into_iter().map(limit).collect::<PyResult<_>>()?;
    output.limit = state.limit.map(limit).transpose()?;
    output.started = Started::from_name(&state.started).ok_or_else(|| unknown(&state.started))?;
    output.input_refused = state.input_refused;
    output.cwd = state.cwd.map(Into::into);
    output.shell_exited = state.shell_exited;
    output.shell_status = state.shell_status.map(ExitStatus::from_raw);
    let reported = ReportedArguments { argv: state.args, stderr_merged: state.stderr_merged };
    Ok((output, reported))
}
