# SPDX-License-Identifier: MIT OR Apache-2.0
"""Types of arguments, plain values, and sh(). Every other module may import this one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeAlias,
)

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_options):
        return lambda cls: cls


class NotPickled:
    """The base of classes that belong to this process and cannot be pickled or copied."""

    __slots__ = ()
    _reason = "it belongs to this process"

    def __copy__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied: {self._reason}")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: {self._reason}")


def deadline(timeout: float | None, name: str = "timeout") -> float | None:
    """Returns the time.monotonic() value `timeout` seconds from now; None for no timeout.

    Raises:
        TypeError, ValueError: `timeout` is not a valid number of seconds. The message has `name`.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        found = type(timeout).__qualname__
        raise TypeError(f"{name}: expected seconds (float) or None, not {found}")
    if not timeout >= 0:
        raise ValueError(f"{name} must be >= 0, got {timeout}")
    try:
        return time.monotonic() + timeout
    except OverflowError:
        # An int that is too large for a float means that there is no deadline.
        return None


class Deadline:
    """The end of a wait: after a time, or after a time without output."""

    def __init__(
        self, timeout: float | None, idle_timeout: float | None, idle: Callable[[], float]
    ) -> None:
        self._end = deadline(timeout)
        deadline(idle_timeout, "idle_timeout")
        self._idle_timeout, self._idle = idle_timeout, idle
        self._begin = time.monotonic()

    def left(self) -> float | None:
        """Returns the seconds until the end; 0 after it, None if there is none."""
        left = remaining(self._end)
        if self._idle_timeout is None:
            return left
        # Idle time before the wait does not count.
        idle = min(self._idle(), time.monotonic() - self._begin)
        left_idle = max(0.0, self._idle_timeout - idle)
        return left_idle if left is None else min(left, left_idle)


def remaining(end: float | None) -> float | None:
    """Returns the seconds until a deadline; 0.0 after it, None without one."""
    return None if end is None else max(0.0, end - time.monotonic())


def as_bytes(data: Input) -> memoryview:
    """Returns the bytes of `data`; a str is encoded as UTF-8.

    Raises:
        TypeError, ValueError: `data` is not bytes-like, or a str that UTF-8 cannot encode.
    """
    try:
        return memoryview(data.encode() if isinstance(data, str) else data).cast("B")
    except TypeError:
        found = type(data).__qualname__
        expected = "bytes, bytearray, memoryview or str"
        raise TypeError(f"data: expected {expected}, not {found}") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"data: {error}") from None


class HasFileno(Protocol):
    """A file, socket or other object with a descriptor."""

    def fileno(self) -> int:
        """Returns the descriptor."""
        ...


Arg: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Args: TypeAlias = Sequence[str] | Sequence[bytes] | Sequence[Arg]
Fd: TypeAlias = int | HasFileno
Cwd: TypeAlias = Arg | int
Input: TypeAlias = bytes | bytearray | memoryview | str
# How many bytes of the head and tail of each stream to keep.
Keep: TypeAlias = tuple[int, int] | Literal["all"]
# generated: stops
Stop: TypeAlias = Literal[
    "exited",
    "timeout",
    "idle_timeout",
    "cancelled",
    "output_limit",
    "limit",
    "lost",
]
# end of stops


@dataclass_transform(frozen_default=True)
class _Frozen:
    """What @dataclass(frozen=True) makes of a class. To import dataclasses would take too long.

    A subclass names its fields in __match_args__, and passes their values to _init().
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]

    def _init(self, *values: object) -> None:
        for name, value in zip(self.__match_args__, values, strict=True):
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Frozen) and type(other) is type(self):
            return self._values() == other._values()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = zip(self.__match_args__, self._values(), strict=True)
        text = ", ".join(f"{name}={value!r}" for name, value in fields)
        return f"{type(self).__qualname__}({text})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._values()

    def __replace__(self, **changes: Any) -> Self:
        fields = dict(zip(self.__match_args__, self._values(), strict=True))
        return type(self)(**{**fields, **changes})


class Action:
    """The base class of all actions; see spawnfd.actions."""

    __slots__ = ()


class Spill(_Frozen):
    """Requests a file with all output of a run, written once a stream exceeds `keep`.

    The file has mode 0600. It has all bytes of both streams, in order of arrival. The library
    removes it with the last reference to the run's Result (and Job). If this process ends earlier,
    even by a crash, the next run that spills to the same directory removes it.

    The thread that serves all jobs and asynchronous runs writes the file. If the disk does not
    respond, all of them wait, and their timeouts are late.

    Attributes:
        max_bytes: Maximum length of the file in bytes; the file does not get later output.
        dir: The directory for the file; None: $TMPDIR, else /tmp.
        persist: If True, the file is not removed.
    """

    __match_args__ = ("max_bytes", "dir", "persist")
    __slots__ = __match_args__
    max_bytes: int
    dir: Arg | None
    persist: bool

    def __init__(self, max_bytes: int, dir: Arg | None = None, persist: bool = False) -> None:
        self._init(max_bytes, dir, persist)


class Limits(_Frozen):
    """Resource limits of a run; None: no limit. See docs/limits.md.

    In a cgroup a limit applies to the program's whole process tree together. If no cgroup is
    available, rlimits approximate the limits as described below. If a limit cannot be enforced,
    the start fails and no program is started. `limits` of the Result has the enforcer of each
    limit. If a limit ended the run, `stop` is "limit", and `limit` names it.

    Attributes:
        memory: Bytes. In a cgroup: the memory of the tree, with page cache and without swap; if the
            tree exceeds it, the kernel kills the whole tree. As an rlimit: the address space of
            each process; allocations beyond it fail in the program (MemoryError and the like), the
            run continues, and `stop` does not show it. Node, Java, Go and sanitizers reserve far
            more address space than they use: for them, use enforce="watch".
        pids: Number of processes and threads at once. In a cgroup the tree is killed as soon as it
            tries to exceed this. Otherwise the library counts periodically and kills a tree that
            exceeds it. An rlimit bounds the excess between two counts; that rlimit counts all
            processes of the user and does not apply to root.
        cpu_time: Seconds of user and system time; a tree that exceeds it is ended as by a timeout.
            As an rlimit: whole seconds of each process, enforced by SIGXCPU.
        cpus: CPU bandwidth in processors, such as 1.5. Only in a cgroup, which throttles the tree.
        enforce: "auto" (default): a cgroup, else an rlimit, else SpawnError. "cgroup": a cgroup,
            else SpawnError. "watch": a cgroup; else the library checks `memory` (the sum of the
            tree's resident memory) and `pids` periodically, and kills a tree that exceeds them;
            `cpu_time` is an rlimit, and `cpus` is a SpawnError. "best-effort": never an error. If
            neither is available, the library checks `pids` periodically, which a fork bomb can
            outrun, and `cpus` is not enforced.
    """

    __match_args__ = ("memory", "pids", "cpu_time", "cpus", "enforce")
    __slots__ = __match_args__
    memory: int | None
    pids: int | None
    cpu_time: float | None
    cpus: float | None
    enforce: Literal["auto", "cgroup", "watch", "best-effort"]

    def __init__(
        self,
        memory: int | None = None,
        pids: int | None = None,
        cpu_time: float | None = None,
        cpus: float | None = None,
        enforce: Literal["auto", "cgroup", "watch", "best-effort"] = "auto",
    ) -> None:
        self._init(memory, pids, cpu_time, cpus, enforce)


class Spilled(NamedTuple):
    """The outcome of a Spill.

    Attributes:
        bytes: The file's length in bytes.
        end: "whole" (the file has all output), "capped" (the output was longer than max_bytes), or
            "failed" (the file could not be created, or a write failed).
        errno: The error number if `end` is "failed", else None.
    """

    bytes: int
    end: Literal["whole", "capped", "failed"]
    errno: int | None


class Omitted(NamedTuple):
    """The bytes of one stream that were not kept.

    Attributes:
        bytes: How many bytes are omitted.
        offset: The position in the stream of the first one: the length of the kept head.
    """

    bytes: int
    offset: int


class OutputPiece(NamedTuple):
    """A piece of a combined run's output: bytes that arrived from one stream in succession.

    Attributes:
        stream: "stdout" or "stderr".
        bytes: The bytes. If bytes of the stream are omitted here: the marker line, or nothing with
            marker=None.
        text: The bytes decoded as UTF-8; invalid bytes become U+FFFD. A character that is split
            between two pieces of the stream belongs to the text of the second one.
        omitted: How many bytes of the stream are omitted here; 0 for a piece of the program's
            output.
    """

    stream: Literal["stdout", "stderr"]
    bytes: bytes
    text: str
    omitted: int


class Leftover(NamedTuple):
    """A process that outlived the program that started it, or a program that could not be killed.

    Attributes:
        pid: The process id, for printing; the kernel may have reused it.
        name: The process's name (comm).
        fate: "killed"; "adopted" (it runs on, the job reads its output and ends it with itself);
            "detached" (it runs on, uncontrolled); "not_permitted" (the kernel refused the signal,
            as the process has changed its user id, like a set-uid program); or "uninterruptible"
            (the kernel accepted SIGKILL, but the process did not end within a second: it waits in
            the kernel, mostly for a disk or a network file system).
    """

    pid: int
    name: str
    fate: Literal["killed", "adopted", "detached", "not_permitted", "uninterruptible"]


class SessionProcess(NamedTuple):
    """A process of a session, other than its shell.

    Attributes:
        pid: The process id, for printing; the kernel may have reused it.
        name: The process's name (comm).
    """

    pid: int
    name: str


def sh(command: str | bytes) -> list[str | bytes]:
    """Returns the argv that runs a command line in /bin/sh: `run(sh("make 2>&1 | tail"))`.

    The shell interprets the whole command line: quote inserted values with shlex.quote().

    Raises:
        TypeError: `command` is neither str nor bytes.
    """
    if not isinstance(command, (str, bytes)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"command: expected str or bytes, not {type(command).__qualname__}")
    return ["/bin/sh", "-c", command]
