// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports an ended run, as a small table or JSON.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::Serialize;
use spawnfd::child::Usage;
use spawnfd::internal::signal_name;
use spawnfd::job::{Drain, Fate, SpillEnd, Stop, Stream};
use spawnfd::options::{Call, find};
use spawnfd::{Child, Output};

use super::captured::{Capture, Ended};
use crate::failure::{Failure, eprint, print};
use crate::options::flag_name;
use crate::table;

/// The parts of the report, and its destination.
#[derive(Clone, Copy, Debug)]
pub struct RunReport {
    pub time: bool,
    pub json: bool,
    /// True if this command has captured the output and has not printed it yet.
    pub has_output: bool,
}

/// The time that starting the program took.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The time for finding and recording the executable, and for checking all arguments.
    pub prepare: Duration,
    /// The time from the call of `spawn` to the program's exec. `None` for a captured run.
    pub spawn: Option<Duration>,
}

/// The JSON of a run without capture or control of the process tree.
#[derive(Serialize)]
struct Simple<'a> {
    #[serde(flatten)]
    begun: Begun<'a>,
    ok: bool,
    code: Option<i32>,
    signal: Option<i32>,
    stop: &'static str,
    started: Cow<'static, str>,
    wall_seconds: f64,
    cpu_seconds: f64,
    max_rss_bytes: u64,
    spawn_seconds: Option<f64>,
    pid: u32,
}

/// The JSON of a run whose process tree is controlled.
#[derive(Serialize)]
struct Supervised<'a> {
    #[serde(flatten)]
    begun: Begun<'a>,
    #[serde(flatten)]
    output: &'a Output,
}

/// The program, and the time to prepare its start.
#[derive(Serialize)]
struct Begun<'a> {
    program: Cow<'a, str>,
    args: Vec<Cow<'a, str>>,
    prepare_seconds: f64,
}

impl<'a> Begun<'a> {
    fn of(argv: &'a [OsString], timing: Timing) -> Begun<'a> {
        Begun {
            program: argv[0].to_string_lossy(),
            args: argv.iter().map(|arg| arg.to_string_lossy()).collect(),
            prepare_seconds: timing.prepare.as_secs_f64(),
        }
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

impl RunReport {
    /// Reports a run without capture or control of the process tree.
    pub fn ended(
        self,
        argv: &[OsString],
        child: &Child,
        status: ExitStatus,
        wall: Duration,
        timing: Timing,
    ) -> Result<(), Failure> {
        let usage = child.usage().unwrap_or_default();
        if self.time {
            eprint(&table_of(ended(Some(status), Stop::Exited, ""), wall, usage, timing))?;
        }
        if self.json {
            self.write(&Simple {
                begun: Begun::of(argv, timing),
                ok: status.success(),
                code: status.code(),
                signal: status.signal(),
                stop: Stop::Exited.name(),
                started: child.started().name(),
                wall_seconds: wall.as_secs_f64(),
                cpu_seconds: usage.cpu.as_secs_f64(),
                max_rss_bytes: usage.max_rss,
                spawn_seconds: timing.spawn.map(|spawn| spawn.as_secs_f64()),
                pid: child.id(),
            })?;
        }
        Ok(())
    }

    /// Prints the captured output, unless it has been printed already, and reports the run.
    pub fn supervised(self, argv: &[OsString], flags: &Capture, run: &Ended, timing: Timing) -> Result<(), Failure> {
        let output = &run.output;
        let mut err = Vec::new();
        // If writing one stream fails, still write the other stream.
        let mut printed = Ok(());
        if self.json {
            printed = self.write(&Supervised { begun: Begun::of(argv, timing), output });
        } else if !self.has_output {
            notes(&mut err, flags, run);
        } else if let Some(pieces) = output.pieces() {
            for piece in pieces {
                printed = printed.and(match piece.stream {
                    Stream::Stdout => print(piece.bytes),
                    Stream::Stderr => eprint(piece.bytes),
                });
            }
            notes(&mut err, flags, run);
        } else {
            printed = print(&output.stdout);
            err.extend_from_slice(&output.stderr);
            notes(&mut err, flags, run);
        }
        if self.time {
            let without_status = if output.status_lost { "status unknown" } else { "still running" };
            let ended = ended(output.status, output.stop, without_status);
            err.extend(table_of(ended, output.wall, output.usage, timing));
        }
        printed.and(eprint(&err))
    }

    /// Reports a failure to run the program.
    pub fn failure(self, failure: &Failure) -> Result<(), Failure> {
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

    /// Writes one line of JSON: to standard output for a captured run, otherwise to standard error.
    fn write(self, value: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(value).map_err(|e| Failure::new(format!("--json: {e}")))?;
        line.push(b'\n');
        if self.has_output { print(&line) } else { eprint(&line) }
    }
}

/// Appends one line for each thing that the user should know about the run.
fn notes(err: &mut Vec<u8>, flags: &Capture, run: &Ended) {
    let output = &run.output;
    let mut note = |text: String| err.extend_from_slice(format!("spawnfd: {text}\n").as_bytes());
    if output.omitted_bytes > 0 && !flags.has_marker() && !flags.streams() {
        note(format!("omitted {} bytes from the middle of the output (--keep)", output.omitted_bytes));
    }
    if let Some(spill) = &output.spill {
        let why = match spill.end {
            SpillEnd::Failed(errno) => errno.name(),
            _ => "--spill-limit",
        };
        note(match (spill_path(output), spill.end) {
            (Some(path), SpillEnd::Whole) => format!("the complete output is in {path}"),
            (Some(path), _) => format!("the first {} bytes of the output are in {path} ({why})", spill.bytes),
            (None, _) => format!("could not create a file for the output ({why})"),
        });
    }
    for left in &output.leftovers {
        let fate = match left.fate {
            Fate::NotPermitted => "is still running: no permission to kill it",
            Fate::Uninterruptible => "is still running: SIGKILL had no effect",
            Fate::Adopted | Fate::Detached => "outlived the program: left running",
            _ => "outlived the program: killed",
        };
        note(format!("process {} ({}) {fate}", left.pid, left.name));
    }
    if output.leftovers_unknown {
        note(
            "could not look for processes that outlived the program: no free descriptor, or /proc unreadable"
                .to_owned(),
        );
    }
    if let Drain::Cut(pids) = &output.drain {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let holder = if pids.is_empty() { "another process".to_owned() } else { format!("process {}", pids.join(" ")) };
        note(format!("stopped reading the output, which {holder} still had open (--drain)"));
    }
    if output.status_lost {
        note(
            "the exit status is unknown: another waiter, or the kernel if SIGCHLD is ignored, reaped the program"
                .to_owned(),
        );
    }
    if let (Stop::Cancelled, Some(signal)) = (output.stop, run.ended_by) {
        let signal = signal_name(signal);
        note(format!("ended the program because this command received signal {signal}"));
    } else if let Some(reason) = output.reason() {
        let flag = match output.limit {
            Some(limit) => Some(Capture::flag_of(limit.resource)),
            None => find(Call::Run, output.stop.name()).map(|option| format!("--{}", flag_name(option.name))),
        };
        note(format!("the program {reason}{}", flag.map(|flag| format!(" ({flag})")).unwrap_or_default()));
    }
}

/// Describes how a program ended, in a few words.
fn ended(status: Option<ExitStatus>, stop: Stop, without_status: &str) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        _ if stop == Stop::Timeout => "timed out".to_owned(),
        _ if stop == Stop::IdleTimeout => "no output".to_owned(),
        None => without_status.to_owned(),
        Some((Some(code), _)) => format!("exit {code}"),
        Some((None, signal)) => format!("signal {}", signal_name(signal.unwrap_or(0))),
    }
}

fn table_of(ended: String, wall: Duration, usage: Usage, timing: Timing) -> Vec<u8> {
    let mut rows = vec![("ended", ended), ("wall", table::duration(wall)), ("user+sys", table::duration(usage.cpu))];
    rows.push(("max rss", table::size(usage.max_rss)));
    rows.push(("prepare", table::duration(timing.prepare)));
    if let Some(spawn) = timing.spawn {
        rows.push(("spawn", table::duration(spawn)));
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    table::align(&rows).into_bytes()
}
