# SPDX-License-Identifier: MIT OR Apache-2.0
"""The adapter to trio's event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import trio

from spawnfd._port import Port


class _Future:
    """The part of asyncio.Future's interface that its setters use."""

    __slots__ = ("_done", "_error", "_event", "_result")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    # _done is set last: an interrupted setter sees done() false, and sets the future again.
    def set_result(self, result: Any) -> None:
        self._result = result
        self._event.set()
        self._done = True

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._event.set()
        self._done = True

    # KeyboardInterrupt in here could leave the other waiting tasks without a watching task.
    @trio.lowlevel.enable_ki_protection
    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self._wait().__await__()
        if self._error is not None:
            raise self._error
        return self._result

    async def _wait(self) -> None:
        await self._event.wait()


class _News(_Future):
    """A future that a notification of the queue sets."""

    __slots__ = ("_port",)

    def __init__(self, port: _TrioPort) -> None:
        super().__init__()
        self._port = port

    async def _wait(self) -> None:
        while not self._done:
            if self._port.watched:
                # take_over() may have set the previous event only to make this task watch.
                self._event = trio.Event()
                await self._event.wait()
            else:
                await self._port.watch(self)

    def take_over(self) -> bool:
        """Makes the task that waits for this future watch the queue; False if there is none."""
        waits = self._event.statistics().tasks_waiting > 0
        self._event.set()
        return waits


class _TrioPort(Port):
    """One of the waiting tasks watches the queue for all of them.

    When that task stops waiting, another one takes over. So the adapter needs no system task: trio
    ends system tasks with the main task, while other tasks may still clean up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = trio.lowlevel.current_trio_token()
        self.watched = False

    async def watch(self, news: _News) -> None:
        """Delivers the queue's notifications until `news` is set."""
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
            # The run is ending, so trio takes no more system tasks.
            self.soon(call)

    async def give_way(self) -> None:
        await trio.lowlevel.checkpoint()


_port: trio.lowlevel.RunVar[_TrioPort] = trio.lowlevel.RunVar("spawnfd")


def port() -> _TrioPort:
    """Returns the adapter of the trio run in this thread."""
    try:
        return _port.get()
    except LookupError:
        ours = _TrioPort()
        _port.set(ours)
        return ours
