# SPDX-License-Identifier: MIT OR Apache-2.0
"""An asyncio subprocess transport that watches the program through its pidfd."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal as signals
import sys
import warnings
import weakref
from asyncio import events, unix_events
from typing import Any

from spawnfd import _spawnfd

# The returncode if other code has reaped the program; asyncio reports 255 in this case.
_STATUS_LOST = -(1 << 30)


_Base: Any = unix_events._UnixSubprocessTransport  # type: ignore[attr-defined]


def _above_standard(fd: int) -> int:
    """Moves a descriptor above 2, as programs would use 0, 1 or 2 as a standard stream."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


class Transport(_Base):  # type: ignore[misc]
    """A subprocess transport without a child watcher: it needs no thread and no SIGCHLD.

    Signals go through the pidfd, so they cannot reach another process. A status that the Popen has
    already read (transport.close() polls) is not lost. If pidfds are refused, or no descriptor is
    free, the loop polls the program periodically, and signals are sent as Popen sends them.
    """

    _loop: Any
    _proc: Any
    _check_proc: Any
    _process_exited: Any
    _pidfd: int | None = None

    def watch(self) -> None:
        """Makes the event loop wait for the program. Call it once, right after the start."""
        if self._proc.returncode is not None:
            # The program has been reaped, so its pid may belong to another process.
            self._loop.call_soon(self._check)
            return
        if _spawnfd.pidfd_calls_are_killed():
            # A seccomp filter kills the process for pidfd calls, so poll instead.
            self._loop.call_soon(self._check)
            return
        try:
            self._pidfd = pidfd = _above_standard(os.pidfd_open(self._proc.pid))
        except OSError:
            # Other code has reaped the program, SIGCHLD is ignored, or pidfds are unavailable.
            self._loop.call_soon(self._check)
            return
        # This finalizer closes the pidfd even if the loop is closed before the program ends.
        self._close_pidfd = weakref.finalize(self, os.close, pidfd)
        self._close_pidfd.atexit = False
        self._loop.add_reader(pidfd, self._check)

    def _check(self, pause: float = 0.001) -> None:
        proc = self._proc
        code = proc._internal_poll(_deadstate=_STATUS_LOST)
        if code is None:
            # If there is a pidfd, another thread is just reaping the program in Popen.wait(), and
            # the loop calls _check() again. Without a pidfd, poll at the intervals of
            # Popen.wait(timeout).
            if self._pidfd is None:
                self._loop.call_later(pause, self._check, min(2 * pause, 0.05))
            return
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            self._pidfd = None
            self._close_pidfd()
        if code == _STATUS_LOST:
            proc.returncode = code = 255
            logging.getLogger("asyncio").warning(
                "child process pid %d exit status already read: will report returncode 255",
                proc.pid,
            )
        self._process_exited(code)

    def send_signal(self, signal: int) -> None:
        """Sends a signal to the program; no effect on a program that has just ended.

        Raises:
            ProcessLookupError: The loop has already noticed the program's end.
        """
        self._check_proc()
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                try:
                    signals.pidfd_send_signal(self._pidfd, signal)
                    return
                except ProcessLookupError:
                    return
                except OSError:
                    # The kernel refuses pidfd_send_signal; fall back to kill().
                    pass
            if self._proc._internal_poll(_deadstate=_STATUS_LOST) is None:
                os.kill(self._proc.pid, signal)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signals.SIGKILL)


def has_custom_watcher() -> bool:
    """Whether the application has set a child watcher of its own, possible up to Python 3.13."""
    get: Any = getattr(events, "get_child_watcher", None)
    if get is None:
        return False
    if sys.version_info < (3, 12):
        # Before 3.12 get() gives no warning. Avoid catch_warnings(): Python would show old warnings
        # again.
        watcher = get()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            watcher = get()
    module: Any = unix_events
    return type(watcher) not in (module.ThreadedChildWatcher, module.PidfdChildWatcher)


async def make_transport(cls: Any, loop: Any, *arguments: Any, **options: Any) -> Any:
    """Does the work of an event loop's _make_subprocess_transport()."""
    waiter = loop.create_future()
    transport = cls(loop, *arguments, waiter=waiter, **options)
    try:
        transport.watch()
    except BaseException:
        transport.close()
        raise
    try:
        await waiter
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        transport.close()
        await transport._wait()
        raise
    return transport
