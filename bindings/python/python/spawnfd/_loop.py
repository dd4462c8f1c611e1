# SPDX-License-Identifier: MIT OR Apache-2.0
"""How what happens in the native engine wakes the event loop that awaits it."""

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

# How long, in seconds and beyond its grace, a cancelled run waits for the killed program to be
# gone. Beyond that (it hangs in the kernel, say) the engine goes on waiting for it.
PATIENCE = 5.0

# How long, in seconds, it can go unseen that the application has closed what a loop listens to, or
# put something else at its number.
UNSEEN = 5.0


def limiter_of(options: Any) -> _spawnfd.Limiter | None:
    """The limiter among keyword arguments, whose others are looked at only when they are used."""
    limiter = options.get("limiter")
    return limiter if isinstance(limiter, _spawnfd.Limiter) else None


def keep(error: BaseException, result: Any) -> None:
    """Puts the Result of a run, if there is one, on the exception that the run goes on with.

    One that has such an attribute keeps its own.
    """
    if result is not None and not hasattr(error, "result"):
        with suppress(AttributeError):
            cast(Any, error).result = result


def here() -> Port:
    """The port of the event loop that runs in this thread."""
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
    """Whether the code that runs in this thread is trio's, and not asyncio's within it."""
    sniffio: Any = sys.modules.get("sniffio")
    try:
        if sniffio is None:
            return bool(trio.lowlevel.in_trio_task())
        # Trio tells it, and so does what has asyncio run within trio.
        return bool(sniffio.current_async_library() == "trio")
    except (AttributeError, RuntimeError):
        # Another thread is importing it; or nobody has told.
        return False


class _AsyncioPort(Port):
    """The port of a loop of asyncio, or one like it.

    It is held by those who wait and, as long as it is watched, by the loop's selector. So when the
    loop is closed under them it goes with the coroutines, and its descriptor with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.watched = True
        loop.add_reader(self.queue.fileno(), self._drain)
        self._looks = loop.call_later(UNSEEN, _look, weakref.ref(self))

    def look(self) -> None:
        """Fails all who wait if nothing wakes them any more."""
        if self.queue.is_whole():
            self._looks = self.loop.call_later(UNSEEN, _look, weakref.ref(self))
            return
        # The number is the application's, and so may be the loop's reader of it.
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
        """Lets go of the descriptor soon, unless somebody waits by then."""
        if not self.pending and not self.loop.is_closed():
            # Those who waited run before _rest: one who waits again finds everything ready.
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
        # One that was cancelled just before or after it came has it, too.
        future = self.pending.get(key, future)
        self.forget(key)
        came = future.done() and not future.cancelled() and future.exception() is None
        result = future.result() if came else None
        if cancelled is not None:
            keep(cancelled, result)
            raise cancelled
        return result

    def _waits(self, key: int) -> bool:
        """Whether what is to come under a key has not come."""
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
    """Keeps anyio, which cancels a task of asyncio again and again, from doing so for a while."""
    # Another thread may be importing it.
    scope: Any = getattr(sys.modules.get("anyio"), "CancelScope", None)
    return nullcontext() if scope is None else scope(shield=True)


def _nothing() -> None:
    return None


class _Here(threading.local):
    """What the loop of asyncio that last ran in this thread has."""

    def __init__(self) -> None:
        self.port: Callable[[], _AsyncioPort | None] = _nothing


_here = _Here()


async def entered() -> Port:
    """The port of this loop, in a turn in which a program may be started."""
    port = here()
    if port.gate.enter(port):
        return port
    await port.gate.wait(port)
    # That one may have been given up meanwhile.
    return here()


async def until(
    attempt: Callable[[], _T | None], wakeup: _spawnfd.Wakeup, timeout: float | None = None
) -> _T | None:
    """Repeats an attempt at each wakeup until it returns something but None; returns that."""
    end, got = deadline(timeout), attempt()
    while got is None and (left := remaining(end)) != 0:
        port = here()
        key, woken = port.expect()
        wakeup.listen(port.queue, key)
        try:
            # It may have come before it was listened to.
            if (got := attempt()) is None:
                await port.wait(woken, left)
                got = attempt()
        finally:
            wakeup.unlisten(port.queue, key)
            port.forget(key)
    return got


async def take_turn(limiter: _spawnfd.Limiter | None) -> _spawnfd.Turn | None:
    """Waits for a place with a limiter; a cancelled task gives its turn up."""
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
    """The port of this loop and a place with the limiter, once a program may be started."""
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
    """Starts a program in this thread and awaits its end; cancelled, it ends the program first."""
    # Most go straight on: this is as short as it can be for them.
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
        # The coroutine is closed, perhaps by another thread, and cannot await any more.
        running.cancel()
        port.pending.pop(key, None)
        raise
    except OSError as error:
        if died or error.errno != errno.ESRCH or getattr(error, "stage", "") != "killed":
            raise
        # A parked process was killed as it was about to begin: nothing has happened yet.
        return await complete(program, args, options, died=True)
    except BaseException as error:
        running.cancel()
        keep(error, await port.finish(key, future, running.grace + PATIENCE))
        raise
    return result
