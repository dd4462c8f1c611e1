# SPDX-License-Identifier: MIT OR Apache-2.0
"""Switching the interpreter's own subprocess and asyncio over, and back."""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import functools
import os
import threading
from asyncio import unix_events
from typing import TYPE_CHECKING, Any

from spawnfd import asyncio as ours
from spawnfd._popen import ORIGINAL, POPEN, execute, mark, marked, owner, start_from
from spawnfd._transport import Transport, has_watcher, make_transport
from spawnfd._warm import Warm, as_warm

if TYPE_CHECKING:
    from spawnfd._warm import _Mode

# A signal handler may come to it while its own thread holds it.
_lock = threading.RLock()
_installed = False
# The Warm that was made here, to be closed here.
_own_warm: Warm | None = None


def _renew_lock() -> None:
    # A forked child may find it held by a thread that it does not have.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)

_Loop: Any = owner(unix_events._UnixSelectorEventLoop, "_make_subprocess_transport")
_FOUND: Any = _Loop.__dict__["_make_subprocess_transport"]
_ORIGINAL_TRANSPORT: Any = marked(_FOUND) or _FOUND
_ORIGINAL_EXEC: Any = marked(asyncio.create_subprocess_exec) or asyncio.create_subprocess_exec
_ORIGINAL_SHELL: Any = marked(asyncio.create_subprocess_shell) or asyncio.create_subprocess_shell


# All of these look whether they are to act: somebody may have wrapped one before uninstall().
def _execute_child(self: Any, *args: Any, **kwargs: Any) -> None:
    if _installed and not kwargs:
        execute(self, *args)
    else:
        ORIGINAL(self, *args, **kwargs)


async def _make_subprocess_transport(self: Any, *args: Any, **kwargs: Any) -> Any:
    if _installed and not has_watcher():
        return await make_transport(Transport, self, *args, **kwargs)
    return await _ORIGINAL_TRANSPORT(self, *args, **kwargs)


def _has_own_code() -> bool:
    """Whether the event loop (uvloop) makes processes in a way that has no Popen in it."""
    return _installed and not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)


@functools.wraps(_ORIGINAL_EXEC)
async def _create_subprocess_exec(*args: Any, **kwargs: Any) -> Any:
    create = ours.create_subprocess_exec if _has_own_code() else _ORIGINAL_EXEC
    return await create(*args, **kwargs)


@functools.wraps(_ORIGINAL_SHELL)
async def _create_subprocess_shell(*args: Any, **kwargs: Any) -> Any:
    create = ours.create_subprocess_shell if _has_own_code() else _ORIGINAL_SHELL
    return await create(*args, **kwargs)


_PLACES: list[tuple[Any, str, Any, Any]] = [
    (POPEN, "_execute_child", ORIGINAL, _execute_child),
    (_Loop, "_make_subprocess_transport", _ORIGINAL_TRANSPORT, _make_subprocess_transport),
    (asyncio, "create_subprocess_exec", _ORIGINAL_EXEC, _create_subprocess_exec),
    (asyncio.subprocess, "create_subprocess_exec", _ORIGINAL_EXEC, _create_subprocess_exec),
    (asyncio, "create_subprocess_shell", _ORIGINAL_SHELL, _create_subprocess_shell),
    (asyncio.subprocess, "create_subprocess_shell", _ORIGINAL_SHELL, _create_subprocess_shell),
]
for _, _, _original, _ours in _PLACES:
    mark(_ours, _original)


# How many programs a Warm that is made here keeps.
_KEEP = 64


def install(*, warm: Warm | _Mode | None = None) -> None:
    """Has the interpreter's own subprocess and asyncio start programs by spawnfd from here on.

    For programs that are not to be changed: subprocess.Popen and all that is made of it (run,
    check_output, os.popen, subclasses, names imported before), and asyncio's subprocesses. What
    CPython's code still does, and why, spawnfd.stats() counts. A child watcher that the program has
    set itself is respected.

    uvloop has process code of its own: asyncio.create_subprocess_exec and create_subprocess_shell
    lead past it, its loop.subprocess_exec() and names imported before do not. Nothing changes for
    os.fork, os.posix_spawn and multiprocessing. What else is different is said where
    spawnfd.subprocess is: not to be called where LD_PRELOAD redirects programs as they are started.

    Args:
        warm: A Warm: what it has is started from there, by spawnfd.subprocess, too. "reserve" or
            "fork": one that is made for this, and keeps what is started; uninstall() closes it.
            spawnfd.stats() counts these starts. None: as it was.

    Calling it again does nothing, but for another `warm`. Any thread may; a spawn under way is not
    disturbed. In a copy of this process (os.fork) programs start cold.

    Raises:
        TypeError, ValueError: `warm` is no such thing, or closed; nothing is changed.
    """
    global _installed
    if warm is not None:
        _change_warm(as_warm(warm, _KEEP), warm)
    with _lock:
        _installed = True
        for owner, name, original, ours in _PLACES:
            there = owner.__dict__.get(name)
            if original in (there, marked(there)):
                setattr(owner, name, ours)


def _change_warm(warm: Warm | None, given: object) -> None:
    global _own_warm
    with _lock:
        start_from(None if warm is None else warm._core)
        before, _own_warm = _own_warm, None if warm is given else warm
    if before is not None:
        before.close()


def uninstall() -> None:
    """Puts back exactly what install() has replaced; without that it does nothing.

    Where somebody else has put a wrapper over it meanwhile that stays, and leads to the original.
    """
    global _installed
    with _lock:
        _installed = False
        for owner, name, original, _ in _PLACES:
            if marked(owner.__dict__.get(name)) is original:
                setattr(owner, name, original)
    _change_warm(None, None)
