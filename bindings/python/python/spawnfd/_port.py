# SPDX-License-Identifier: MIT OR Apache-2.0
"""The base class of the event loop adapters, and the gate that spreads starts over time."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spawnfd import _spawnfd

# The maximum number of starts in one iteration of an event loop. Each start blocks the loop for 35
# to 100 us.
STARTS_A_TURN = 4

# The number of recently started programs from which on further starts wait. More of them would only
# compete for processors with each other and with the loop.
YOUNG_AT_ONCE = 4 * len(os.sched_getaffinity(0))

# The age, in seconds, from which on a program does not count as recently started. The limit avoids
# a deadlock between a waiting start and a running program that waits for it.
YOUNG = 0.01


class Gate:
    """Spreads starts over the iterations of a loop, and over time while many programs are recent.

    A program is recent ("young" in names) until YOUNG seconds after its start.
    """

    __slots__ = ("_coming", "_due", "_grown", "_timed", "started", "waiting", "young")

    def __init__(self) -> None:
        # Starts in this iteration of the loop. Any callback in a later iteration resets the count.
        self.started = 0
        # The keys of recent programs. The list may also have keys of older or ended programs.
        self.young: list[int] = []
        # Programs with keys up to this one are not recent any more.
        self._grown = 0
        # The futures of waiting starts, in order.
        self.waiting: deque[Any] = deque()
        # The futures of starts that were admitted and have not begun.
        self._coming: set[Any] = set()
        # _due: open() runs in the next iteration. _timed: open() runs after YOUNG seconds.
        self._due = self._timed = False

    def enter(self, port: Port) -> bool:
        """Returns whether a program may start now. If not, the caller has to await wait()."""
        if self.started >= STARTS_A_TURN or self.waiting or self._crowded(port):
            return False
        self.started += 1
        return True

    def _crowded(self, port: Port) -> bool:
        """Whether the number of recent programs has reached its limit.

        The limit is YOUNG_AT_ONCE or the number of older programs, whichever is larger.
        """
        if len(self.young) + len(self._coming) < YOUNG_AT_ONCE:
            return False
        self.young = [key for key in self.young if key > self._grown and key in port.pending]
        young = len(self.young) + len(self._coming)
        return young >= max(YOUNG_AT_ONCE, len(port.pending) - len(self.young))

    async def wait(self, port: Port) -> None:
        """Waits until a start is admitted, first come, first served."""
        place = port.future()
        self.waiting.append(place)
        if len(self.waiting) == 1:
            self._see_to(port, crowded=False)
        try:
            await port.wait(place)
        except BaseException:
            # Otherwise open() would admit it later, and it would stay in _coming.
            with suppress(ValueError):
                self.waiting.remove(place)
            raise
        finally:
            self._coming.discard(place)

    def open(self, port: Port) -> None:
        """Admits waiting starts, as far as the limits permit."""
        crowded = False
        while self.waiting and self.started < STARTS_A_TURN:
            if crowded := self._crowded(port):
                break
            place = self.waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._coming.add(place)
                self.started += 1
        if self.waiting:
            self._see_to(port, crowded)

    def _see_to(self, port: Port, crowded: bool) -> None:
        if crowded and not self._timed:
            self._timed, newest = True, port.last_key
            port.later(YOUNG, lambda: self._grow(port, newest))
        elif not crowded and not self._due:
            self._due = True
            port.soon(lambda: self._turn(port))

    def _turn(self, port: Port) -> None:
        self._due, self.started = False, 0
        self.open(port)

    def _grow(self, port: Port, newest: int) -> None:
        self._timed, self._grown = False, newest
        self.open(port)


class Port(ABC):
    """The adapter of one event loop to the engine: one descriptor wakes all waiting tasks."""

    def __init__(self) -> None:
        self.queue = _spawnfd.Queue()
        self.gate = Gate()
        # The futures that tasks wait for, by the key of the queue's notification.
        self.pending: dict[int, Any] = {}
        self.last_key = 0

    def drain(self) -> None:
        """Delivers the queue's notifications to the futures, in a new iteration of the loop."""
        self.gate.started = 0
        self.queue.drain(self.pending)
        if self.gate.waiting:
            self.gate.open(self)

    @abstractmethod
    def future(self) -> Any:
        """Creates a future that one task awaits and another one sets."""

    @abstractmethod
    def expect(self) -> tuple[int, Any]:
        """Returns a new key for the queue, and a future for the notification with that key."""

    @abstractmethod
    async def wait(self, future: Any, timeout: float | None = None) -> Any:
        """Waits for the future and returns its result; None after `timeout` seconds."""

    @abstractmethod
    async def finish(self, key: int, future: Any, timeout: float) -> Any:
        """Waits for the notification of a key, at most `timeout` seconds, even if cancelled.

        `future` is the one from expect(). Returns the result. If the task was cancelled, stores the
        result on the cancellation exception (keep()) and raises that.
        """

    @abstractmethod
    def forget(self, key: int) -> None:
        """Removes a key from the pending ones."""

    @abstractmethod
    def soon(self, call: Callable[[], object]) -> None:
        """Schedules a call for after the running task has yielded."""

    @abstractmethod
    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Schedules a call for `seconds` from now."""

    @abstractmethod
    async def give_way(self) -> None:
        """Yields to other tasks; a pending cancellation takes effect here."""
