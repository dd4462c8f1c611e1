# SPDX-License-Identifier: MIT OR Apache-2.0
"""The protocol between an owner and a parked process.

Generated from crates/spawnfd-parked/common/protocol.h: edit that file and run scripts/protocol.py.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import ClassVar

# The version of the protocol: the first field of every message.
VERSION = 1
# The maximum size of a message, in bytes. The owner starts a program cold if its request is longer.
MAX_MESSAGE = 131072
# The maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
MAX_DESCRIPTORS = 253
# The lowest descriptor number that a request can keep. Every program has descriptors 0 to 2.
FIRST_DESCRIPTOR = 3
# The environment variable by which the owner tells a program to park. Its value has the fields of
# ParkField, separated by colons. Descriptors, device and inode are decimal.
PARK_VARIABLE = "SPAWNFD_PARK"
# The environment variable with the modules that the program imports before it parks. Commas
# separate the names.
PRELOAD_VARIABLE = "SPAWNFD_PRELOAD"
# The environment variable with the entry point: the script or module that every request runs. Its
# value is the absolute path of a script, or "-m " and the name of a module.
ENTRY_VARIABLE = "SPAWNFD_ENTRY"
# The environment variable that says that every request has the working directory in which the
# process parks. Its value is "1". Without this variable, each request may have another one.
SAME_DIRECTORY_VARIABLE = "SPAWNFD_SAME_DIRECTORY"


class ParkField(enum.IntEnum):
    """The fields of the value of PARK_VARIABLE, in their order."""

    # Descriptor of the parked process's end of the socket pair.
    SOCKET = 0
    # Descriptor of a pidfd that refers to the owner.
    OWNER = 1
    # Descriptor of the shared object that LD_PRELOAD loads.
    OBJECT = 2
    # Descriptor of the shared page.
    PAGE = 3
    # Device of the executable that parks. Any other executable runs unchanged.
    DEVICE = 4
    # Inode of the executable that parks.
    INODE = 5
    # Kind: the point at which the program parks.
    KIND = 6
    # Mode: how the owner uses the parked process.
    MODE = 7
    # Descriptor of a file for output before parking; may be absent.
    OUTPUT = 8


class Kind(enum.IntEnum):
    """The point at which a program parks."""

    # The program parks at the start of main().
    MAIN = 109
    # The program parks after CPython has initialized.
    PYTHON = 112
    # The program parks after Node.js has initialized.
    NODE = 110


class Mode(enum.IntEnum):
    """How the owner uses a parked process."""

    # The parked process itself becomes the program.
    RESERVE = 114
    # As RESERVE, but a sandbox program starts the process.
    SANDBOX = 115
    # The parked process forks, and a child becomes the program.
    FORK = 102
    # Only the zygote has this mode. It reports whether ld.so would preload the shared object into a
    # program that the owner starts in place of the zygote.
    PROBE = 112


class Zygote(enum.IntEnum):
    """
    The numbers of the descriptors that the zygote inherits. The zygote is a parked process
    without libc that can execute any program.
    """

    SOCKET = 3
    OWNER = 4
    PAGE = 5


class ReplyKind(enum.IntEnum):
    """The content of a reply."""

    # The process is parked. The text has names of variables, an empty string, names of files, an
    # empty string, names of modules, an empty string, /proc/thread-self/status, and the security
    # label, which may be empty. The program's first import path must have none of the modules. A
    # forked child sends its pidfd and no text.
    PARKED = 0
    # The process cannot park. The text is the reason.
    CANNOT = 1


@dataclass
class Reply:
    """The only message from a parked process to its owner. A text follows this struct."""

    FORMAT: ClassVar[str] = "=IIiIQ"
    SIZE: ClassVar[int] = 24

    version: int = 0
    # ReplyKind: whether the process is parked.
    kind: int = 0
    # Pid of the parked process.
    pid: int = 0
    # Secure bits of the parked process; see capabilities(7).
    securebits: int = 0
    # Size of the parked process's private memory, in bytes.
    private_bytes: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Reply:
        return cls(*struct.unpack_from(cls.FORMAT, data))


@dataclass
class Request:
    """
    A message from the owner to a parked process. After this struct, the message has the
    steps, the checks, `keep` descriptor numbers (int32_t), and the strings. The strings are
    argv, environ, and paths, each with its NUL, and the bytes that some steps need.
    """

    FORMAT: ClassVar[str] = "=IIIIIIIIIIiIiIII"
    SIZE: ClassVar[int] = 64

    version: int = 0
    # The request's number; see Page.
    serial: int = 0
    # Number of steps in the message.
    steps: int = 0
    # Number of descriptors that come with the message.
    sources: int = 0
    # Number of descriptors above 2 that stay open.
    keep: int = 0
    # Number of arguments.
    argc: int = 0
    # Number of environment variables.
    envc: int = 0
    # Size of argv, in bytes.
    argv_length: int = 0
    # Size of environ, in bytes.
    env_length: int = 0
    # Size of all strings, in bytes.
    strings: int = 0
    # No step names this descriptor number or a higher one.
    above: int = 0
    # Bits of FLAGS.
    flags: int = 0
    # The source to execute, or NO_SOURCE.
    program: int = 0
    # Path of the program to execute: an offset into the strings.
    path: int = 0
    # Number of checks in the message.
    checks: int = 0
    # Bit n: a seccomp filter kills the process for member n of Call.
    killed: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        return cls(*struct.unpack_from(cls.FORMAT, data))


class Call(enum.IntEnum):
    """The calls of a parked process for which a seccomp filter may kill the process."""

    # Replaced by close().
    CLOSE_RANGE = 0
    # Replaced by openat(), unless `resolve` is set.
    OPENAT2 = 1
    # Replaced by newfstatat().
    STATX = 2
    # Replaced by faccessat(), which checks the real ids.
    FACCESSAT2 = 3
    # Not replaced: exec fails with EPERM.
    EXECVEAT = 4


# The program gets the environment of the parked process.
FLAG_OWN_ENVIRONMENT = 1
# The parked process forks a child, and the child waits for a request of its own. The message
# carries the sources of ForkSource and has no other content.
FLAG_FORK = 2
# The forked child reports the size of its private memory to the owner.
FLAG_MEASURE = 4
FLAGS = 7
# Stands for a missing source.
NO_SOURCE = -1


class ForkSource(enum.IntEnum):
    """The descriptors in a fork request: the new child's own connection to the owner."""

    SOCKET = 0
    PAGE = 1


class Op(enum.IntEnum):
    """
    The operation of one step. `a`, `b`, `text` and `x` to `z` are fields of Step. A source is
    an index of the message's descriptors. `text` is an offset into the strings.
    """

    # Closes descriptors `x` to `y`.
    CLOSE_RANGE = 0
    # Opens the path at `text` as descriptor `b`. `a` is the source of the directory, or NO_SOURCE.
    # `x`, `y` and `z` are flags, mode and resolve of struct open_how.
    OPEN = 1
    # Puts the process group in the foreground of terminal `a`.
    TCSETPGRP = 2
    # Writes `a` to /proc/self/oom_score_adj.
    OOM_SCORE_ADJ = 3
    # Enters the cgroup whose directory is source `a`.
    CGROUP = 4
    # Duplicates source `a` to `b` if `b` is open on the same file.
    REPLACE = 5
    # Limits the sets to the Capabilities at `text`.
    CAPABILITIES = 6
    # Makes system call `a` with the arguments `x`, `y`, `z`, 0, 0 and 0. `b` has the kind of each
    # argument. `text` is the size of the data of a ARGUMENT_TEXT, in bytes.
    CALL = 7


class Argument(enum.IntEnum):
    """
    The kind of one argument of a system call: two bits of the step's `b`. The lowest two bits
    are for the first argument.
    """

    # The argument is this number itself.
    NUMBER = 0
    # The argument is the descriptor of this source.
    SOURCE = 1
    # The argument is the address of the string at this offset.
    TEXT = 2
    # The last argument is the address of the step's `z` and `w`.
    DATA = 3


# The number of arguments in a step, and the size of an argument's kind in bits.
ARGUMENTS = 3
ARGUMENT_BITS = 2


@dataclass
class Step:
    FORMAT: ClassVar[str] = "=HHiiIQQQQ"
    SIZE: ClassVar[int] = 48

    # Op: says which of the other fields the step uses.
    op: int = 0
    # Index of the caller's action, for an error; or CONTEXT.
    index: int = 0
    a: int = 0
    b: int = 0
    text: int = 0
    x: int = 0
    y: int = 0
    z: int = 0
    w: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Step:
        return cls(*struct.unpack_from(cls.FORMAT, data))


# The index of a step that is not an action of the caller.
CONTEXT = 65535


@dataclass
class Capabilities:
    """Bit n stands for capability n."""

    FORMAT: ClassVar[str] = "=QQQQQ"
    SIZE: ClassVar[int] = 40

    effective: int = 0
    permitted: int = 0
    inheritable: int = 0
    bounding: int = 0
    ambient: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Capabilities:
        return cls(*struct.unpack_from(cls.FORMAT, data))


class CheckKind(enum.IntEnum):
    """A condition that must hold immediately before exec."""

    # The path names this file, unchanged.
    SAME = 0
    # The source to execute is this file, unchanged.
    SAME_SOURCE = 1
    # The path names no file that a PATH search would accept.
    ABSENT = 2


@dataclass
class Check:
    """
    A condition, and the identity of the file that the condition requires. The fields have the
    units of struct statx.
    """

    FORMAT: ClassVar[str] = "=IIIIIIIIIIQQqq"
    SIZE: ClassVar[int] = 72

    # CheckKind: the condition.
    kind: int = 0
    # The file's path: an offset into the strings.
    path: int = 0
    device_major: int = 0
    device_minor: int = 0
    mode: int = 0
    owner: int = 0
    group: int = 0
    ctime_nanoseconds: int = 0
    mtime_nanoseconds: int = 0
    # Keeps the struct free of padding.
    unused: int = 0
    inode: int = 0
    size: int = 0
    ctime: int = 0
    mtime: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Check:
        return cls(*struct.unpack_from(cls.FORMAT, data))


PAGE_SIZE = 4096


class Claim(enum.IntEnum):
    """The state of a request."""

    # The owner has sent the request.
    OFFERED = 0
    # The owner confirms the request.
    GO = 1
    # The owner withdraws the request.
    WITHDRAWN = 2
    # The parked process carries the request out.
    TAKEN = 3
    # The parked process has become the program.
    BECAME = 4
    # A step failed, and the parked process exits.
    FAILED = 5
    # The request is invalid; the parked process did nothing.
    REFUSED = 6


# The claim word is the serial number of the request * CLAIM_STATES + the state.
CLAIM_STATES = 8
# The maximum number of steps in the page.
MAX_FIRST = 24


@dataclass
class Page:
    """
    The page that owner and parked process share. The owner sends a request before it has
    finished comparing itself with the parked process. During the comparison the parked
    process prepares, without visible effect. The owner then writes the result of the
    comparison into the page and sets the claim to CLAIM_GO.
    """

    FORMAT: ClassVar[str] = "=QiiQQQQQ"
    SIZE: ClassVar[int] = 56
    # The array of steps follows.

    # Serial number and Claim.
    claim: int = 0
    # Pid of a forked child; the kernel writes it before the child runs.
    child: int = 0
    # Keeps the struct free of padding.
    unused: int = 0
    # Number of steps in the page; they run before those of the request.
    first: int = 0
    # Signals to reset to the default action; bit n-1 for signal n.
    make_default: int = 0
    # Signals to ignore.
    make_ignored: int = 0
    # Signals to block.
    mask: int = 0
    # Progress and failure: REPORT_*.
    report: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Page:
        return cls(*struct.unpack_from(cls.FORMAT, data))


# The parts of `report` in Page. The owner writes PENDING. Before each stage, the parked process
# writes PENDING with the stage and the index, both shifted. After a failure it writes the same with
# an errno instead of PENDING. A zygote writes EXEC before exec. A child of a cold start reports in
# the same way: report.rs of spawnfd-child.
REPORT_PENDING = 0x8000000000000000
REPORT_EXEC = 0
REPORT_STAGE_SHIFT = 48
REPORT_INDEX_SHIFT = 32


class Stage(enum.IntEnum):
    DESCRIPTORS = 1
    # The index is that of the step.
    ACTION = 2
    # The index is that of the check.
    CHECK = 4
    EXEC = 6
