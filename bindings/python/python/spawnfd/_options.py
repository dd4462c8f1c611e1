# SPDX-License-Identifier: MIT OR Apache-2.0
"""The keyword arguments of run(), start() and spawn()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
)

from spawnfd import _spawnfd
from spawnfd._spawnfd import Env
from spawnfd._types import Action, Arg, Fd

_Native = TypeVar("_Native", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")


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
# The options that a caller has passed, by name.
Given: TypeAlias = dict[str, Any]

RunStdin: TypeAlias = Literal["null", "inherit"] | Fd
StartStdin: TypeAlias = Literal["null", "inherit", "stream"] | Fd
# subprocess.PIPE is "stream", and subprocess.DEVNULL is "null".
CommandStdin: TypeAlias = Literal["null", "stream"] | int
RunStdout: TypeAlias = Literal["capture", "null", "inherit"] | Fd
RunStderr: TypeAlias = Literal["separate", "merge", "null", "inherit"] | Fd
SpawnStdio: TypeAlias = Literal["inherit", "null", "pipe"] | Fd
SpawnStderr: TypeAlias = Literal["inherit", "null", "pipe", "merge"] | Fd


def like(shown: Callable[_P, object]) -> Callable[[Callable[..., _R]], Callable[_P, _R]]:
    """Gives a function the signature of another one, for type checkers, help() and other tools.

    The function gets only the options that its caller has passed. The native code refuses unknown
    ones, and says what to write instead.
    """
    return cast("Callable[[Callable[..., _R]], Callable[_P, _R]]", _decorator(shown, ()))


def method_like(
    shown: Callable[_P, object],
) -> Callable[[Callable[..., _R]], Callable[Concatenate[Any, _P], _R]]:
    """Gives a method the signature of a function, with `self` before it."""
    return cast(Any, _decorator(shown, ("self",)))  # type: ignore[no-any-return]


def _decorator(shown: object, before: tuple[str, ...]) -> Callable[[FunctionType], FunctionType]:
    """Returns a decorator that shows a signature, with other parameters before it.

    Tools take the signature from `__wrapped__`: a function that no code calls. Its globals have the
    names in the annotations. To set `__signature__`, this module would have to import inspect,
    which takes longer than all else that it imports.
    """
    signature = cast(FunctionType, shown)
    code = signature.__code__.replace(
        co_argcount=signature.__code__.co_argcount + len(before),
        co_nlocals=signature.__code__.co_nlocals + len(before),
        co_varnames=(*before, *signature.__code__.co_varnames),
    )

    def decorate(function: FunctionType) -> FunctionType:
        names = {**signature.__globals__, **function.__globals__}
        wrapped = FunctionType(code, names, function.__name__, signature.__defaults__)
        wrapped.__kwdefaults__ = signature.__kwdefaults__
        returned = function.__annotations__["return"]
        wrapped.__annotations__ = {**signature.__annotations__, "return": returned}
        function.__annotations__ = wrapped.__annotations__
        cast(Any, function).__wrapped__ = wrapped
        return function

    return decorate


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
