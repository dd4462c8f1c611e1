# SPDX-License-Identifier: MIT OR Apache-2.0
"""install() and uninstall(): make the standard subprocess and asyncio use spawnfd."""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import functools
import os
import threading
from asyncio import unix_events
from typing import TYPE_CHECKING, Any

from spawnfd import asyncio as spawnfd_asyncio
from spawnfd._popen import (
    ORIGINAL,
    ORIGINAL_POLL,
    ORIGINAL_TRY_WAIT,
    POPEN,
    defining_class,
    execute,
    internal_poll,
    original_of,
    record_original,
    set_warm,
    try_wait,
)
from spawnfd._transport import Transport, has_custom_watcher, make_transport
from spawnfd._warm import Warm, as_warm

if TYPE_CHECKING:
    from typing import Literal

    from spawnfd._warm import _Mode

# The lock is reentrant, because a signal handler may call install() in the thread that holds it.
_lock = threading.RLock()
_installed = False
# The Warm that install() created; uninstall() closes it.
_own_warm: Warm | None = None


def _renew_lock() -> None:
    # In a forked child, a thread that exists only in the parent may own the old lock.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)

_Loop: Any = defining_class(unix_events._UnixSelectorEventLoop, "_make_subprocess_transport")
_CURRENT: Any = _Loop.__dict__["_make_subprocess_transport"]
_ORIGINAL_TRANSPORT: Any = original_of(_CURRENT) or _CURRENT
_ORIGINAL_EXEC: Any = original_of(asyncio.create_subprocess_exec) or asyncio.create_subprocess_exec
_ORIGINAL_SHELL: Any = (
    original_of(asyncio.create_subprocess_shell) or asyncio.create_subprocess_shell
)


# Each replacement whose effect ends with uninstall() checks `_installed`: uninstall() cannot remove
# a replacement that other code has wrapped.
def _execute_child(self: Any, *args: Any, **kwargs: Any) -> None:
    if _installed and not kwargs:
        execute(self, *args)
    else:
        ORIGINAL(self, *args, **kwargs)


async def _make_subprocess_transport(self: Any, *args: Any, **kwargs: Any) -> Any:
    if _installed and not has_custom_watcher():
        return await make_transport(Transport, self, *args, **kwargs)
    return await _ORIGINAL_TRANSPORT(self, *args, **kwargs)


def _loop_bypasses_popen() -> bool:
    """Whether the event loop creates processes without Popen, as uvloop does."""
    return _installed and not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)


@functools.wraps(_ORIGINAL_EXEC)
async def _create_subprocess_exec(*args: Any, **kwargs: Any) -> Any:
    create = spawnfd_asyncio.create_subprocess_exec if _loop_bypasses_popen() else _ORIGINAL_EXEC
    return await create(*args, **kwargs)


@functools.wraps(_ORIGINAL_SHELL)
async def _create_subprocess_shell(*args: Any, **kwargs: Any) -> Any:
    create = spawnfd_asyncio.create_subprocess_shell if _loop_bypasses_popen() else _ORIGINAL_SHELL
    return await create(*args, **kwargs)


_REPLACEMENTS: list[tuple[Any, str, Any, Any]] = [
    (POPEN, "_execute_child", ORIGINAL, _execute_child),
    (POPEN, "_try_wait", ORIGINAL_TRY_WAIT, try_wait),
    (POPEN, "_internal_poll", ORIGINAL_POLL, internal_poll),
    (_Loop, "_make_subprocess_transport", _ORIGINAL_TRANSPORT, _make_subprocess_transport),
    (asyncio, "create_subprocess_exec", _ORIGINAL_EXEC, _create_subprocess_exec),
    (asyncio.subprocess, "create_subprocess_exec", _ORIGINAL_EXEC, _create_subprocess_exec),
    (asyncio, "create_subprocess_shell", _ORIGINAL_SHELL, _create_subprocess_shell),
    (asyncio.subprocess, "create_subprocess_shell", _ORIGINAL_SHELL, _create_subprocess_shell),
]
for _, _, _original, _replacement in _REPLACEMENTS:
    record_original(_replacement, _original)


# The number of programs that a Warm created by install() keeps warm.
_KEEP = 64


def install(*, warm: Warm | _Mode | Literal[True] | None = None) -> None:
    """Makes the standard subprocess and asyncio modules start programs through spawnfd.

    install() is for applications whose own code is not changed. It covers subprocess.Popen and
    everything built on it (run, check_output, os.popen, subclasses, names imported before), and
    asyncio's subprocesses. spawnfd.stats() counts the programs that CPython's own code still
    starts, by reason. A child watcher that the application has set stays in effect.

    uvloop has its own process code. asyncio.create_subprocess_exec() and create_subprocess_shell()
    bypass that code; uvloop's loop.subprocess_exec() and names imported before do not. os.fork,
    os.posix_spawn and multiprocessing do not change. The documentation of spawnfd.subprocess lists
    other differences. Do not call install() where LD_PRELOAD redirects the start of programs.

    A second call has no effect, except that it can set another `warm`. Any thread may call
    install(); spawns in progress are not affected. After os.fork(), the child starts programs cold.

    Args:
        warm: A Warm: programs that it keeps start from its parked processes, also those of
            spawnfd.subprocess. True: install() creates a Warm in mode "auto", which keeps the
            programs that are started often; uninstall() closes it. "reserve" or "fork": the same in
            that mode. spawnfd.stats() counts these starts. None: no change.

    Raises:
        TypeError, ValueError: `warm` is invalid or closed. Nothing has changed.
    """
    global _installed
    if warm is not None:
        _change_warm(as_warm("auto" if warm is True else warm, _KEEP), warm)
    with _lock:
        _installed = True
        for owner, name, original, replacement in _REPLACEMENTS:
            current = owner.__dict__.get(name)
            if original is not None and original in (current, original_of(current)):
                setattr(owner, name, replacement)


def _change_warm(warm: Warm | None, given: object) -> None:
    global _own_warm
    with _lock:
        set_warm(None if warm is None else warm._core)
        previous, _own_warm = _own_warm, None if warm is given else warm
    if previous is not None:
        previous.close()


def uninstall() -> None:
    """Restores everything that install() replaced; without install() it does nothing.

    If other code has wrapped a replacement since, the wrapper stays and calls the original.
    """
    global _installed
    with _lock:
        _installed = False
        for owner, name, original, _ in _REPLACEMENTS:
            if original_of(owner.__dict__.get(name)) is original:
                setattr(owner, name, original)
    _change_warm(None, None)
