# SPDX-License-Identifier: MIT OR Apache-2.0
"""Notifications from the engine to threads and event loops, and the lock of the engine's state."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

# Guards the state of all runs, limiters and queues. It is reentrant, because a signal handler and
# __del__() may run in a thread that holds it.
LOCK = threading.RLock()

# On Windows a wait for a lock does not end for Ctrl-C, so waits are short there.
_LONGEST_WAIT = 0.1 if sys.platform == "win32" else None


class Queue:
    """The notifications for one event loop, or for one blocking call."""

    def __init__(self, drives_runs: bool) -> None:
        # The notifications: the keys of futures.
        self._keys: deque[int] = deque()
        # SimpleQueue is the one queue of Python that a signal handler can use at any moment.
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        # Wakes a loop that cannot watch a descriptor.
        self._wake: Callable[[], object] | None = None
        if drives_runs:
            import socket

            self._sockets = socket.socketpair()
            for end in self._sockets:
                end.setblocking(False)

    def wake_by(self, wake: Callable[[], object] | None) -> None:
        """Sets a function that each notification calls, in any thread."""
        self._wake = wake

    def push(self, key: int) -> None:
        """Adds a notification, from any thread."""
        self._keys.append(key)
        if self._wake is not None:
            # The loop may be closed.
            with suppress(RuntimeError):
                self._wake()
        elif self._sockets is not None:
            # A full socket wakes the loop, too.
            with suppress(OSError):
                self._sockets[1].send(b"x")
        else:
            self._signals.put(None)

    def fileno(self) -> int:
        """Returns the descriptor that is readable while there are notifications."""
        if self._sockets is None:
            raise ValueError("the queue of a blocking call has no descriptor")
        return self._sockets[0].fileno()

    def is_open(self) -> bool:
        return True

    def drain(self, pending: dict[int, Any]) -> None:
        """Takes all notifications, and sets the future of each in `pending`."""
        if self._sockets is not None:
            # Read before the queue is emptied. A notification in between wakes the loop again.
            with suppress(OSError):
                while len(self._sockets[0].recv(4096)) == 4096:
                    pass
        # If a signal handler raises, the notification stays for the next call.
        while self._keys:
            key = self._keys[0]
            future = pending.get(key)
            if future is not None and not future.done():
                future.set_result(None)
            pending.pop(key, None)
            self._keys.popleft()

    def block(self, timeout: float | None) -> None:
        """Waits for a notification, at most `timeout` seconds. Signal handlers run meanwhile."""
        if _LONGEST_WAIT is not None:
            timeout = _LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT)
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        if not self._keys:
            with suppress(queue.Empty):
                self._signals.get(timeout=timeout)

    def close(self) -> None:
        # An exception may have interrupted __init__().
        for end in getattr(self, "_sockets", None) or ():
            end.close()

    __del__ = close


class Wakeup:
    """Tells listeners that a state has changed. Each listener gets one notification."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        # A dict, because each of its operations is atomic, and none that a caller uses raises an
        # exception: CPython 3.11 can lose that of a signal handler behind it.
        self._listeners: dict[tuple[Queue, int], None] = {}

    def listen(self, queue: Queue, key: int) -> None:
        """Registers a queue, which gets a notification with `key` when the wakeup fires next."""
        self._listeners[queue, key] = None

    def unlisten(self, queue: Queue, key: int) -> None:
        self._listeners.pop((queue, key), None)

    def fire(self) -> None:
        """Notifies all listeners."""
        with suppress(KeyError):
            while True:
                (queue, key), _ = self._listeners.popitem()
                queue.push(key)


class Owned:
    """The base of objects whose state a forked copy of this process must not use."""

    __slots__ = ("_owner",)

    def __init__(self) -> None:
        self._owner = os.getpid()

    def is_forked_copy(self) -> bool:
        return self._owner != os.getpid()
