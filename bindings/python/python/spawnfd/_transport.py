# SPDX-License-Identifier: MIT OR Apache-2.0
"""asyncio's subprocess transport, the program's end seen through its pidfd."""

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

# Stands for a status that somebody else has taken; asyncio reports 255 then.
_LOST = -(1 << 30)


_Base: Any = unix_events._UnixSubprocessTransport  # type: ignore[attr-defined]


def _above_standard(fd: int) -> int:
    """Moves a descriptor away from 0, 1 and 2, where a program would take it for its own stream."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


class Transport(_Base):  # type: ignore[misc]
    """A subprocess transport that needs no child watcher: no thread, no SIGCHLD.

    Signals go through the pidfd, and so to no other process. A status that its Popen has read
    already (transport.close() polls) is not lost. Where pidfds are refused, or no descriptor is
    left, the loop asks now and then, and signals go as a Popen sends them.
    """

    _loop: Any
    _proc: Any
    _check_proc: Any
    _process_exited: Any
    _pidfd: int | None = None

    def watch(self) -> None:
        """Has the event loop wait for the program; to be called once, right after the start."""
        if self._proc.returncode is not None:
            # It ended on its way: the number may be another's by now.
            self._loop.call_soon(self._look)
            return
        if _spawnfd.pidfds_are_killed():
            # As where they are refused.
            self._loop.call_soon(self._look)
            return
        try:
            self._pidfd = pidfd = _above_standard(os.pidfd_open(self._proc.pid))
        except OSError:
            # Somebody waits for all children, or SIGCHLD is ignored; or there is none to be had.
            self._loop.call_soon(self._look)
            return
        # Also for a loop that is closed before the program ends.
        self._close_pidfd = weakref.finalize(self, os.close, pidfd)
        self._close_pidfd.atexit = False
        self._loop.add_reader(pidfd, self._look)

    def _look(self, pause: float = 0.001) -> None:
        proc = self._proc
        code = proc._internal_poll(_deadstate=_LOST)
        if code is None:
            # Another thread is in Popen.wait(), just about to know: the loop asks again. So without
            # a pidfd, at the intervals of a Popen.wait() with a timeout.
            if self._pidfd is None:
                self._loop.call_later(pause, self._look, min(2 * pause, 0.05))
            return
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            self._pidfd = None
            self._close_pidfd()
        if code == _LOST:
            proc.returncode = code = 255
            logging.getLogger("asyncio").warning(
                "child process pid %d exit status already read: will report returncode 255",
                proc.pid,
            )
        self._process_exited(code)

    def send_signal(self, signal: int) -> None:
        """Signals the program; nothing happens if it has ended unnoticed so far.

        Raises:
            ProcessLookupError: It is known to have ended.
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
                    # Refused.
                    pass
            if self._proc._internal_poll(_deadstate=_LOST) is None:
                os.kill(self._proc.pid, signal)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signals.SIGKILL)


def has_watcher() -> bool:
    """Whether the program has chosen how asyncio is to see a child's end, up to Python 3.13."""
    get: Any = getattr(events, "get_child_watcher", None)
    if get is None:
        return False
    if sys.version_info < (3, 12):
        # Not deprecated yet; and after warnings were ignored for a moment, old ones come again.
        watcher = get()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            watcher = get()
    plain: Any = unix_events
    return type(watcher) not in (plain.ThreadedChildWatcher, plain.PidfdChildWatcher)


async def make_transport(
    cls: Any,
    loop: Any,
    protocol: Any,
    args: Any,
    shell: bool,
    stdin: Any,
    stdout: Any,
    stderr: Any,
    bufsize: int,
    extra: Any = None,
    **kwargs: Any,
) -> Any:
    """An event loop's _make_subprocess_transport."""
    waiter = loop.create_future()
    transport = cls(
        loop,
        protocol,
        args,
        shell,
        stdin,
        stdout,
        stderr,
        bufsize,
        waiter=waiter,
        extra=extra,
        **kwargs,
    )
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
