// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between an owner and a parked process.
//!
//! Generated from `common/protocol.h` by the repository's `protocol.py`. Do not edit.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The version of the protocol: the first field of every message.
pub const VERSION: u32 = 1;

/// The maximum size of a message, in bytes. The owner starts a program cold if its request is
/// longer.
pub const MAX_MESSAGE: usize = 131072;

/// The maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
pub const MAX_DESCRIPTORS: usize = 253;

/// The lowest descriptor number that a request can keep. Every program has descriptors 0 to 2.
pub const FIRST_DESCRIPTOR: usize = 3;

/// The environment variable by which the owner tells a program to park. Its value has the fields of
/// `ParkField`, separated by colons. Descriptors, device and inode are decimal.
pub const PARK_VARIABLE: &str = "SPAWNFD_PARK";

/// The environment variable with the modules that the program imports before it parks. Commas
/// separate the names.
pub const PRELOAD_VARIABLE: &str = "SPAWNFD_PRELOAD";

/// The environment variable with the entry point: the script or module that every request runs. Its
/// value is the absolute path of a script, or "-m " and the name of a module.
pub const ENTRY_VARIABLE: &str = "SPAWNFD_ENTRY";

/// The environment variable that says that every request has the working directory in which the
/// process parks. Its value is "1". Without this variable, each request may have another one.
pub const SAME_DIRECTORY_VARIABLE: &str = "SPAWNFD_SAME_DIRECTORY";

/// The fields of the value of `PARK_VARIABLE`, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ParkField {
    /// Descriptor of the parked process's end of the socket pair.
    Socket = 0,
    /// Descriptor of a pidfd that refers to the owner.
    Owner = 1,
    /// Descriptor of the shared object that LD_PRELOAD loads.
    Object = 2,
    /// Descriptor of the shared page.
    Page = 3,
    /// Device of the executable that parks. Any other executable runs unchanged.
    Device = 4,
    /// Inode of the executable that parks.
    Inode = 5,
    /// `Kind`: the point at which the program parks.
    Kind = 6,
    /// `Mode`: how the owner uses the parked process.
    Mode = 7,
    /// Descriptor of a file for output before parking; may be absent.
    Output = 8,
}

/// The number of values of [`ParkField`].
pub const PARK_COUNT: usize = 9;

impl ParkField {
    /// All values, in ascending order.
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
    /// The program parks at the start of main().
    Main = 109,
    /// The program parks after CPython has initialized.
    Python = 112,
    /// The program parks after Node.js has initialized.
    Node = 110,
}

/// How the owner uses a parked process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// The parked process itself becomes the program.
    Reserve = 114,
    /// As RESERVE, but a sandbox program starts the process.
    Sandbox = 115,
    /// The parked process forks, and a child becomes the program.
    Fork = 102,
    /// Only the zygote has this mode. It reports whether ld.so would preload the shared object into
    /// a program that the owner starts in place of the zygote.
    Probe = 112,
}

/// The numbers of the descriptors that the zygote inherits. The zygote is a parked process without
/// libc that can execute any program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Zygote {
    Socket = 3,
    Owner = 4,
    Page = 5,
}

/// The content of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ReplyKind {
    /// The process is parked. The text has names of variables, an empty string, names of files, an
    /// empty string, names of modules, an empty string, /proc/thread-self/status, and the security
    /// label, which may be empty. The program's first import path must have none of the modules. A
    /// forked child sends its pidfd and no text.
    Parked = 0,
    /// The process cannot park. The text is the reason.
    Cannot = 1,
}

/// The only message from a parked process to its owner. A text follows this struct.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Reply {
    pub version: u32,
    /// `ReplyKind`: whether the process is parked.
    pub kind: u32,
    /// Pid of the parked process.
    pub pid: i32,
    /// Secure bits of the parked process; see capabilities(7).
    pub securebits: u32,
    /// Size of the parked process's private memory, in bytes.
    pub private_bytes: u64,
}

/// A message from the owner to a parked process. After this struct, the message has the steps, the
/// checks, `keep` descriptor numbers (int32_t), and the strings. The strings are argv, environ, and
/// paths, each with its NUL, and the bytes that some steps need.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Request {
    pub version: u32,
    /// The request's number; see `Page`.
    pub serial: u32,
    /// Number of steps in the message.
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
    /// Bits of `FLAGS`.
    pub flags: u32,
    /// The source to execute, or `NO_SOURCE`.
    pub program: i32,
    /// Path of the program to execute: an offset into the strings.
    pub path: u32,
    /// Number of checks in the message.
    pub checks: u32,
    /// Bit n: a seccomp filter kills the process for member n of `Call`.
    pub killed: u32,
}

/// The calls of a parked process for which a seccomp filter may kill the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Call {
    /// Replaced by close().
    CloseRange = 0,
    /// Replaced by openat(), unless `resolve` is set.
    Openat2 = 1,
    /// Replaced by newfstatat().
    Statx = 2,
    /// Replaced by faccessat(), which checks the real ids.
    Faccessat2 = 3,
    /// Not replaced: exec fails with EPERM.
    Execveat = 4,
}

/// The program gets the environment of the parked process.
pub const FLAG_OWN_ENVIRONMENT: u32 = 1;

/// The parked process forks a child, and the child waits for a request of its own. The message
/// carries the sources of `ForkSource` and has no other content.
pub const FLAG_FORK: u32 = 2;

/// The forked child reports the size of its private memory to the owner.
pub const FLAG_MEASURE: u32 = 4;
pub const FLAGS: u32 = 7;

/// Stands for a missing source.
pub const NO_SOURCE: i32 = -1;

/// The descriptors in a fork request: the new child's own connection to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ForkSource {
    Socket = 0,
    Page = 1,
}

/// The number of values of [`ForkSource`].
pub const FORK_COUNT: usize = 2;

/// The operation of one step. `a`, `b`, `text` and `x` to `z` are fields of `Step`. A source is an
/// index of the message's descriptors. `text` is an offset into the strings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Op {
    /// Closes descriptors `x` to `y`.
    CloseRange = 0,
    /// Opens the path at `text` as descriptor `b`. `a` is the source of the directory, or
    /// `NO_SOURCE`. `x`, `y` and `z` are flags, mode and resolve of struct open_how.
    Open = 1,
    /// Puts the process group in the foreground of terminal `a`.
    Tcsetpgrp = 2,
    /// Writes `a` to /proc/self/oom_score_adj.
    OomScoreAdj = 3,
    /// Enters the cgroup whose directory is source `a`.
    Cgroup = 4,
    /// Duplicates source `a` to `b` if `b` is open on the same file.
    Replace = 5,
    /// Limits the sets to the `Capabilities` at `text`.
    Capabilities = 6,
    /// Makes system call `a` with the arguments `x`, `y`, `z`, 0, 0 and 0. `b` has the kind of each
    /// argument. `text` is the size of the data of a `ARGUMENT_TEXT`, in bytes.
    Call = 7,
}

/// The number of values of [`Op`].
pub const OP_COUNT: usize = 8;

/// The kind of one argument of a system call: two bits of the step's `b`. The lowest two bits are
/// for the first argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Argument {
    /// The argument is this number itself.
    Number = 0,
    /// The argument is the descriptor of this source.
    Source = 1,
    /// The argument is the address of the string at this offset.
    Text = 2,
    /// The last argument is the address of the step's `z` and `w`.
    Data = 3,
}

/// The number of arguments in a step, and the size of an argument's kind in bits.
pub const ARGUMENTS: usize = 3;
pub const ARGUMENT_BITS: usize = 2;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Step {
    /// `Op`: says which of the other fields the step uses.
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

/// A condition that must hold immediately before exec.
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

/// A condition, and the identity of the file that the condition requires. The fields have the units
/// of struct statx.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Check {
    /// `CheckKind`: the condition.
    pub kind: u32,
    /// The file's path: an offset into the strings.
    pub path: u32,
    pub device_major: u32,
    pub device_minor: u32,
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
    pub ctime_nanoseconds: u32,
    pub mtime_nanoseconds: u32,
    /// Keeps the struct free of padding.
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
pub enum Handshake {
    /// The owner has sent the request.
    Requested = 0,
    /// The owner confirms the request.
    Committed = 1,
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

/// The handshake word is the serial number of the request * `HANDSHAKE_STATES` + the state.
pub const HANDSHAKE_STATES: usize = 8;

/// The maximum number of steps in the page.
pub const MAX_FIRST: usize = 24;

/// The page that owner and parked process share. The owner sends a request before it has finished
/// comparing itself with the parked process. During the comparison the parked process prepares,
/// without visible effect. The owner then writes the result of the comparison into the page and
/// sets the handshake to `HANDSHAKE_COMMITTED`.
#[derive(Debug)]
pub struct Page;

impl Page {
    /// Bytes of the struct.
    pub const SIZE: usize = 1208;

    // Offsets of the fields, in bytes.
    /// Serial number and `Handshake`.
    pub const HANDSHAKE: usize = 0;
    /// Pid of a forked child; the kernel writes it before the child runs.
    pub const CHILD: usize = 8;
    /// Keeps the struct free of padding.
    pub const UNUSED: usize = 12;
    /// Number of steps in the page; they run before those of the request.
    pub const FIRST: usize = 16;
    /// Signals to reset to the default action; bit n-1 for signal n.
    pub const MAKE_DEFAULT: usize = 24;
    /// Signals to ignore.
    pub const MAKE_IGNORED: usize = 32;
    /// Signals to block.
    pub const MASK: usize = 40;
    /// Progress and failure: `REPORT_*`.
    pub const REPORT: usize = 48;
    pub const STEPS: usize = 56;
}

/// The parts of `report` in `Page`. The owner writes PENDING. Before each stage, the parked process
/// writes PENDING with the stage and the index, both shifted. After a failure it writes the same
/// with an errno instead of PENDING. A zygote writes EXEC before exec. A child of a cold start
/// reports in the same way: report.rs of spawnfd-child.
pub const REPORT_PENDING: u64 = 0x8000000000000000;
pub const REPORT_EXEC: u64 = 0;
pub const REPORT_STAGE_SHIFT: usize = 48;
pub const REPORT_INDEX_SHIFT: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Stage {
    Descriptors = 1,
    /// The index is that of the step.
    Action = 2,
    /// The index is that of the check.
    Check = 4,
    Exec = 6,
}
