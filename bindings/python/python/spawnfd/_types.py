# SPDX-License-Identifier: MIT OR Apache-2.0
"""The types that arguments have, and the one way to a shell."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

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

RunStdin: TypeAlias = Literal["null", "inherit"] | Fd
RunStdout: TypeAlias = Literal["capture", "null", "inherit"] | Fd
RunStderr: TypeAlias = Literal["separate", "merge", "null", "inherit"] | Fd
SpawnStdio: TypeAlias = Literal["inherit", "null", "pipe"] | Fd
SpawnStderr: TypeAlias = Literal["inherit", "null", "pipe", "merge"] | Fd

# How Python's half passes what every way of starting a program has: program (a core Template or
# TemplateCache, None for the process-wide cache), args, arg0, cwd, env, stdin, stdout, stderr,
# actions.
Spawning: TypeAlias = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]
# And a captured run: timeout, input, keep.
Capture: TypeAlias = tuple[Any, Any, Any]

# Bytes of each stream's head and tail that are kept by default.
KEEP = (64_000, 64_000)


def sh(command: str | bytes) -> list[str | bytes]:
    """Makes the argv that has /bin/sh run a command line: `run(sh("make 2>&1 | tail"))`.

    What is put into the command line is the shell's to interpret: quote with shlex.quote().
    """
    if not isinstance(command, (str, bytes)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"command: expected str or bytes, not {type(command).__qualname__}")
    return ["/bin/sh", "-c", command]
