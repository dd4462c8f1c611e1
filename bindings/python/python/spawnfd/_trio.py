# SPDX-License-Identifier: MIT OR Apache-2.0
"""The port of a run of trio."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import trio

from spawnfd import _spawnfd
from spawnfd._loop import Gate


class _Future:
    """As much of asyncio's as the native queue needs."""

    __slots__ = ("_error", "_event", "_result")

    def __init__(self) -> None:
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
        yield from self._event.wait().__await__()
        if self._error is not None:
            raise self._error
        return self._result


class _TrioPort:
    """See spawnfd._loop.Port. A system task watches the descriptor for as long as trio runs."""

    def __init__(self) -> None:
        self.queue = _spawnfd.Queue()
        self.gate = Gate()
        self.future = _Future
        self.pending: dict[int, _Future] = {}
        self.last_key = 0
        self.token = trio.lowlevel.current_trio_token()
        trio.lowlevel.spawn_system_task(self._watch)

    async def _watch(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.queue.fileno())
            self.gate.started = 0
            self.queue.drain(self.pending)
            if self.gate.waiting:
                self.gate.open(self)

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

    def soon(self, call: Callable[[], object]) -> None:
        self.token.run_sync_soon(call)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        async def sleep() -> None:
            await trio.sleep(seconds)
            call()

        trio.lowlevel.spawn_system_task(sleep)

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
