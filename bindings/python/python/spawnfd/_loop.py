# SPDX-License-Identifier: MIT OR Apache-2.0
"""The connection between the native engine and event loops: wakeups, waits and cancellation."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar, cast

from spawnfd import _spawnfd
from spawnfd._options import Program, RunOptions
from spawnfd._port import Port
from spawnfd._spawnfd import Result
from spawnfd._types import Args, deadline, remaining

_T = TypeVar("_T")

# How many seconds beyond its grace a cancelled run waits for the killed program to end. After that
# (the program hangs in the kernel, say) only the engine continues to wait for it.
PATIENCE = 5.0

# The interval, in seconds, of the check whether the application has closed the descriptor that a
# loop polls, or has replaced it by another file.
UNSEEN = 5.0


def limiter_of(options: Any) -> _spawnfd.Limiter | None:
    """Returns the limiter from the keyword arguments; the others are validated later, on use."""
    limiter = options.get("limiter")
    return limiter if isinstance(limiter, _spawnfd.Limiter) else None


def keep(error: BaseException, result: Any) -> None:
    """Sets the `result` attribute of an exception that ends a run, if there is a Result.

    An existing `result` attribute stays as it is.
    """
    if result is not None and not hasattr(error, "result"):
        with suppress(AttributeError):
            cast(Any, error).result = result


def here() -> Port:
    """Returns the adapter (Port) of the event loop that runs in this thread."""
    trio: Any = sys.modules.get("trio")
    if trio is not None and _runs(trio):
        from spawnfd._trio import port

        return port()
    loop = asyncio.get_running_loop()
    ours = _here.port()
    if ours is None or ours.loop is not loop or not ours.watched:
        ours = _AsyncioPort(loop)
        _here.port = weakref.ref(ours)
    return ours


def _runs(trio: Any) -> bool:
    """Whether the calling code runs in trio, and not in an asyncio loop inside trio."""
    sniffio: Any = sys.modules.get("sniffio")
    try:
        if sniffio is None:
            return bool(trio.lowlevel.in_trio_task())
        # Both trio and libraries that run asyncio inside trio set sniffio's value.
        return bool(sniffio.current_async_library() == "trio")
    except (AttributeError, RuntimeError):
        # Another thread is importing trio or sniffio, or sniffio's value is not set.
        return False


class _AsyncioPort(Port):
    """The adapter to an asyncio loop, or to a compatible one such as uvloop.

    Only waiting coroutines refer to it and, while `watched` is set, the loop's selector. If the
    application closes the loop, the adapter and its descriptor are freed with the coroutines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.watched = True
        loop.add_reader(self.queue.fileno(), self._drain)
        self._looks = loop.call_later(UNSEEN, _look, weakref.ref(self))

    def look(self) -> None:
        """Fails all pending futures with EBADF if the queue's descriptor was closed or replaced."""
        if self.queue.is_whole():
            self._looks = self.loop.call_later(UNSEEN, _look, weakref.ref(self))
            return
        # The application owns the descriptor number now, and perhaps the loop's reader for it. So
        # do not call remove_reader().
        self.watched = False
        self.queue.drain(self.pending)
        for future in self.pending.values():
            if not future.done():
                future.set_exception(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        self.pending.clear()

    def _drain(self) -> None:
        self.drain()
        if not self.pending:
            self._settle()

    def _settle(self) -> None:
        """Schedules the removal of the loop's reader, unless a wait begins before."""
        if not self.pending and not self.loop.is_closed():
            # Woken tasks run before _rest. A task that waits again finds the reader still in place.
            self.loop.call_soon(self._rest)

    def _rest(self) -> None:
        if self.watched and not self.pending:
            self.watched = False
            self._looks.cancel()
            self.loop.remove_reader(self.queue.fileno())

    def future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    def expect(self) -> tuple[int, asyncio.Future[Any]]:
        self.last_key += 1
        self.pending[self.last_key] = future = self.loop.create_future()
        return self.last_key, future

    async def wait(self, future: asyncio.Future[Any], timeout: float | None = None) -> Any:
        if timeout is None:
            return await future
        timer = self.loop.call_later(timeout, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()

    async def finish(self, key: int, future: asyncio.Future[Any], timeout: float) -> Any:
        deadline = self.loop.time() + timeout
        cancelled: asyncio.CancelledError | None = None
        with _shield():
            while self._waits(key) and (left := deadline - self.loop.time()) > 0:
                future = self.loop.create_future()
                self.pending[key] = future
                try:
                    await self.wait(future, left)
                except asyncio.CancelledError as error:
                    cancelled = error
                except OSError:
                    pass
        # drain() may have stored a new future for a result that arrived during cancellation.
        future = self.pending.get(key, future)
        self.forget(key)
        came = future.done() and not future.cancelled() and future.exception() is None
        result = future.result() if came else None
        if cancelled is not None:
            keep(cancelled, result)
            raise cancelled
        return result

    def _waits(self, key: int) -> bool:
        """Whether the result for a key has not arrived yet."""
        future = self.pending.get(key)
        return future is not None and (future.cancelled() or not future.done())

    def forget(self, key: int) -> None:
        if self.pending.pop(key, None) is not None:
            self._settle()

    def soon(self, call: Callable[[], object]) -> None:
        self.loop.call_soon(call)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        self.loop.call_later(seconds, call)

    async def give_way(self) -> None:
        await asyncio.sleep(0)


def _look(port: Callable[[], _AsyncioPort | None]) -> None:
    if ours := port():
        ours.look()


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


def _shield() -> AbstractContextManager[object]:
    """Shields from anyio's cancellation, which cancels an asyncio task repeatedly."""
    # getattr with a default: another thread may be importing anyio.
    scope: Any = getattr(sys.modules.get("anyio"), "CancelScope", None)
    return nullcontext() if scope is None else scope(shield=True)


def _nothing() -> None:
    return None


class _Here(threading.local):
    """The adapter of the asyncio loop that last ran in this thread, as a weak reference."""

    def __init__(self) -> None:
        self.port: Callable[[], _AsyncioPort | None] = _nothing


_here = _Here()


async def entered() -> Port:
    """Waits until the gate admits a start; returns the adapter of this loop."""
    port = here()
    if port.gate.enter(port):
        return port
    await port.gate.wait(port)
    # The adapter may have stopped watching during the wait; here() replaces it then.
    return here()


async def until(
    attempt: Callable[[], _T | None], wakeup: _spawnfd.Wakeup, timeout: float | None = None
) -> _T | None:
    """Repeats `attempt` at each wakeup until it returns a value other than None; returns that.

    Returns None after `timeout` seconds.
    """
    end, got = deadline(timeout), attempt()
    while got is None and (left := remaining(end)) != 0:
        port = here()
        key, woken = port.expect()
        wakeup.listen(port.queue, key)
        try:
            # The wakeup may have occurred before listen().
            if (got := attempt()) is None:
                await port.wait(woken, left)
                got = attempt()
        finally:
            wakeup.unlisten(port.queue, key)
            port.forget(key)
    return got


async def take_turn(limiter: _spawnfd.Limiter | None) -> _spawnfd.Turn | None:
    """Waits for a permit of a limiter; a cancelled task leaves the limiter's queue."""
    if limiter is None:
        return None
    turn = _spawnfd.Turn(limiter)
    try:
        await until(turn.has_come, turn.ready)
    except BaseException:
        turn.give_up()
        raise
    return turn


async def admitted(options: Any) -> tuple[Port, _spawnfd.Turn | None]:
    """Waits for the limiter and the gate; returns this loop's adapter and the permit."""
    turn = await take_turn(limiter_of(options))
    try:
        return await entered(), turn
    except BaseException:
        if turn is not None:
            turn.give_up()
        raise


async def complete(
    program: Program, args: Args, options: RunOptions, *, died: bool = False
) -> Result:
    """Starts a program in this thread and awaits its end; if cancelled, ends the program first."""
    # The fast path: most calls have no limiter and pass the gate at once.
    port, turn = here(), None
    if "limiter" in options or not port.gate.enter(port):
        port, turn = await admitted(options)
    key, future = port.expect()
    try:
        running = _spawnfd.begin(port.queue, key, program, args, options, turn, died)
        port.gate.young.append(key)
    except BaseException:
        port.forget(key)
        raise
    try:
        result: Result = await future
    except GeneratorExit:
        # The coroutine is being closed, perhaps by another thread, and cannot await.
        running.cancel()
        port.pending.pop(key, None)
        raise
    except OSError as error:
        if died or error.errno != errno.ESRCH or getattr(error, "stage", "") != "killed":
            raise
        # A parked process was killed before it began to execute the program: start again.
        return await complete(program, args, options, died=True)
    except BaseException as error:
        running.cancel()
        keep(error, await port.finish(key, future, running.grace + PATIENCE))
        raise
    return result
