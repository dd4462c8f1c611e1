# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keyword arguments of run(), start() and spawn()."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from spawnfd import _spawnfd
from spawnfd._spawnfd import Env
from spawnfd._types import Arg, Cwd, Fd, Input, Limits, Spill
from spawnfd.actions import Action

_Native = TypeVar("_Native", covariant=True)


class Wraps(Protocol[_Native]):
    """The Python object around a native one: `Wraps[_spawnfd.Warm]` is a Warm."""

    @property
    def _core(self) -> _Native: ...


Environment: TypeAlias = Env | Mapping[str, str] | Mapping[bytes, bytes] | Mapping[Any, Any]
Actions: TypeAlias = Iterable[Action]
# The program of a call, as a native object. None: argv[0] names the program.
Program: TypeAlias = _spawnfd.Template | _spawnfd.TemplateCache | None

RunStdin: TypeAlias = Literal["null", "inherit"] | Fd
StartStdin: TypeAlias = Literal["null", "inherit", "stream"] | Fd
RunStdout: TypeAlias = Literal["capture", "null", "inherit"] | Fd
RunStderr: TypeAlias = Literal["separate", "merge", "null", "inherit"] | Fd
SpawnStdio: TypeAlias = Literal["inherit", "null", "pipe"] | Fd
SpawnStderr: TypeAlias = Literal["inherit", "null", "pipe", "merge"] | Fd


class _Options(TypedDict, total=False):
    cwd: Cwd | None
    env: Environment | None
    actions: Actions | None
    arg0: Arg | None
    sandbox: _spawnfd.Sandbox | None
    warm: Wraps[_spawnfd.Warm] | None


class SpawnOptions(_Options, total=False):
    """The keyword arguments of spawn()."""

    stdin: SpawnStdio | None
    stdout: SpawnStdio | None
    stderr: SpawnStderr | None


class _Supervision(_Options, total=False):
    timeout: float | None
    idle_timeout: float | None
    grace: float
    input: Input | None
    stdout: RunStdout | None
    stderr: RunStderr
    keep: tuple[int, int]
    marker: str | None
    combined: bool
    spill: Spill | None
    output_limit: int | None
    drain: float
    tree: Literal["group", "guard", "cgroup", "pidns", "auto"]
    leftovers: Literal["kill", "adopt", "detach"]
    limits: Limits | None
    limiter: _spawnfd.Limiter | None
    terminal: tuple[int, int] | None


class RunOptions(_Supervision, total=False):
    """The keyword arguments of run(), for wrappers: `**options: Unpack[RunOptions]`."""

    stdin: RunStdin | None


class ParkOptions(TypedDict, total=False):
    """The keyword arguments of Warm.add() that Template(warm={...}) accepts."""

    depth: int
    args: Sequence[Arg]
    env: Environment | None
    preimport: Sequence[str]
    mode: Literal["reserve", "fork"] | None
    no_new_privs: bool
    landlock: Fd | None
    seccomp: bytes | None


class StartOptions(_Supervision, total=False):
    """The keyword arguments of start()."""

    stdin: StartStdin | None
    window: int
    hold: bool
