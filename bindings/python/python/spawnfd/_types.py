# SPDX-License-Identifier: MIT OR Apache-2.0
"""The types that arguments have, and the one way to a shell."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict

from spawnfd import _spawnfd
from spawnfd._spawnfd import Env
from spawnfd.actions import Action


class HasFileno(Protocol):
    """A file, socket or whatever else has a descriptor."""

    def fileno(self) -> int:
        """The descriptor."""
        ...


Arg: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Args: TypeAlias = Sequence[str] | Sequence[bytes] | Sequence[Arg]
Fd: TypeAlias = int | HasFileno
Cwd: TypeAlias = Arg | int
Environment: TypeAlias = Env | Mapping[str, str] | Mapping[bytes, bytes] | Mapping[Any, Any]
Input: TypeAlias = bytes | bytearray | memoryview | str
Actions: TypeAlias = Iterable[Action]
# None: by its name.
Program: TypeAlias = _spawnfd.Template | _spawnfd.TemplateCache | None

RunStdin: TypeAlias = Literal["null", "inherit"] | Fd
StartStdin: TypeAlias = Literal["null", "inherit", "stream"] | Fd
RunStdout: TypeAlias = Literal["capture", "null", "inherit"] | Fd
RunStderr: TypeAlias = Literal["separate", "merge", "null", "inherit"] | Fd
SpawnStdio: TypeAlias = Literal["inherit", "null", "pipe"] | Fd
SpawnStderr: TypeAlias = Literal["inherit", "null", "pipe", "merge"] | Fd


@dataclass(frozen=True)
class Spill:
    """That all output of a run goes into a file, too, once a stream has more than is kept.

    The file has mode 0600 and both streams' bytes in order of arrival, from the first one on. It
    goes with the last reference to the run's Result (and Job), or when this process ends, however
    that does: then the next run that spills there removes it.

    Attributes:
        max_bytes: The file's greatest length; what comes then is not in it.
        dir: Where to make it; None: in $TMPDIR, else /tmp.
        persist: The file stays.
    """

    max_bytes: int
    dir: Arg | None = None
    persist: bool = False


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
    """A process that outlived the program that started it.

    Attributes:
        pid: Its process id: for printing, as it may be another's by now.
        name: Its name (comm).
        fate: What was done with it: "killed", "adopted" (it goes on, read and ended with the job)
            or "detached" (it was left alone).
    """

    pid: int
    name: str
    fate: Literal["killed", "adopted", "detached"]


class _Options(TypedDict, total=False):
    cwd: Cwd | None
    env: Environment | None
    actions: Actions | None
    arg0: Arg | None


class SpawnOptions(_Options, total=False):
    """The keyword arguments of spawn()."""

    stdin: SpawnStdio | None
    stdout: SpawnStdio | None
    stderr: SpawnStderr | None


class _Supervision(_Options, total=False):
    timeout: float | None
    grace: float
    input: Input | None
    stdout: RunStdout | None
    stderr: RunStderr
    keep: tuple[int, int]
    spill: Spill | None
    output_limit: int | None
    drain: float
    tree: Literal["group", "guard", "cgroup", "auto"]
    leftovers: Literal["kill", "adopt", "detach"]


class RunOptions(_Supervision, total=False):
    """The keyword arguments of run()."""

    stdin: RunStdin | None


class StartOptions(_Supervision, total=False):
    """The keyword arguments of start()."""

    stdin: StartStdin | None
    window: int
    terminal: tuple[int, int] | None
    hold: bool


def sh(command: str | bytes) -> list[str | bytes]:
    """Makes the argv that has /bin/sh run a command line: `run(sh("make 2>&1 | tail"))`.

    What is put into the command line is the shell's to interpret: quote with shlex.quote().
    """
    if not isinstance(command, (str, bytes)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"command: expected str or bytes, not {type(command).__qualname__}")
    return ["/bin/sh", "-c", command]
