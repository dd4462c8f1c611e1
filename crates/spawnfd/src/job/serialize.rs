// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serializes a run's result: the definition of the command's `--json` and of Python's `Result.to_dict()`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::{Leftover, Omitted, Output, SpillEnd, Stream};

#[derive(Serialize)]
struct View<'a> {
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
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Vec<Piece>>,
    omitted_bytes: u64,
    omitted: BothOmitted,
    seen_bytes: u64,
    spill_path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spilled: Option<Spilled>,
    input_refused: bool,
    tree: &'static str,
    tree_complete: bool,
    limits: BTreeMap<&'static str, &'static str>,
    leftovers: &'a [Leftover],
    leftovers_unknown: bool,
    drain: String,
    status_lost: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "is_false")]
    shell_exited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell_code: Option<i32>,
}

/// A piece of a combined run's output.
#[derive(Serialize)]
struct Piece {
    stream: &'static str,
    text: String,
    #[serde(skip_serializing_if = "is_zero")]
    omitted: u64,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize)]
struct BothOmitted {
    stdout: Omitted,
    stderr: Omitted,
}

/// The spill file's length, and how writing it ended.
#[derive(Serialize)]
struct Spilled {
    bytes: u64,
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<&'static str>,
}

impl<'a> View<'a> {
    fn of(output: &'a Output, has_text: bool) -> View<'a> {
        View {
            ok: output.ok(),
            code: output.code(),
            signal: output.signal(),
            stop: output.stop.name(),
            limit: output.limit.map(|limit| limit.to_string()),
            started: output.started.name(),
            wall_seconds: output.wall.as_secs_f64(),
            cpu_seconds: output.usage.cpu.as_secs_f64(),
            max_rss_bytes: output.usage.max_rss,
            stdout: has_text.then(|| output.stdout_text()),
            stderr: has_text.then(|| output.stderr_text()),
            output: if has_text { pieces(output) } else { None },
            omitted_bytes: output.omitted_bytes,
            omitted: BothOmitted { stdout: output.omitted(Stream::Stdout), stderr: output.omitted(Stream::Stderr) },
            seen_bytes: output.seen_bytes,
            spill_path: spill_path(output),
            spilled: output.spill.as_ref().map(Spilled::of),
            input_refused: output.input_refused,
            tree: output.tree.name(),
            tree_complete: output.tree.is_complete(),
            limits: output.limits.iter().map(|limit| (limit.resource.name(), limit.by.name())).collect(),
            leftovers: &output.leftovers,
            leftovers_unknown: output.leftovers_unknown,
            drain: output.drain.to_string(),
            status_lost: output.status_lost,
            cwd: output.cwd.as_ref().map(|cwd| cwd.to_string_lossy()),
            shell_exited: output.shell_exited,
            shell_code: output.shell_code(),
        }
    }
}

impl Piece {
    fn of(piece: super::Piece<'_>) -> Piece {
        Piece { stream: piece.stream.name(), text: piece.text, omitted: piece.omitted }
    }
}

impl Spilled {
    fn of(spilled: &super::Spilled) -> Spilled {
        let (end, errno) = match spilled.end {
            SpillEnd::Whole => ("whole", None),
            SpillEnd::Capped => ("capped", None),
            SpillEnd::Failed(errno) => ("failed", Some(errno.name())),
        };
        Spilled { bytes: spilled.bytes, end, errno }
    }
}

fn pieces(output: &Output) -> Option<Vec<Piece>> {
    Some(output.pieces()?.into_iter().map(Piece::of).collect())
}

fn spill_path(output: &Output) -> Option<Cow<'_, str>> {
    Some(output.spill.as_ref()?.file.as_ref()?.path().to_string_lossy())
}

/// Serializes as a map. The section "JSON" of `spawnfd run --help` lists the keys. Program output is text in which
/// invalid bytes have become U+FFFD.
impl Serialize for Output {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        View::of(self, true).serialize(serializer)
    }
}

/// A result without `stdout`, `stderr` and `output`, whose decoding may take long.
#[derive(Debug)]
pub struct Details<'a>(pub &'a Output);

impl Serialize for Details<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        View::of(self.0, false).serialize(serializer)
    }
}
