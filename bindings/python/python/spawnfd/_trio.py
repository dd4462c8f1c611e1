# SPDX-License-Identifier: MIT OR Apache-2.0
"""The port of a run of trio."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import trio

from spawnfd._port import Port


class _Future:
    """As much of asyncio's as who sets it needs."""

    __slots__ = ("_done", "_error", "_event", "_result")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    # Only what has been told is done: who is interrupted here tells it again.
    def set_result(self, result: Any) -> None:
        self._result = result
        self._event.set()
        self._done = True

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._event.set()
        self._done = True

    # Interrupted amid it, one could leave the others with nobody who watches.
    @trio.lowlevel.enable_ki_protection
    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self._wait().__await__()
        if self._error is not None:
            raise self._error
        return self._result

    async def _wait(self) -> None:
        await self._event.wait()


class _News(_Future):
    """One that the queue sets."""

    __slots__ = ("_port",)

    def __init__(self, port: _TrioPort) -> None:
        super().__init__()
        self._port = port

    async def _wait(self) -> None:
        while not self._done:
            if self._port.watched:
                # The one before may have been set only to have it watch.
                self._event = trio.Event()
                await self._event.wait()
            else:
                await self._port.watch(self)

    def take_over(self) -> bool:
        """Has the task that waits watch the queue, if there is one."""
        waits = self._event.statistics().tasks_waiting > 0
        self._event.set()
        return waits


class _TrioPort(Port):
    """Of those who wait for the queue one watches it for all.

    When he goes another one does. So this needs no task of its own: trio ends those with the main
    task, and others may clean up for longer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = trio.lowlevel.current_trio_token()
        self.watched = False

    async def watch(self, news: _News) -> None:
        """Hands on what the queue brings, until these have come."""
        self.watched = True
        try:
            while not news.done():
                await self._look()
        finally:
            self.watched = False
            any(other.take_over() for other in self.pending.values())

    async def _look(self) -> None:
        await trio.lowlevel.wait_readable(self.queue.fileno())
        self.drain()

    def future(self) -> _Future:
        return _Future()

    def expect(self) -> tuple[int, _News]:
        self.last_key += 1
        self.pending[self.last_key] = news = _News(self)
        return self.last_key, news

    async def wait(self, future: _Future, timeout: float | None = None) -> Any:
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            return await future
        return None

    async def finish(self, key: int, future: _News, timeout: float) -> Any:
        if key in self.pending:
            try:
                with trio.move_on_after(timeout) as scope:
                    scope.shield = True
                    with suppress(OSError):
                        await future
            finally:
                self.forget(key)
        return future._result

    def forget(self, key: int) -> None:
        self.pending.pop(key, None)

    def soon(self, call: Callable[[], object]) -> None:
        self.token.run_sync_soon(call)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        async def sleep() -> None:
            try:
                await trio.sleep(seconds)
            finally:
                call()

        try:
            trio.lowlevel.spawn_system_task(sleep)
        except RuntimeError:
            # There are none any more.
            self.soon(call)

    async def give_way(self) -> None:
        await trio.lowlevel.checkpoint()


_port: trio.lowlevel.RunVar[_TrioPort] = trio.lowlevel.RunVar("spawnfd")


def port() -> _TrioPort:
    """The one of the run in this thread."""
    try:
        return _port.get()
    except LookupError:
        ours = _TrioPort()
        _port.set(ours)
        return ours
