# SPDX-License-Identifier: MIT OR Apache-2.0
"""The base class of the event loop adapters, and the gate that spreads starts over time."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from spawnfd import _spawnfd

# The maximum number of starts in one iteration of an event loop. Each start blocks the loop for 35
# to 100 us.
STARTS_PER_ITERATION = 4


def _count_processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# While this many programs are recent, further starts wait: more programs would only compete for
# processors with each other and with the loop.
MAX_RECENT = 4 * _count_processors()

# A program is recent for this many seconds after its start. This time limit avoids a deadlock: a
# recent program may wait for a program that the gate has not admitted yet.
RECENT_SECONDS = 0.01


class StartGate:
    """Limits the starts per iteration of a loop, and the number of recently started programs."""

    __slots__ = (
        "_admit_scheduled",
        "_admitted",
        "_expiry_scheduled",
        "_last_expired",
        "recent",
        "started",
        "waiting",
    )

    def __init__(self) -> None:
        # Starts in this iteration of the loop. The first callback of a later iteration resets it.
        self.started = 0
        # The keys of recent programs. The list may also have keys of older or ended programs.
        self.recent: list[int] = []
        # Programs with keys up to this one are not recent any more.
        self._last_expired = 0
        # The futures of waiting starts, in order.
        self.waiting: deque[Any] = deque()
        # The futures of starts that were admitted and have not begun.
        self._admitted: set[Any] = set()
        # Whether admit() is scheduled for the next iteration, and for RECENT_SECONDS from now.
        self._admit_scheduled = self._expiry_scheduled = False

    def try_enter(self, adapter: LoopAdapter) -> bool:
        """Returns whether a program may start now. If not, the caller must await wait()."""
        if self.started >= STARTS_PER_ITERATION or self.waiting or self._at_limit(adapter):
            return False
        self.started += 1
        return True

    def _at_limit(self, adapter: LoopAdapter) -> bool:
        """Whether the number of recent programs has reached its limit.

        The limit is MAX_RECENT or the number of older programs, whichever is larger.
        """
        if len(self.recent) + len(self._admitted) < MAX_RECENT:
            return False
        self.recent = [
            key for key in self.recent if key > self._last_expired and key in adapter.pending
        ]
        recent = len(self.recent) + len(self._admitted)
        return recent >= max(MAX_RECENT, len(adapter.pending) - len(self.recent))

    async def wait(self, adapter: LoopAdapter) -> None:
        """Waits until a start is admitted, first come, first served."""
        waiter = adapter.create_future()
        self.waiting.append(waiter)
        if len(self.waiting) == 1:
            self._schedule_admit(adapter, at_limit=False)
        try:
            await adapter.wait(waiter)
        except BaseException:
            # The task was cancelled. If its future stayed in the queue, admit() would move it to
            # _admitted for ever.
            with suppress(ValueError):
                self.waiting.remove(waiter)
            raise
        finally:
            self._admitted.discard(waiter)

    def admit(self, adapter: LoopAdapter) -> None:
        """Admits waiting starts, as far as the limits permit."""
        at_limit = False
        while self.waiting and self.started < STARTS_PER_ITERATION:
            if at_limit := self._at_limit(adapter):
                break
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._admitted.add(waiter)
                self.started += 1
        if self.waiting:
            self._schedule_admit(adapter, at_limit)

    def _schedule_admit(self, adapter: LoopAdapter, at_limit: bool) -> None:
        if at_limit and not self._expiry_scheduled:
            self._expiry_scheduled, newest = True, adapter.last_key
            adapter.call_later(RECENT_SECONDS, lambda: self._expire_recent(adapter, newest))
        elif not at_limit and not self._admit_scheduled:
            self._admit_scheduled = True
            adapter.call_soon(lambda: self._next_iteration(adapter))

    def _next_iteration(self, adapter: LoopAdapter) -> None:
        self._admit_scheduled, self.started = False, 0
        self.admit(adapter)

    def _expire_recent(self, adapter: LoopAdapter, newest: int) -> None:
        self._expiry_scheduled, self._last_expired = False, newest
        self.admit(adapter)


class OutputReading(ABC):
    """The reading of a job's output by an event loop, for one iterator of its events."""

    @abstractmethod
    def is_current(self) -> bool:
        """Whether this loop runs the calling code."""

    @abstractmethod
    async def wait(self, timeout: float | None) -> None:
        """Waits once for output, or for a notification of the engine; may return without either.

        Waits at most `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives reading back to the engine; may be called in any thread."""


class LoopAdapter(ABC):
    """The adapter of one event loop to the engine: one descriptor wakes all waiting tasks."""

    def __init__(self) -> None:
        self.queue = _spawnfd.Queue(True)
        self.gate = StartGate()
        # The futures that tasks await, by the keys of the notifications that set them.
        self.pending: dict[int, Any] = {}
        self.last_key: int = 0

    def drain(self) -> None:
        """Drives the loop's runs, and delivers notifications to futures, in a new iteration."""
        self.gate.started = 0
        self.queue.drain(self.pending)
        if self.gate.waiting:
            self.gate.admit(self)

    @abstractmethod
    def create_future(self) -> Any:
        """Creates a future that one task awaits and another one sets."""

    @abstractmethod
    def register(self) -> tuple[int, Any]:
        """Returns a new key for the queue, and a future for the notification with that key."""

    @abstractmethod
    async def wait(self, future: Any, timeout: float | None = None) -> None:
        """Waits for the future, at most `timeout` seconds."""

    @abstractmethod
    async def shielded(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Awaits `wait()` to its end. A cancellation is raised after that."""

    @abstractmethod
    def unregister(self, key: int) -> None:
        """Removes a key from the pending ones."""

    def read_output(self, watcher: _spawnfd.Watcher, core: _spawnfd.Job) -> OutputReading | None:
        """Lets this loop read the output of a watcher's job; None if the engine shall read it."""
        return None

    @abstractmethod
    def call_soon(self, call: Callable[[], object]) -> None:
        """Schedules a call for after the running task has yielded."""

    @abstractmethod
    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Schedules a call for `seconds` from now."""

    @abstractmethod
    async def checkpoint(self) -> None:
        """Yields to other tasks; a pending cancellation takes effect here."""
