# SPDX-License-Identifier: MIT OR Apache-2.0
"""How what happens in the native engine wakes the event loop that awaits it."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from spawnfd import _spawnfd

if TYPE_CHECKING:
    from spawnfd._spawnfd import Result
    from spawnfd._types import Args, Program, RunOptions

# How long, in seconds and beyond its grace, a cancelled run waits for the killed program to be
# gone. Beyond that (it hangs in the kernel, say) the engine goes on waiting for it.
PATIENCE = 5.0

# How long, in seconds, it can go unseen that the application has closed what a loop listens to, or
# put something else at its number.
UNSEEN = 5.0

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


class Port(Protocol):
    """Where one event loop waits for what the engine tells: one descriptor wakes it for all."""

    queue: _spawnfd.Queue
    gate: Gate
    pending: dict[int, Any]
    last_key: int

    def future(self) -> Any:
        """What one task can wait for, and another tell."""
        ...

    def expect(self) -> tuple[int, Any]:
        """A new key for the queue, and a future of what comes under it."""
        ...

    async def wait(self, future: Any, timeout: float | None = None) -> Any:
        """What the future gets; None when the time is over."""
        ...

    async def finish(self, key: int, future: Any, timeout: float) -> Any:
        """Waits for what comes under a key, cancelled or not; goes on being cancelled then.

        `future` is the one of expect(). Gives what has come, or puts it on what goes on: keep().
        """
        ...

    def forget(self, key: int) -> None:
        """Nobody waits for that any more."""
        ...

    def soon(self, call: Callable[[], object]) -> None:
        """Calls something when the running task has given way."""
        ...

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Calls something after so long."""
        ...

    async def give_way(self) -> None:
        """Lets others run, and cancellation come through."""
        ...


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


class _AsyncioPort:
    """The port of a loop of asyncio, or one like it.

    It is held by those who wait and, as long as it is watched, by the loop's selector. So when the
    loop is closed under them it goes with the coroutines, and its descriptor with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue = _spawnfd.Queue()
        self.gate = Gate()
        self.future = loop.create_future
        self.pending: dict[int, asyncio.Future[Any]] = {}
        self.last_key = 0
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
        self.gate.started = 0
        self.queue.drain(self.pending)
        if self.gate.waiting:
            self.gate.open(self)
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

    def expect(self) -> tuple[int, asyncio.Future[Any]]:
        self.last_key += 1
        future: asyncio.Future[Any] = self.future()
        self.pending[self.last_key] = future
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


async def take_turn(limiter: _spawnfd.Limiter | None) -> _spawnfd.Turn | None:
    """Waits for a place with a limiter; cancelled, it leaves the line."""
    if limiter is None:
        return None
    turn = _spawnfd.Turn(limiter)
    try:
        while not turn.has_come():
            port = here()
            key, rung = port.expect()
            turn.listen(port.queue, key)
            try:
                # It may have rung before anybody listened.
                if not turn.has_come():
                    await port.wait(rung)
            finally:
                turn.unlisten(port.queue, key)
                port.forget(key)
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
