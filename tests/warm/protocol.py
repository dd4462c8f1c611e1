# SPDX-License-Identifier: MIT OR Apache-2.0
"""The protocol between an owner and a parked process.

Generated from crates/spawnfd-parked/common/protocol.h: edit that file and run scripts/protocol.py.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import ClassVar

# The first field of every message.
VERSION = 1
# The maximum size of a message, in bytes. The owner starts a program cold if its request is longer.
MAX_MESSAGE = 131072
# The maximum number of descriptors in one message: the kernel's SCM_MAX_FD.
MAX_DESCRIPTORS = 253
# The lowest descriptor number that a request can keep. Every program has descriptors 0 to 2.
FIRST_DESCRIPTOR = 3
# Environment variable by which the owner tells a program to park: the fields of ParkField,
# separated by colons. Descriptors, device and inode are decimal numbers.
PARK_VARIABLE = "SPAWNFD_PARK"
# Environment variable that lists the modules to import before parking, separated by commas.
PRELOAD_VARIABLE = "SPAWNFD_PRELOAD"


class ParkField(enum.IntEnum):
    # The parked process's end of the pair.
    SOCKET = 0
    # A pidfd of the owner.
    OWNER = 1
    # The shared object that LD_PRELOAD loads.
    OBJECT = 2
    # The shared page.
    PAGE = 3
    # The executable to park in. Any other executable runs unchanged.
    DEVICE = 4
    INODE = 5
    # Kind.
    KIND = 6
    # Mode.
    MODE = 7
    # A file for output before parking; this field may be absent.
    OUTPUT = 8


class Kind(enum.IntEnum):
    """The point at which a program parks."""

    # main().
    MAIN = 109
    # After CPython has initialized.
    PYTHON = 112
    # After Node.js has initialized.
    NODE = 110


class Mode(enum.IntEnum):
    """How a parked process is used."""

    # The process itself becomes the program.
    RESERVE = 114
    # As reserve, but a sandbox program starts the process.
    SANDBOX = 115
    # Children of the process become programs.
    FORK = 102
    # Only for the zygote. It reports whether ld.so would preload the object into a program that is
    # started in its place.
    PROBE = 112


class Zygote(enum.IntEnum):
    """Descriptors that the zygote inherits."""

    SOCKET = 3
    OWNER = 4
    PAGE = 5


class ReplyKind(enum.IntEnum):
    # The process is parked. Text: names of variables, an empty string, names of files, an empty
    # string, /proc/thread-self/status, and the security label (empty: none). A forked child sends
    # its pidfd and no text.
    PARKED = 0
    # The process cannot park. Text: the reason.
    CANNOT = 1


@dataclass
class Reply:
    """The only message from a parked process to its owner. Text follows."""

    FORMAT: ClassVar[str] = "=IIiIQ"
    SIZE: ClassVar[int] = 24

    version: int = 0
    # ReplyKind.
    kind: int = 0
    pid: int = 0
    # capabilities(7).
    securebits: int = 0
    # Memory that the process shares with no other.
    private_bytes: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Reply:
        return cls(*struct.unpack_from(cls.FORMAT, data))


@dataclass
class Request:
    """
    A message from the owner to a parked process. The steps, the checks, `keep` descriptor
    numbers (int32_t), and the strings follow. The strings are argv, environ, and paths, each
    with its NUL, and the bytes that some steps need.
    """

    FORMAT: ClassVar[str] = "=IIIIIIIIIIiIiIII"
    SIZE: ClassVar[int] = 64

    version: int = 0
    # The request's number; see Page.
    serial: int = 0
    # Number of steps.
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
    # FLAG_*.
    flags: int = 0
    # The source to execute, or NO_SOURCE.
    program: int = 0
    # Path of the program to execute: an offset into the strings.
    path: int = 0
    # Number of checks.
    checks: int = 0
    unused: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        return cls(*struct.unpack_from(cls.FORMAT, data))


# The program gets the environment of the parked process.
FLAG_OWN_ENVIRONMENT = 1
# The parked process forks a child that waits. The message carries the sources of ForkSource and has
# no other content.
FLAG_FORK = 2
# The forked child reports its private memory.
FLAG_MEASURE = 4
FLAGS = 7
NO_SOURCE = -1


class ForkSource(enum.IntEnum):
    """A forked child's own connection to the owner."""

    SOCKET = 0
    PAGE = 1


class Op(enum.IntEnum):
    """
    The operation of one step. Each comment tells which fields of Step the operation uses. A
    source is an index of the message's descriptors; `text` is an offset into the strings.
    """

    # a: source, b: number.
    PLACE = 0
    # a: from, b: to; equal numbers: clear close-on-exec.
    DUP2 = 1
    # a: number.
    CLOSE = 2
    # x: first, y: last.
    CLOSE_RANGE = 3
    # a: source of the directory or NO_SOURCE, b: number, text: path, x y z: flags, mode and resolve
    # of struct open_how.
    OPEN = 4
    # b: number.
    OPEN_NULL = 5
    # a: number.
    TCSETPGRP = 6
    # a: value.
    OOM_SCORE_ADJ = 7
    # a: source, the directory of the cgroup.
    CGROUP = 8
    # a: source, b: number; only if both are the same file.
    REPLACE = 9
    # text: a Capabilities.
    CAPABILITIES = 10
    # a: number of the system call, x y z: its arguments, b: the kind of each, `text`: bytes at the
    # address of a ARGUMENT_TEXT. Further arguments are 0.
    CALL = 11


class Argument(enum.IntEnum):
    """
    The kind of one argument of a system call, in two bits of `b`. The lowest bits are for the
    first argument.
    """

    # The number itself.
    NUMBER = 0
    # The descriptor of this source.
    SOURCE = 1
    # The address of the string at this offset.
    TEXT = 2
    # The last argument only: the address of `z`; `w` follows.
    DATA = 3


ARGUMENTS = 3
ARGUMENT_BITS = 2


@dataclass
class Step:
    FORMAT: ClassVar[str] = "=HHiiIQQQQ"
    SIZE: ClassVar[int] = 48

    # Op.
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
    """The conditions that must hold immediately before exec."""

    # The path names this file, unchanged.
    SAME = 0
    # The source to execute is this file, unchanged.
    SAME_SOURCE = 1
    # The path names no file that a PATH search would accept.
    ABSENT = 2


@dataclass
class Check:
    """A condition, and the identity of the file that it requires, in the units of struct statx."""

    FORMAT: ClassVar[str] = "=IIIIIIIIIIQQqq"
    SIZE: ClassVar[int] = 72

    # CheckKind.
    kind: int = 0
    # An offset into the strings.
    path: int = 0
    device_major: int = 0
    device_minor: int = 0
    mode: int = 0
    owner: int = 0
    group: int = 0
    ctime_nanoseconds: int = 0
    mtime_nanoseconds: int = 0
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


# The factor of the claim word: serial number of the request * CLAIM_STATES + state.
CLAIM_STATES = 8
# The maximum number of steps in the page.
MAX_FIRST = 24


@dataclass
class Page:
    """
    The owner sends a request before it has finished comparing itself with the parked process.
    The parked process prepares meanwhile, without visible effect. The owner then writes the
    result of the comparison into the page and sets the claim to CLAIM_GO.
    """

    FORMAT: ClassVar[str] = "=QiiQQQQQQ"
    SIZE: ClassVar[int] = 64
    # The array of steps follows.

    # Serial number and Claim.
    claim: int = 0
    # Pid of a forked child; the kernel writes it before the child runs.
    child: int = 0
    # Errno of the failed step.
    error: int = 0
    # Index of the failed step, or NO_STEP.
    index: int = 0
    # Number of steps in the page; they run before those of the request.
    first: int = 0
    # Signals to reset to the default action; bit n-1 for signal n.
    make_default: int = 0
    # Signals to ignore.
    make_ignored: int = 0
    # Signals to block.
    mask: int = 0
    # REPORT_*, in the page of a zygote.
    report: int = 0

    def pack(self) -> bytes:
        return struct.pack(self.FORMAT, *vars(self).values())

    @classmethod
    def unpack(cls, data: bytes) -> Page:
        return cls(*struct.unpack_from(cls.FORMAT, data))


# The request failed before its first step.
NO_STEP = 0xFFFFFFFF
# The zygote reports its progress like the children of the clone launcher: report.rs of
# spawnfd-child. The owner writes PENDING. The zygote writes EXEC before exec; after a failure it
# writes the stage, the index and the errno, shifted.
REPORT_PENDING = 0x8000000000000000
REPORT_EXEC = 0
REPORT_STAGE_SHIFT = 48
REPORT_INDEX_SHIFT = 32


class Stage(enum.IntEnum):
    DESCRIPTORS = 1
    ACTION = 2
    CHECK = 4
    EXEC = 6
