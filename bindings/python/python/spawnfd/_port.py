# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the ports of all event loops have in common, and how they spread starts."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spawnfd import _spawnfd

# How many programs are started in one turn of an event loop. Each takes 35 to 100 us, in which the
# loop sees nothing else.
STARTS_A_TURN = 4

# How many young programs run at once before the next one has to wait: more would only be in each
# other's way, and in the loop's.
YOUNG_AT_ONCE = 4 * len(os.sched_getaffinity(0))

# The age, in seconds, from which on a program is none of them. So nobody waits for one that waits
# for him.
YOUNG = 0.01


class Gate:
    """Spreads the starts of programs over the turns of a loop, and over time where many run."""

    __slots__ = ("_coming", "_due", "_grown", "_timed", "started", "waiting", "young")

    def __init__(self) -> None:
        # In this turn. It starts anew with whatever shows that there has been another.
        self.started = 0
        # The keys of young programs, among others that are not any more, or have ended.
        self.young: list[int] = []
        # The last key that is no young program's.
        self._grown = 0
        # Places of those who wait.
        self.waiting: deque[Any] = deque()
        # Those of them that are let in, and not yet under way.
        self._coming: set[Any] = set()
        # Whether open() will be called soon, and when some have grown.
        self._due = self._timed = False

    def enter(self, port: Port) -> bool:
        """Whether a program may be started now; otherwise wait() says when."""
        if self.started >= STARTS_A_TURN or self.waiting or self._crowded(port):
            return False
        self.started += 1
        return True

    def _crowded(self, port: Port) -> bool:
        """Whether as many young programs run as may: a few, or as many as there are others."""
        if len(self.young) + len(self._coming) < YOUNG_AT_ONCE:
            return False
        self.young = [key for key in self.young if key > self._grown and key in port.pending]
        young = len(self.young) + len(self._coming)
        return young >= max(YOUNG_AT_ONCE, len(port.pending) - len(self.young))

    async def wait(self, port: Port) -> None:
        """Returns when there is room for a start, first come, first served."""
        place = port.future()
        self.waiting.append(place)
        if len(self.waiting) == 1:
            self._see_to(port, crowded=False)
        try:
            await port.wait(place)
        except BaseException:
            # Or it would be let in later, and be coming for ever.
            with suppress(ValueError):
                self.waiting.remove(place)
            raise
        finally:
            self._coming.discard(place)

    def open(self, port: Port) -> None:
        """Lets in who waits, as far as there is room."""
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
    """Where one event loop waits for what the engine tells: one descriptor wakes it for all."""

    def __init__(self) -> None:
        self.queue = _spawnfd.Queue()
        self.gate = Gate()
        # What tasks wait for, by the key under which the queue tells it.
        self.pending: dict[int, Any] = {}
        self.last_key = 0

    def drain(self) -> None:
        """Hands on what the queue has, in a new turn of the loop."""
        self.gate.started = 0
        self.queue.drain(self.pending)
        if self.gate.waiting:
            self.gate.open(self)

    @abstractmethod
    def future(self) -> Any:
        """What one task can wait for, and another tell."""

    @abstractmethod
    def expect(self) -> tuple[int, Any]:
        """A new key for the queue, and a future of what comes under it."""

    @abstractmethod
    async def wait(self, future: Any, timeout: float | None = None) -> Any:
        """What the future gets; None when the time is over."""

    @abstractmethod
    async def finish(self, key: int, future: Any, timeout: float) -> Any:
        """Waits for what comes under a key, cancelled or not; goes on being cancelled then.

        `future` is the one of expect(). Gives what has come, or puts it on what goes on: keep().
        """

    @abstractmethod
    def forget(self, key: int) -> None:
        """Nobody waits for that any more."""

    @abstractmethod
    def soon(self, call: Callable[[], object]) -> None:
        """Calls something when the running task has given way."""

    @abstractmethod
    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Calls something after so long."""

    @abstractmethod
    async def give_way(self) -> None:
        """Lets others run, and cancellation come through."""
