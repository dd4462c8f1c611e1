// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports an ended run, as a small table or JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::Serialize;
use spawnfd::{Child, Drain, Fate, Output, SpillEnd, Stop, Usage};

use super::names::signal_name;
use crate::failure::{Failure, complain, print};
use crate::table;

/// The parts of the report, and its destination.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub time: bool,
    pub json: bool,
    pub captured: bool,
}

/// The time that the start of the program took.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Finding and recording the executable, and checking all arguments.
    pub template: Duration,
    /// From the call to the program's exec; unknown for a captured run.
    pub spawn: Option<Duration>,
}

/// Returns the exit code for a status: the program's own, or 128 and the signal's number.
pub fn code(status: ExitStatus) -> u8 {
    let signalled = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(signalled)).unwrap_or(u8::MAX)
}

#[derive(Serialize)]
struct Result<'a> {
    program: &'a str,
    ok: bool,
    code: Option<i32>,
    signal: Option<i32>,
    stop: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    started: Cow<'static, str>,
    wall_seconds: f64,
    cpu_seconds: f64,
    max_rss_bytes: u64,
    template_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    spawn_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    streams: Option<Streams<'a>>,
}

#[derive(Serialize)]
struct Streams<'a> {
    stdout: &'a str,
    stderr: &'a str,
    omitted_bytes: u64,
    seen_bytes: u64,
    spill_path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spilled: Option<Spilled>,
    input_refused: bool,
    tree: String,
    tree_complete: bool,
    /// The enforcer of each limit.
    limits: BTreeMap<String, String>,
    leftovers: Vec<Leftover<'a>>,
    leftovers_unknown: bool,
    drain: String,
    status_lost: bool,
}

/// A process that was not ended with the run.
#[derive(Serialize)]
struct Leftover<'a> {
    pid: u32,
    name: &'a str,
    fate: &'static str,
}

impl<'a> From<&'a spawnfd::Leftover> for Leftover<'a> {
    fn from(left: &'a spawnfd::Leftover) -> Leftover<'a> {
        Leftover { pid: left.pid, name: &left.name, fate: left.fate.name() }
    }
}

/// The outcome of the spill file.
#[derive(Serialize)]
struct Spilled {
    bytes: u64,
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<&'static str>,
}

impl Spilled {
    fn of(output: &Output) -> Option<Spilled> {
        let spilled = output.spill.as_ref()?;
        let (end, errno) = match spilled.end {
            SpillEnd::Whole => ("whole", None),
            SpillEnd::Capped => ("capped", None),
            SpillEnd::Failed(errno) => ("failed", Some(errno.name())),
            _ => ("failed", None),
        };
        Some(Spilled { bytes: spilled.bytes, end, errno })
    }
}

fn spill_path(output: &Output) -> Option<Cow<'_, str>> {
    Some(output.spill.as_ref()?.file.as_ref()?.path().to_string_lossy())
}

#[derive(Serialize)]
struct Problem<'a> {
    message: &'a str,
    exit_code: u8,
    argument: Option<&'a str>,
    stage: Option<&'static str>,
    action: Option<usize>,
    errno: Option<&'static str>,
    call: Option<&'a str>,
}

impl Report {
    /// Reports an uncaptured run.
    pub fn ended(
        self,
        name: &OsStr,
        child: &Child,
        status: ExitStatus,
        wall: Duration,
        timing: Timing,
    ) -> std::result::Result<(), Failure> {
        let usage = child.usage().unwrap_or_default();
        if self.time {
            complain(&table_of(ended(Some(status), Stop::Exited, ""), wall, usage, timing))?;
        }
        if self.json {
            self.write(&Result {
                program: &name.to_string_lossy(),
                ok: status.success(),
                code: status.code(),
                signal: status.signal(),
                stop: Stop::Exited.name(),
                limit: None,
                started: child.started().name(),
                wall_seconds: wall.as_secs_f64(),
                cpu_seconds: usage.cpu.as_secs_f64(),
                max_rss_bytes: usage.max_rss,
                template_seconds: timing.template.as_secs_f64(),
                spawn_seconds: timing.spawn.map(|spawn| spawn.as_secs_f64()),
                pid: Some(child.id()),
                streams: None,
            })?;
        }
        Ok(())
    }

    /// Prints the output of a captured run, and reports the run.
    pub fn captured(self, name: &OsStr, output: &Output, timing: Timing) -> std::result::Result<(), Failure> {
        let mut err = Vec::new();
        let printed;
        let cut = match &output.drain {
            Drain::Cut(pids) => Some(pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
            _ => None,
        };
        if self.json {
            printed = self.write(&Result {
                program: &name.to_string_lossy(),
                ok: output.ok(),
                code: output.code(),
                signal: output.signal(),
                stop: output.stop.name(),
                limit: output.limit.map(|limit| limit.to_string()),
                started: output.started.name(),
                wall_seconds: output.wall.as_secs_f64(),
                cpu_seconds: output.usage.cpu.as_secs_f64(),
                max_rss_bytes: output.usage.max_rss,
                template_seconds: timing.template.as_secs_f64(),
                spawn_seconds: None,
                pid: None,
                streams: Some(Streams {
                    stdout: &output.text(),
                    stderr: &output.error_text(),
                    omitted_bytes: output.omitted_bytes,
                    seen_bytes: output.seen_bytes,
                    spill_path: spill_path(output),
                    spilled: Spilled::of(output),
                    input_refused: output.input_refused,
                    tree: output.tree.to_string(),
                    tree_complete: output.tree.is_complete(),
                    limits: output
                        .limits
                        .iter()
                        .map(|limit| (limit.resource.to_string(), limit.by.to_string()))
                        .collect(),
                    leftovers: output.leftovers.iter().map(Leftover::from).collect(),
                    leftovers_unknown: output.leftovers_unknown,
                    drain: cut.map_or_else(|| "eof".to_owned(), |pids| format!("cut: {pids}").trim_end().to_owned()),
                    status_lost: output.status_lost,
                }),
            });
        } else {
            // If writing one stream fails, still write the other one.
            printed = print(&output.stdout);
            err.extend_from_slice(&output.stderr);
            if output.omitted_bytes > 0 {
                let _ = writeln!(err, "spawnfd: {} bytes in the middle were not kept (--keep)", output.omitted_bytes);
            }
            if let Some(spill) = &output.spill {
                let why = match spill.end {
                    SpillEnd::Failed(errno) => errno.name(),
                    _ => "--spill-limit",
                };
                let _ = match (spill_path(output), spill.end) {
                    (Some(path), SpillEnd::Whole) => writeln!(err, "spawnfd: all of it is in {path}"),
                    (Some(path), _) => writeln!(err, "spawnfd: the first {} bytes are in {path} ({why})", spill.bytes),
                    (None, _) => writeln!(err, "spawnfd: no file could be made for it ({why})"),
                };
            }
            for left in &output.leftovers {
                let fate = match left.fate {
                    Fate::NotPermitted => "still runs: no permission to kill it",
                    Fate::Uninterruptible => "still runs: SIGKILL had no effect",
                    Fate::Adopted | Fate::Detached => "outlived it: left alone",
                    _ => "outlived it: killed",
                };
                let _ = writeln!(err, "spawnfd: process {} ({}) {fate}", left.pid, left.name);
            }
            if output.leftovers_unknown {
                let _ = writeln!(err, "spawnfd: somebody may have outlived it: it could not be looked");
            }
            if let Some(pids) = cut {
                let who = if pids.is_empty() { "somebody".to_owned() } else { format!("process {pids}") };
                let _ = writeln!(err, "spawnfd: {who} still had the output open; it was cut (--drain)");
            }
            if output.status_lost {
                let _ = writeln!(err, "spawnfd: how it ended is not known: somebody else has taken its status");
            }
            match output.stop {
                Stop::Timeout => {
                    let _ = writeln!(err, "spawnfd: ended when its time was over");
                }
                Stop::Cancelled => {
                    let _ = writeln!(err, "spawnfd: ended as this command was told to end");
                }
                Stop::OutputLimit => {
                    let _ = writeln!(err, "spawnfd: ended when it had written too much (--output-limit)");
                }
                Stop::Limit => {
                    let limit = output.limit.map(|limit| limit.to_string()).unwrap_or_default();
                    let _ = writeln!(err, "spawnfd: it reached its limit of {limit}");
                }
                _ => {}
            }
        }
        if self.time {
            let without_status = if output.status_lost { "status lost" } else { "still running" };
            let ended = ended(output.status, output.stop, without_status);
            err.extend(table_of(ended, output.wall, output.usage, timing));
        }
        printed.and(complain(&err))
    }

    /// Reports a failure to run the program.
    pub fn failure(self, failure: &Failure) -> std::result::Result<(), Failure> {
        let source = failure.source.as_ref();
        let problem = Problem {
            message: &failure.message,
            exit_code: failure.code,
            argument: failure.flag.as_deref(),
            stage: source.map(|error| error.stage().name()),
            action: source.and_then(spawnfd::Error::action),
            errno: source.map(|error| error.errno().name()),
            call: source.map(spawnfd::Error::call),
        };
        self.write(&serde_json::json!({ "error": problem }))
    }

    /// Writes one line of JSON to the stream that has no output of the program.
    fn write(self, value: &impl Serialize) -> std::result::Result<(), Failure> {
        let mut line = serde_json::to_vec(value).map_err(|e| Failure::new(format!("--json: {e}")))?;
        line.push(b'\n');
        if self.captured { print(&line) } else { complain(&line) }
    }
}

/// Describes how a program ended, in a few words.
fn ended(status: Option<ExitStatus>, stop: Stop, without_status: &str) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        _ if stop == Stop::Timeout => "time over".to_owned(),
        None => without_status.to_owned(),
        Some((Some(code), _)) => format!("exit {code}"),
        Some((None, signal)) => format!("signal {}", signal_name(signal.unwrap_or(0))),
    }
}

fn table_of(ended: String, wall: Duration, usage: Usage, timing: Timing) -> Vec<u8> {
    let mut rows = vec![("ended", ended), ("wall", table::duration(wall)), ("user+sys", table::duration(usage.cpu))];
    rows.push(("max rss", table::size(usage.max_rss)));
    rows.push(("template", table::duration(timing.template)));
    if let Some(spawn) = timing.spawn {
        rows.push(("spawn", table::duration(spawn)));
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    table::align(&rows).into_bytes()
}
