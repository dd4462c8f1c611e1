# SPDX-License-Identifier: MIT OR Apache-2.0
"""The adapter to trio's event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

import trio

from spawnfd._adapter import LoopAdapter


class _TrioFuture:
    """A future for trio, with those methods of asyncio.Future that set a result."""

    __slots__ = ("_done", "_event")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._done = False

    def done(self) -> bool:
        return self._done

    # Set _done last. After an interruption done() is then False, and the setter tries again.
    def set_result(self, result: None) -> None:
        self._event.set()
        self._done = True

    # A KeyboardInterrupt in this method could leave the waiting tasks without a watching task.
    @trio.lowlevel.enable_ki_protection
    def __await__(self) -> Generator[Any, Any, None]:
        yield from self._wait().__await__()

    async def _wait(self) -> None:
        await self._event.wait()


class _Notification(_TrioFuture):
    """A future that a notification of the queue sets."""

    __slots__ = ("_adapter",)

    def __init__(self, adapter: _TrioAdapter) -> None:
        super().__init__()
        self._adapter = adapter

    async def _wait(self) -> None:
        while not self._done:
            if self._adapter.watched:
                # take_over() may have set the previous event only to make this task watch.
                self._event = trio.Event()
                await self._event.wait()
            else:
                await self._adapter.watch(self)

    def take_over(self) -> bool:
        """Makes the task that waits for this future watch the queue; False if no task waits."""
        has_waiter = self._event.statistics().tasks_waiting > 0
        self._event.set()
        return has_waiter


class _TrioAdapter(LoopAdapter):
    """The adapter of one trio run: one waiting task watches the queue for all waiting tasks.

    When that task stops waiting, another one takes over. So the adapter needs no system task: trio
    ends system tasks with the main task, while other tasks may still clean up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = trio.lowlevel.current_trio_token()
        self.watched = False

    async def watch(self, notification: _Notification) -> None:
        """Delivers the queue's notifications until `notification` is set."""
        self.watched = True
        try:
            while not notification.done():
                await self._wait_and_drain()
        finally:
            self.watched = False
            any(other.take_over() for other in self.pending.values())

    async def _wait_and_drain(self) -> None:
        await trio.lowlevel.wait_readable(self.queue.fileno())
        self.drain()

    def create_future(self) -> _TrioFuture:
        return _TrioFuture()

    def register(self) -> tuple[int, _Notification]:
        self.last_key += 1
        self.pending[self.last_key] = notification = _Notification(self)
        return self.last_key, notification

    async def wait(self, future: _TrioFuture, timeout: float | None = None) -> None:
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            await future

    async def shielded(self, wait: Callable[[], Awaitable[object]]) -> None:
        with trio.CancelScope(shield=True):
            await wait()

    def unregister(self, key: int) -> None:
        self.pending.pop(key, None)

    def call_soon(self, call: Callable[[], object]) -> None:
        self.token.run_sync_soon(call)

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        async def sleep() -> None:
            try:
                await trio.sleep(seconds)
            finally:
                call()

        try:
            trio.lowlevel.spawn_system_task(sleep)
        except RuntimeError:
            # The run is ending, so trio takes no more system tasks.
            self.call_soon(call)

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()


_adapter: trio.lowlevel.RunVar[_TrioAdapter] = trio.lowlevel.RunVar("spawnfd")


def trio_adapter() -> _TrioAdapter:
    """Returns the adapter of the trio run in this thread."""
    try:
        return _adapter.get()
    except LookupError:
        adapter = _TrioAdapter()
        _adapter.set(adapter)
        return adapter
