# SPDX-License-Identifier: MIT OR Apache-2.0
"""How Popen starts programs through the core, and when CPython's own code starts them."""

from __future__ import annotations

import _posixsubprocess
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any

from spawnfd import _spawnfd


def defining_class(cls: Any, name: str) -> Any:
    """Returns the base class that defines a method; `cls` may be another library's subclass."""
    return next(base for base in cls.__mro__ if name in base.__dict__)


def record_original(replacement: Any, original: Any) -> None:
    """Records on a replacement which function it replaces."""
    # Records the replacement itself, too: functools.wraps() copies the attribute to wrappers.
    replacement._spawnfd_original = replacement, original


def original_of(function: Any) -> Any:
    """Returns the function that `function` replaces; None if it is no replacement of this package.

    Also recognizes replacements that an earlier import of this package has installed.
    """
    # Do not use getattr() for the attribute: a mock has every attribute.
    attributes = getattr(function, "__dict__", {})
    replacement, original = attributes.get("_spawnfd_original", (None, None))
    return original if replacement is function else None


def _find_popen_class() -> Any:
    """Finds CPython's Popen class if subprocess.Popen is not a class but a function or a mock."""
    for cls in object.__subclasses__():
        if (cls.__module__, cls.__name__) == ("subprocess", "Popen"):
            return cls
    return _MissingPopen


class _MissingPopen:
    """Stands for CPython's Popen if that class no longer exists."""

    def _execute_child(self) -> None: ...


_CURRENT: Any = vars(subprocess)["Popen"]
# The base class of spawnfd.subprocess.Popen.
BASE: Any = _CURRENT if isinstance(_CURRENT, type) else _find_popen_class()
# CPython's own class, as it was when this module was imported.
POPEN: Any = defining_class(BASE, "_execute_child")
_CURRENT_METHOD: Any = POPEN.__dict__["_execute_child"]
ORIGINAL: Any = original_of(_CURRENT_METHOD) or _CURRENT_METHOD


def _original_method(name: str) -> Any:
    current = POPEN.__dict__.get(name)
    return original_of(current) or current


# None if the interpreter's Popen does not have these methods.
ORIGINAL_TRY_WAIT: Any = _original_method("_try_wait")
ORIGINAL_POLL: Any = _original_method("_internal_poll")


class _SilentSys:
    """Stands for `sys`; audit() does nothing."""

    def audit(self, *event: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class _SilentGlobals(dict[str, Any]):
    """The globals of CPython's code, with another `sys`."""

    def __missing__(self, name: str) -> Any:
        return ORIGINAL.__globals__[name]


# CPython's code, for a start whose audit event has been raised already.
_SILENT_ORIGINAL: Any = FunctionType(
    ORIGINAL.__code__,
    _SilentGlobals(sys=_SilentSys()),
    argdefs=ORIGINAL.__defaults__,
    closure=ORIGINAL.__closure__,
)

# The parameters of _execute_child, which are passed by position. Python 3.11 added process_group.
_NAMES: tuple[str, ...] = ORIGINAL.__code__.co_varnames[1 : ORIGINAL.__code__.co_argcount]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_ATTRIBUTES = ("restore_signals", "gid", "gids", "uid", "umask", "start_new_session")
_CONTEXT = ("close_fds", "pass_fds", "cwd", "env")
_PROGRAM = ("args", "executable", "shell", "preexec_fn", "startupinfo", "creationflags")
_OPTIONAL: dict[str, Any] = {"process_group": -1}
_REQUIRED = {*_PIPES, *_ATTRIBUTES, *_CONTEXT, *_PROGRAM}
_SIGNATURE_IS_KNOWN = _REQUIRED <= set(_NAMES) <= _REQUIRED | _OPTIONAL.keys()


def _fork_exec() -> Any:
    """Returns the function that CPython's code calls to fork; the application may replace it."""
    return getattr(subprocess, "_fork_exec", None) or _posixsubprocess.fork_exec


# CPython's fork_exec(). None if a debugger had replaced it before this module was imported.
_FORK_EXEC: Any = _fork_exec() if isinstance(_fork_exec(), BuiltinFunctionType) else None

# Up to Python 3.12.0 subprocess reports every failure before exec as a failure of the chdir.
_DISTINGUISHES_CWD_ERRORS = any(
    isinstance(const, str) and const == "noexec:chdir" for const in ORIGINAL.__code__.co_consts
)


@dataclass(frozen=True)
class Stats:
    """Counts of Popen's starts by their outcome.

    Attributes:
        made: Programs started by spawnfd.
        passed: Programs started by CPython's own code, by reason; spawnfd.subprocess explains the
            reasons.
        failed: Starts that raised an exception, from spawnfd or from CPython's own code.
        warm: The part of `made` that was started from a parked process; see install(warm=...).
        cold: The part of `made` that was started cold although a Warm was set, by reason.
    """

    made: int
    passed: Mapping[str, int]
    failed: int
    warm: int = 0
    cold: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        for name in ("passed", "cold"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[object, ...]:
        return Stats, (self.made, dict(self.passed), self.failed, self.warm, dict(self.cold))


class _Counters:
    def __init__(self) -> None:
        self.renew_lock()
        self._made = 0
        self._failed = 0
        self._warm = 0
        self._passed: Counter[str] = Counter()
        self._cold: Counter[str] = Counter()

    def renew_lock(self) -> None:
        # In a forked child the old lock may belong to a thread that does not exist there. The lock
        # is reentrant because a signal handler or a finalizer may acquire it in the same thread.
        self._lock = threading.RLock()

    def made(self, how: str) -> None:
        with self._lock:
            self._made += 1
            if how in ("reserve", "fork", "zygote", "pool"):
                self._warm += 1
            elif how.startswith("cold: "):
                self._cold[how.removeprefix("cold: ")] += 1

    def failed(self) -> None:
        with self._lock:
            self._failed += 1

    def passed(self, reason: str) -> None:
        with self._lock:
            self._passed[reason] += 1

    def read(self) -> Stats:
        with self._lock:
            return Stats(self._made, self._passed, self._failed, self._warm, self._cold)


counters = _Counters()
os.register_at_fork(after_in_child=counters.renew_lock)

# The Warm that install() has set.
_warm: _spawnfd.Warm | None = None


def set_warm(warm: _spawnfd.Warm | None) -> None:
    """Sets the Warm whose parked processes Popen's programs start from; None: cold starts."""
    global _warm
    _warm = warm


def stats() -> Stats:
    """Returns how many Popen starts spawnfd has performed, and how many CPython's own code has.

    Counts all starts since the import: by spawnfd.subprocess, by spawnfd.asyncio, and by the
    standard modules after install().
    """
    return counters.read()


def execute(popen: subprocess.Popen[Any], *values: Any) -> None:
    """Implements Popen._execute_child: starts the program through the core or CPython's code.

    Raises:
        OSError, SubprocessError, ValueError, TypeError: In the same cases as CPython's Popen.
    """
    call = dict(_OPTIONAL)
    call.update(zip(_NAMES, values, strict=False))
    reason = _unsupported_reason(call, values)
    started: list[_spawnfd.PopenChild] = []
    how = ""
    try:
        if reason is None:
            reason = _resolve(call)
        if reason is None:
            how, reason = _start(popen, call, started)
        if reason is None:
            counters.made(how)
            return
        original = _SILENT_ORIGINAL if call.get("audited") else ORIGINAL
        original(popen, *(call[name] for name in _NAMES) if _SIGNATURE_IS_KNOWN else values)
    except BaseException:
        for child in started:
            # A signal handler has raised, so the caller gets no Popen to end the program with.
            child.end()
            popen._child_created = False  # type: ignore[attr-defined]
        counters.failed()
        raise
    counters.passed(reason)


def _unsupported_reason(call: dict[str, Any], values: tuple[Any, ...]) -> str | None:
    if not _SIGNATURE_IS_KNOWN or len(values) != len(_NAMES):
        return "interpreter"
    if call["preexec_fn"] is not None:
        return "preexec_fn"
    if _fork_exec() is not _FORK_EXEC or not getattr(subprocess, "_USE_VFORK", True):
        return "patched"
    return None


def _resolve(call: dict[str, Any]) -> str | None:
    """Adds argv, candidate paths and variables to `call`, computed from Popen's arguments.

    Exceptions from the caller's objects propagate, as in CPython. Iterators are replaced by their
    items, as they can be read only once.
    """
    args, shell, env = call["args"], call["shell"], call["env"]
    argv: list[Any]
    if isinstance(args, (str, bytes)):
        argv = [args]
    elif isinstance(args, os.PathLike):
        if shell:
            return "arguments"
        argv = [args]
    else:
        # An iterator would be exhausted when CPython's code reads it again.
        argv = call["args"] = list(args)
    # pass_fds may be an iterator, too.
    call["pass_fds"] = set(call["pass_fds"])
    if shell:
        argv = ["/bin/sh", "-c", *argv]
        if call["executable"]:
            argv[0] = call["executable"]
    call["argv"] = argv
    call["program"] = argv[0] if call["executable"] is None else call["executable"]
    if env is not None and not hasattr(env, "items"):
        return "arguments"
    if env is None:
        call["variables"] = None
    else:
        call["variables"] = list(items := env.items())
        if hasattr(items, "__next__"):
            call["env"] = _ReadEnvironment(env, call["variables"])
    program = os.fsencode(call["program"])
    if os.path.dirname(program):
        call["candidates"] = [program]
    else:
        directories = os.get_exec_path(env)
        call["candidates"] = [os.path.join(os.fsencode(each), program) for each in directories]
    call["pass_fds"] = sorted(map(int, call["pass_fds"]))
    return None


class _ReadEnvironment:
    """Stands for an environment whose items() is an iterator that has been read to its end."""

    def __init__(self, env: Any, items: list[Any]) -> None:
        self._env, self._items = env, items

    def items(self) -> list[Any]:
        return self._items

    def __getitem__(self, name: Any) -> Any:
        return self._env[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _start(
    popen: Any, call: dict[str, Any], started: list[_spawnfd.PopenChild]
) -> tuple[str, str | None]:
    """Starts the program; returns how it was started, or the reason to use CPython's code."""
    program, cwd = call["program"], call["cwd"]

    def audit() -> None:
        sys.audit("subprocess.Popen", program, call["argv"], cwd, call["env"])
        call["audited"] = True

    code, detail = _spawnfd.popen(call, audit, _warm, started)
    if code:
        if not detail and _DISTINGUISHES_CWD_ERRORS:
            raise OSError(code, os.strerror(code))
        raise OSError(code, os.strerror(code), program if detail == "program" else cwd)
    if not started:
        return "", detail
    child = started[0]
    popen.pid = child.pid
    if child.returncode is None:
        popen._spawnfd_child = child
    else:
        popen.returncode = child.returncode
    popen._child_created = True
    popen._close_pipe_fds(*(call[name] for name in _PIPES))
    return detail, None


def _wait(
    popen: Any, child: _spawnfd.PopenChild, flags: int, waitpid: Any = os.waitpid
) -> tuple[int, int | None]:
    """Calls waitpid(). If other code has reaped the program, returns the status that was kept."""
    try:
        pid, status = waitpid(popen.pid, flags)
    except ChildProcessError:
        pid, status = popen.pid, child.status_of_reaped()
    if pid:
        popen._spawnfd_child = None
    return pid, status


# A finalizer calls these functions, perhaps when the interpreter has cleared this module.
def try_wait(popen: Any, flags: int, _wait: Any = _wait, _original: Any = ORIGINAL_TRY_WAIT) -> Any:
    """Implements Popen._try_wait()."""
    child = getattr(popen, "_spawnfd_child", None)
    if child is None:
        return _original(popen, flags)
    # Like CPython's method, use the function that os has at this time.
    pid, status = _wait(popen, child, flags, os.waitpid)
    return pid, status or 0


# CPython passes the parameters after `_deadstate` as default values only.
def internal_poll(
    popen: Any,
    _deadstate: int | None = None,
    *_: Any,
    _wait: Any = _wait,
    _original: Any = ORIGINAL_POLL,
    _flags: int = os.WNOHANG,
) -> Any:
    """Implements Popen._internal_poll()."""
    child = getattr(popen, "_spawnfd_child", None)
    if child is None:
        return _original(popen, _deadstate)
    if popen.returncode is None and popen._waitpid_lock.acquire(False):
        try:
            # Another thread may have waited meanwhile.
            if popen.returncode is None:
                pid, status = _wait(popen, child, _flags)
                if status is None:
                    popen.returncode = _deadstate or 0
                elif pid:
                    popen._handle_exitstatus(status)
        finally:
            popen._waitpid_lock.release()
    return popen.returncode
