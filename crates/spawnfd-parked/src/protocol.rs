// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between an owner and a parked process.
//!
//! Generated from `crates/spawnfd-parked/common/protocol.h`: edit that file and run `scripts/protocol.py`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The first field of every message.
pub const VERSION: u32 = 1;

/// The maximum size of a message, in bytes. The owner starts a program cold if its request is
/// longer.
pub const MAX_MESSAGE: usize = 131072;

/// The maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
pub const MAX_DESCRIPTORS: usize = 253;

/// The lowest descriptor number that a request can keep. Every program has descriptors 0 to 2.
pub const FIRST_DESCRIPTOR: usize = 3;

/// Environment variable by which the owner tells a program to park: the fields of `ParkField`,
/// separated by colons. Descriptors, device and inode are decimal numbers.
pub const PARK_VARIABLE: &str = "SPAWNFD_PARK";

/// Environment variable that lists the modules to import before parking, separated by commas.
pub const PRELOAD_VARIABLE: &str = "SPAWNFD_PRELOAD";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ParkField {
    /// The parked process's end of the pair.
    Socket = 0,
    /// A pidfd of the owner.
    Owner = 1,
    /// The shared object that LD_PRELOAD loads.
    Object = 2,
    /// The shared page.
    Page = 3,
    /// The executable to park in. Any other executable runs unchanged.
    Device = 4,
    Inode = 5,
    /// `Kind`.
    Kind = 6,
    /// `Mode`.
    Mode = 7,
    /// A file for output before parking; this field may be absent.
    Output = 8,
}

/// The number of values of [`ParkField`].
pub const PARK_COUNT: usize = 9;

impl ParkField {
    /// In the order of their numbers.
    pub const ALL: [ParkField; PARK_COUNT] = [
        ParkField::Socket,
        ParkField::Owner,
        ParkField::Object,
        ParkField::Page,
        ParkField::Device,
        ParkField::Inode,
        ParkField::Kind,
        ParkField::Mode,
        ParkField::Output,
    ];
}

/// The point at which a program parks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// main().
    Main = 109,
    /// After CPython has initialized.
    Python = 112,
    /// After Node.js has initialized.
    Node = 110,
}

/// How a parked process is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// The process itself becomes the program.
    Reserve = 114,
    /// As reserve, but a sandbox program starts the process.
    Sandbox = 115,
    /// Children of the process become programs.
    Fork = 102,
    /// Only for the zygote. It reports whether ld.so would preload the object into a program that
    /// is started in its place.
    Probe = 112,
}

/// Descriptors that the zygote inherits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Zygote {
    Socket = 3,
    Owner = 4,
    Page = 5,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ReplyKind {
    /// The process is parked. Text: names of variables, an empty string, names of files, an empty
    /// string, /proc/thread-self/status, and the security label (empty: none). A forked child sends
    /// its pidfd and no text.
    Parked = 0,
    /// The process cannot park. Text: the reason.
    Cannot = 1,
}

/// The only message from a parked process to its owner. Text follows.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Reply {
    pub version: u32,
    /// `ReplyKind`.
    pub kind: u32,
    pub pid: i32,
    /// capabilities(7).
    pub securebits: u32,
    /// Memory that the process shares with no other.
    pub private_bytes: u64,
}

/// A message from the owner to a parked process. The steps, the checks, `keep` descriptor numbers
/// (int32_t), and the strings follow. The strings are argv, environ, and paths, each with its NUL,
/// and the bytes that some steps need.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Request {
    pub version: u32,
    /// The request's number; see `Page`.
    pub serial: u32,
    /// Number of steps.
    pub steps: u32,
    /// Number of descriptors that come with the message.
    pub sources: u32,
    /// Number of descriptors above 2 that stay open.
    pub keep: u32,
    /// Number of arguments.
    pub argc: u32,
    /// Number of environment variables.
    pub envc: u32,
    /// Size of argv, in bytes.
    pub argv_length: u32,
    /// Size of environ, in bytes.
    pub env_length: u32,
    /// Size of all strings, in bytes.
    pub strings: u32,
    /// No step names this descriptor number or a higher one.
    pub above: i32,
    /// `FLAG_*`.
    pub flags: u32,
    /// The source to execute, or `NO_SOURCE`.
    pub program: i32,
    /// Path of the program to execute: an offset into the strings.
    pub path: u32,
    /// Number of checks.
    pub checks: u32,
    pub unused: u32,
}

/// The program gets the environment of the parked process.
pub const FLAG_OWN_ENVIRONMENT: u32 = 1;

/// The parked process forks a child that waits. The message carries the sources of `ForkSource` and
/// has no other content.
pub const FLAG_FORK: u32 = 2;

/// The forked child reports its private memory.
pub const FLAG_MEASURE: u32 = 4;
pub const FLAGS: u32 = 7;
pub const NO_SOURCE: i32 = -1;

/// A forked child's own connection to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ForkSource {
    Socket = 0,
    Page = 1,
}

/// The number of values of [`ForkSource`].
pub const FORK_COUNT: usize = 2;

/// The operation of one step. Each comment tells which fields of `Step` the operation uses. A
/// source is an index of the message's descriptors; `text` is an offset into the strings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Op {
    /// a: source, b: number.
    Place = 0,
    /// a: from, b: to; equal numbers: clear close-on-exec.
    Dup2 = 1,
    /// a: number.
    Close = 2,
    /// x: first, y: last.
    CloseRange = 3,
    /// a: source of the directory or `NO_SOURCE`, b: number, text: path, x y z: flags, mode and
    /// resolve of struct open_how.
    Open = 4,
    /// b: number.
    OpenNull = 5,
    /// a: number.
    Tcsetpgrp = 6,
    /// a: value.
    OomScoreAdj = 7,
    /// a: source, the directory of the cgroup.
    Cgroup = 8,
    /// a: source, b: number; only if both are the same file.
    Replace = 9,
    /// text: a `Capabilities`.
    Capabilities = 10,
    /// a: number of the system call, x y z: its arguments, b: the kind of each, `text`: bytes at
    /// the address of a `ARGUMENT_TEXT`. Further arguments are 0.
    Call = 11,
}

/// The number of values of [`Op`].
pub const OP_COUNT: usize = 12;

/// The kind of one argument of a system call, in two bits of `b`. The lowest bits are for the first
/// argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Argument {
    /// The number itself.
    Number = 0,
    /// The descriptor of this source.
    Source = 1,
    /// The address of the string at this offset.
    Text = 2,
    /// The last argument only: the address of `z`; `w` follows.
    Data = 3,
}

pub const ARGUMENTS: usize = 3;
pub const ARGUMENT_BITS: usize = 2;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Step {
    /// `Op`.
    pub op: u16,
    /// Index of the caller's action, for an error; or `CONTEXT`.
    pub index: u16,
    pub a: i32,
    pub b: i32,
    pub text: u32,
    pub x: u64,
    pub y: u64,
    pub z: u64,
    pub w: u64,
}

/// The index of a step that is not an action of the caller.
pub const CONTEXT: u16 = 65535;

/// Bit n stands for capability n.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Capabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
}

/// The conditions that must hold immediately before exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum CheckKind {
    /// The path names this file, unchanged.
    Same = 0,
    /// The source to execute is this file, unchanged.
    SameSource = 1,
    /// The path names no file that a PATH search would accept.
    Absent = 2,
}

/// The number of values of [`CheckKind`].
pub const CHECK_COUNT: usize = 3;

/// A condition, and the identity of the file that it requires, in the units of struct statx.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Check {
    /// `CheckKind`.
    pub kind: u32,
    /// An offset into the strings.
    pub path: u32,
    pub device_major: u32,
    pub device_minor: u32,
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
    pub ctime_nanoseconds: u32,
    pub mtime_nanoseconds: u32,
    pub unused: u32,
    pub inode: u64,
    pub size: u64,
    pub ctime: i64,
    pub mtime: i64,
}

pub const PAGE_SIZE: usize = 4096;

/// The state of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Claim {
    /// The owner has sent the request.
    Offered = 0,
    /// The owner confirms the request.
    Go = 1,
    /// The owner withdraws the request.
    Withdrawn = 2,
    /// The parked process carries the request out.
    Taken = 3,
    /// The parked process has become the program.
    Became = 4,
    /// A step failed, and the parked process exits.
    Failed = 5,
    /// The request is invalid; the parked process did nothing.
    Refused = 6,
}

/// The factor of the claim word: serial number of the request * `CLAIM_STATES` + state.
pub const CLAIM_STATES: usize = 8;

/// The maximum number of steps in the page.
pub const MAX_FIRST: usize = 24;

/// The owner sends a request before it has finished comparing itself with the parked process. The
/// parked process prepares meanwhile, without visible effect. The owner then writes the result of
/// the comparison into the page and sets the claim to `CLAIM_GO`.
#[derive(Debug)]
pub struct Page;

impl Page {
    /// Bytes of the struct.
    pub const SIZE: usize = 1216;

    // Offsets of the fields, in bytes.
    /// Serial number and `Claim`.
    pub const CLAIM: usize = 0;
    /// Pid of a forked child; the kernel writes it before the child runs.
    pub const CHILD: usize = 8;
    /// Errno of the failed step.
    pub const ERROR: usize = 12;
    /// Index of the failed step, or `NO_STEP`.
    pub const INDEX: usize = 16;
    /// Number of steps in the page; they run before those of the request.
    pub const FIRST: usize = 24;
    /// Signals to reset to the default action; bit n-1 for signal n.
    pub const MAKE_DEFAULT: usize = 32;
    /// Signals to ignore.
    pub const MAKE_IGNORED: usize = 40;
    /// Signals to block.
    pub const MASK: usize = 48;
    /// `REPORT_*`, in the page of a zygote.
    pub const REPORT: usize = 56;
    pub const STEPS: usize = 64;
}

/// The request failed before its first step.
pub const NO_STEP: u32 = 0xFFFFFFFF;

/// The zygote reports its progress like the children of the clone launcher: report.rs of
/// spawnfd-child. The owner writes PENDING. The zygote writes EXEC before exec; after a failure it
/// writes the stage, the index and the errno, shifted.
pub const REPORT_PENDING: u64 = 0x8000000000000000;
pub const REPORT_EXEC: u64 = 0;
pub const REPORT_STAGE_SHIFT: usize = 48;
pub const REPORT_INDEX_SHIFT: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Stage {
    Descriptors = 1,
    Action = 2,
    Check = 4,
    Exec = 6,
}
