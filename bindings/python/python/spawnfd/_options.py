# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keyword arguments of run(), start() and spawn()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, cast

from spawnfd import _spawnfd
from spawnfd._spawnfd import Env, Limiter, Sandbox
from spawnfd._types import Action, Arg, Cwd, Fd, Input, Keep, Limits, Spill

_Native = TypeVar("_Native", covariant=True)
# inspect.CO_VARKEYWORDS: the function has a parameter of the form `**name`.
_CO_VARKEYWORDS = 8


class Wraps(Protocol[_Native]):
    """The Python object around a native one: `Wraps[_spawnfd.Warm]` is a Warm."""

    @property
    def _core(self) -> _Native: ...


Variables: TypeAlias = Mapping[str, str] | Mapping[bytes, bytes] | Mapping[Any, Any]
Environment: TypeAlias = Env | Variables
Actions: TypeAlias = Iterable[Action]
# A spawnfd.Warm. Its module imports this one.
Warm: TypeAlias = Wraps[_spawnfd.Warm]
# The native object that has or finds a call's program. None: the process-wide cache finds it.
Program: TypeAlias = _spawnfd.Template | _spawnfd.TemplateCache | _spawnfd.Warm | None
# The local variables of a function that starts a program: among them its options, by name.
Locals: TypeAlias = dict[str, Any]

RunStdin: TypeAlias = Literal["null", "inherit"] | Fd
StartStdin: TypeAlias = Literal["null", "inherit", "stream"] | Fd
# subprocess.PIPE is "stream", and subprocess.DEVNULL is "null".
CommandStdin: TypeAlias = Literal["null", "stream"] | int
RunStdout: TypeAlias = Literal["capture", "null", "inherit"] | Fd
RunStderr: TypeAlias = Literal["separate", "merge", "null", "inherit"] | Fd
SpawnStdio: TypeAlias = Literal["inherit", "null", "pipe"] | Fd
SpawnStderr: TypeAlias = Literal["inherit", "null", "pipe", "merge"] | Fd


class NoOptions(TypedDict):
    """The type of `**unknown`: the keyword arguments that a function does not have.

    The native code refuses them and says what to write instead. Type checkers do not accept them.
    """


def hide_unknown(*functions: Callable[..., object]) -> None:
    """Removes `**unknown` from the signatures and annotations that help() and other tools show.

    These tools take the signature from `__wrapped__`, if a function has this attribute. Here it is
    a copy of the function without `**unknown`, which no code calls. To set `__signature__`, this
    module would have to import inspect, which takes longer than all else that it imports.
    """
    for function in cast(tuple[FunctionType, ...], functions):
        del function.__annotations__["unknown"]
        code = function.__code__
        shown = FunctionType(
            code.replace(co_flags=code.co_flags & ~_CO_VARKEYWORDS),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        shown.__kwdefaults__ = function.__kwdefaults__
        shown.__annotations__ = function.__annotations__
        cast(Any, function).__wrapped__ = shown


class _Options(TypedDict, total=False):
    cwd: Cwd | None
    env: Environment | None
    actions: Actions | None
    arg0: Arg | None
    sandbox: Sandbox | None
    warm: Warm | None


class SpawnOptions(_Options, total=False):
    """The keyword arguments of spawn()."""

    stdin: SpawnStdio | None
    stdout: SpawnStdio | None
    stderr: SpawnStderr | None


class _Capture(TypedDict, total=False):
    timeout: float | None
    idle_timeout: float | None
    grace: float
    input: Input | None
    keep: Keep
    marker: str | None
    combined: bool
    spill: Spill | None
    output_limit: int | None
    drain: float
    limiter: Limiter | None


class CommandOptions(_Capture, total=False):
    """The keyword arguments of run() and start() of a session."""

    cwd: Arg | None
    env: Variables | None
    stdin: CommandStdin | None
    window: int


class _Tree(_Capture, total=False):
    stdout: RunStdout | None
    stderr: RunStderr | None
    leftovers: Literal["kill", "adopt", "detach"]
    limits: Limits | None
    terminal: tuple[int, int] | None
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None


class SideOptions(_Tree, total=False):
    """The keyword arguments of side_command() of a session."""

    stdin: RunStdin | None


class _Supervision(_Options, _Tree, total=False):
    pass


class RunOptions(_Supervision, total=False):
    """The keyword arguments of run(), for wrappers: `**options: Unpack[RunOptions]`."""

    stdin: RunStdin | None


class ParkOptions(TypedDict, total=False):
    """The keyword arguments of Warm.add() that Template(warm={...}) accepts."""

    depth: int
    args: Sequence[Arg]
    env: Environment | None
    preimport: Sequence[str]
    entry: Arg | None
    cwd: Arg | None
    mode: Literal["reserve", "fork", "auto"] | None
    no_new_privs: bool
    landlock: Fd | None
    seccomp: bytes | None


class StartOptions(_Supervision, total=False):
    """The keyword arguments of start()."""

    stdin: StartStdin | None
    window: int
    hold: bool
