// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options that a call passes to a [`Command`](crate::Command), or that concern the call itself.

use crate::option::{Call, Group, Kind, OptionSpec, Value, Word};

const STDIN: &[Word] = &[
    ("null", "The program reads an empty file."),
    ("inherit", "The program reads the standard input of this process."),
    ("stream", "The program reads what the caller writes."),
];

/// Only a job has a caller that writes.
const RUN_STDIN: &[Word] = &[STDIN[0], STDIN[1]];

/// A command of a session cannot inherit the streams of this process.
const COMMAND_STDIN: &[Word] = &[STDIN[0], STDIN[2]];

const STDOUT: &[Word] = &[
    ("capture", "The library reads the stream."),
    ("null", "The stream is discarded."),
    ("inherit", "The stream is the standard output of this process."),
];

const STDERR: &[Word] = &[
    ("separate", "The library reads the stream."),
    ("merge", "The stream is part of standard output."),
    ("null", "The stream is discarded."),
    ("inherit", "The stream is the standard error of this process."),
];

/// A session has no stream that is null or inherited.
const SESSION_STDERR: &[Word] = &[STDERR[0], STDERR[1]];

const SPAWN: &[Word] = &[
    ("inherit", "The stream is that of this process."),
    ("null", "The stream is empty, or is discarded."),
    ("pipe", "The stream is a pipe to this process."),
];

const SPAWN_STDERR: &[Word] = &[SPAWN[0], SPAWN[1], SPAWN[2], STDERR[1]];

macro_rules! rows {
    ($($(#[doc = $doc:literal])+ $name:ident = $default:expr; $kind:expr, $optional:literal, $group:ident, [$($call:ident),+];)+) => {
        pub(super) const OPTIONS: &[OptionSpec] = &[$(
            OptionSpec {
                name: stringify!($name),
                kind: $kind,
                optional: $optional,
                group: Group::$group,
                calls: &[$(Call::$call),+],
                default: || $default,
                doc: concat!($($doc, "\n"),+),
            },
        )+];
    };
}

rows! {
    /// The program's working directory. A relative program such as `./configure` starts here, and so do relative and empty
    /// parts of PATH. Do not pass `/proc/self/fd/N`: the child resolves paths, with its own descriptor numbers.
    cwd = Value::None; Kind::Path, true, Program, [Spawn, Run, Start];
    /// The directory in which the shell starts.
    cwd = Value::None; Kind::Path, true, Session, [Session];
    /// The directory of this command alone. Afterwards the shell returns to the session's directory. If the directory
    /// cannot be entered, the code is that of `cd`. If the call has to start a shell in a directory that is gone, the
    /// shell starts in this one, which must be absolute.
    cwd = Value::None; Kind::Path, true, Program, [Command];
    /// The program's environment. By default it is a copy of the environment of this process.
    env = Value::None; Kind::Object, true, Program, [Spawn, Run, Start];
    /// The shell's environment. By default it is a copy of the environment of this process.
    env = Value::None; Kind::Object, true, Session, [Session];
    /// Variables of this command alone, which it has besides the session's variables.
    env = Value::None; Kind::Object, true, Program, [Command];
    /// The program's standard input.
    stdin = "inherit".into(); Kind::Stream(SPAWN), true, Program, [Spawn];
    /// The program's standard input, in place of [`input`](crate::Run::input).
    stdin = "null".into(); Kind::Stream(RUN_STDIN), true, Program, [Run];
    /// The program's standard input, in place of [`input`](crate::Run::input).
    stdin = "null".into(); Kind::Stream(STDIN), true, Program, [Start];
    /// The command's standard input.
    stdin = "null".into(); Kind::Stream(COMMAND_STDIN), true, Program, [Command];
    /// The program's standard output.
    stdout = "inherit".into(); Kind::Stream(SPAWN), true, Program, [Spawn];
    /// The program's standard output.
    stdout = "capture".into(); Kind::Stream(STDOUT), true, Program, [Run, Start];
    /// The program's standard error.
    stderr = "inherit".into(); Kind::Stream(SPAWN_STDERR), true, Program, [Spawn];
    /// The program's standard error.
    stderr = "separate".into(); Kind::Stream(STDERR), true, Program, [Run, Start];
    /// Whether the standard error of each command is part of its standard output.
    stderr = "separate".into(); Kind::Stream(SESSION_STDERR), true, Session, [Session];
    /// Further steps of the child before exec, in this order. The page on actions lists them.
    actions = Value::None; Kind::Object, true, Program, [Spawn, Run, Start];
    /// The program's `argv[0]`. By default it is the name of the program in the call.
    arg0 = Value::None; Kind::Path, true, Program, [Spawn, Run, Start];
    /// A command that finds and starts the program in confinement. The directory, environment, actions and `arg0` apply
    /// to that command, which passes them on. Each call opens the sandbox's files again (EACCES if access is no longer
    /// permitted).
    sandbox = Value::None; Kind::Object, true, Program, [Spawn, Run, Start];
    /// If it has a suitable parked process, the program starts from that process.
    warm = Value::None; Kind::Object, true, Program, [Spawn, Run, Start, Session];
    /// The number of bytes of the latest output, of both streams, that can still be read while the job runs, and that may
    /// be pending as events. At least 64 KiB may be pending as events.
    window = Value::Integer(1 << 20); Kind::Bytes, false, Output, [Start, Command];
    /// Whether the program blocks, once [`window`](crate::Run::window) bytes are pending, until the caller reads events. By
    /// default, the oldest pending bytes are dropped.
    hold = Value::Bool(false); Kind::Flag, false, Output, [Start];
}
