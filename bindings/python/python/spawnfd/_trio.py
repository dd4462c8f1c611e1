# SPDX-License-Identifier: MIT OR Apache-2.0
"""The port of a run of trio."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import trio

from spawnfd import _spawnfd
from spawnfd._loop import Gate


class _Future:
    """As much of asyncio's as the native queue needs."""

    __slots__ = ("_error", "_event", "_port", "_result")

    def __init__(self, port: _TrioPort) -> None:
        self._port = port
        self._event = trio.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: Any) -> None:
        self._result = result
        self._event.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._event.set()

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._port.watched:
            yield from self._event.wait().__await__()
        else:
            yield from self._port.watch_for(self._event).__await__()
        if self._error is not None:
            raise self._error
        return self._result


class _TrioPort:
    """See spawnfd._loop.Port. A system task watches the descriptor while the main task runs.

    Then trio ends it, with the other system tasks, and ends generators that nobody has ended. Who
    cleans up there, shielded, watches for himself.
    """

    def __init__(self) -> None:
        self.queue = _spawnfd.Queue()
        self.gate = Gate()
        self.pending: dict[int, _Future] = {}
        self.last_key = 0
        self.token = trio.lowlevel.current_trio_token()
        # Whether the system task watches, and what keeps it there for those who wait for it still.
        self.watched = True
        self._last: trio.CancelScope | None = None
        try:
            trio.lowlevel.spawn_system_task(self._watch)
        except RuntimeError:
            # There are none any more.
            self.watched = False

    async def _watch(self) -> None:
        try:
            while True:
                await self._look(self.queue.fileno())
        finally:
            with trio.CancelScope(shield=True) as self._last:
                while self.pending:
                    await self._look(self.queue.fileno())
            self.watched = False

    async def watch_for(self, event: trio.Event) -> None:
        """Waits for what the queue is to bring, where nobody else watches it."""
        # At one number no two tasks can wait.
        fd = fcntl.fcntl(self.queue.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    while True:
                        await self._look(fd)

                nursery.start_soon(watch)
                await event.wait()
                nursery.cancel_scope.cancel()
        finally:
            os.close(fd)

    async def _look(self, fd: int) -> None:
        await trio.lowlevel.wait_readable(fd)
        self.gate.started = 0
        self.queue.drain(self.pending)
        if self.gate.waiting:
            self.gate.open(self)

    def future(self) -> _Future:
        return _Future(self)

    def expect(self) -> tuple[int, _Future]:
        self.last_key += 1
        future = self.future()
        self.pending[self.last_key] = future
        return self.last_key, future

    async def wait(self, future: _Future, timeout: float | None = None) -> Any:
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            return await future
        return None

    async def finish(self, key: int, timeout: float) -> None:
        future = self.pending.get(key)
        if future is not None:
            with trio.move_on_after(timeout) as scope:
                scope.shield = True
                with suppress(OSError):
                    await future
            self.forget(key)

    def forget(self, key: int) -> None:
        self.pending.pop(key, None)
        if not self.pending and self._last is not None:
            self._last.cancel()

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
