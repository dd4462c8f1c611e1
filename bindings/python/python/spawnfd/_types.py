# SPDX-License-Identifier: MIT OR Apache-2.0
"""What every other module may use: types of arguments, plain values, and the one way to a shell."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn, Protocol, TypeAlias


class NotPickled:
    """What is bound to this process: it is not handed over by pickling it."""

    __slots__ = ()
    _instead = "it belongs to this process"

    def __copy__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied: {self._instead}")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: {self._instead}")


def deadline(timeout: float | None) -> float | None:
    """When so many seconds from now are over, by time.monotonic().

    Raises:
        TypeError, ValueError: It is no time to wait.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        found = type(timeout).__qualname__
        raise TypeError(f"timeout: expected seconds (float) or None, not {found}")
    if not timeout >= 0:
        raise ValueError(f"timeout: {timeout} is no time to wait")
    try:
        return time.monotonic() + timeout
    except OverflowError:
        # An int that no float can be: for ever.
        return None


def remaining(end: float | None) -> float | None:
    """The seconds until a deadline; 0.0 when it is over."""
    return None if end is None else max(0.0, end - time.monotonic())


def as_bytes(data: Input) -> memoryview:
    """The bytes of what is to be written.

    Raises:
        TypeError, ValueError: There are none.
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
    """A file, socket or whatever else has a descriptor."""

    def fileno(self) -> int:
        """The descriptor."""
        ...


Arg: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Args: TypeAlias = Sequence[str] | Sequence[bytes] | Sequence[Arg]
Fd: TypeAlias = int | HasFileno
Cwd: TypeAlias = Arg | int
Input: TypeAlias = bytes | bytearray | memoryview | str


@dataclass(frozen=True)
class Spill:
    """That all output of a run goes into a file, too, once a stream has more than is kept.

    The file has mode 0600 and both streams' bytes in order of arrival, from the first one on. It
    goes with the last reference to the run's Result (and Job), or when this process ends, however
    that does: then the next run that spills there removes it.

    The thread that serves all jobs and asynchronous runs writes it: on a disk that does not answer
    they all wait, and so do their timeouts.

    Attributes:
        max_bytes: The file's greatest length in bytes; what comes then is not in it.
        dir: Where to make it; None: in $TMPDIR, else /tmp.
        persist: The file stays.
    """

    max_bytes: int
    dir: Arg | None = None
    persist: bool = False


@dataclass(frozen=True)
class Limits:
    """What a run may use at most; None: no limit. See docs/limits.md.

    Where a cgroup can be had they hold for the program's whole process tree together. Where none
    can, rlimits do what they can, each in its own way. A limit that nobody can enforce here is an
    error, and no program is started. `limits` of the Result says who enforced what, and `limit`
    which one ended the run (`stop` is "limit" then).

    Attributes:
        memory: Bytes. In a cgroup: of the tree, page cache included, without swap; beyond it the
            kernel kills all of the tree. As an rlimit: address space of each process for itself;
            what is beyond is refused to the program (MemoryError and the like), the run goes on,
            and `stop` does not tell. Node, Java, Go and sanitizers reserve far more than they use.
        pids: Processes and threads at once. In a cgroup the tree is killed as soon as it wants
            more. Else it is counted now and then, and killed when it has more; an rlimit, which is
            for all of the user, and means nothing to root, keeps it from getting far beyond.
        cpu_time: Seconds of user and system time; beyond it the tree is ended as by a timeout. As
            an rlimit: of each process for itself, in whole seconds, by SIGXCPU.
        cpus: How many processors' worth of time at once, as 1.5. Only in a cgroup; it slows down.
        enforce: "auto" (default): a cgroup, else an rlimit, else SpawnError. "cgroup": a cgroup,
            else SpawnError. "best-effort": never an error; where neither can be had `pids` is
            looked after by this library now and then, which a fork bomb can outrun, and `cpus`
            by nobody.
    """

    memory: int | None = None
    pids: int | None = None
    cpu_time: float | None = None
    cpus: float | None = None
    enforce: Literal["auto", "cgroup", "best-effort"] = "auto"


class Spilled(NamedTuple):
    """What became of a Spill.

    Attributes:
        bytes: The file's length.
        end: "whole" (it has all output), "capped" (the output was longer than max_bytes), or
            "failed": it could not be made, or not be written to its end.
        errno: Why it failed, else None.
    """

    bytes: int
    end: Literal["whole", "capped", "failed"]
    errno: int | None


class Leftover(NamedTuple):
    """A process that outlived the program that started it, or a program that could not be killed.

    Attributes:
        pid: Its process id: for printing, as it may be another's by now.
        name: Its name (comm).
        fate: What became of it: "killed", "adopted" (it goes on, read and ended with the job),
            "detached" (it was left alone), "not_permitted" (the kernel refused to kill it: it has
            changed its user id, as a set-uid program does) or "uninterruptible" (the kernel
            accepted SIGKILL, which had no effect within a second: the process waits in the kernel,
            for a disk or a network file system mostly).
    """

    pid: int
    name: str
    fate: Literal["killed", "adopted", "detached", "not_permitted", "uninterruptible"]


def sh(command: str | bytes) -> list[str | bytes]:
    """Makes the argv that has /bin/sh run a command line: `run(sh("make 2>&1 | tail"))`.

    What is put into the command line is the shell's to interpret: quote with shlex.quote().

    Raises:
        TypeError: `command` is neither str nor bytes.
    """
    if not isinstance(command, (str, bytes)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"command: expected str or bytes, not {type(command).__qualname__}")
    return ["/bin/sh", "-c", command]
