# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs: supervised runs that are held. What is awaited and what blocks stand side by side."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from spawnfd import _spawnfd
from spawnfd._loop import PATIENCE, admitted, here, limiter_of, until
from spawnfd._options import Program, StartOptions
from spawnfd._spawnfd import Chunk, Event, Result
from spawnfd._types import Args, Input, NotPickled, as_bytes, deadline, remaining

if TYPE_CHECKING:
    from typing_extensions import Self

    # False: there will be none any more.
    _News: TypeAlias = Event | Literal[False] | None

_T = TypeVar("_T")

# The longest line that comes as one event, in bytes.
_LINE = 65_536
# How much of what is written is handed on at a time.
_PIECE = 65_536
# How many events are given at once before others have their turn.
_IN_A_ROW = 64


class _Held(NotPickled):
    """What of a job neither waits nor blocks.

    Attributes:
        pid: For printing. It may be another process's once the program has ended.
        args: The program's argv.
    """

    __slots__ = ("__weakref__", "_core", "_writes", "args", "pid")
    _core: _spawnfd.Job
    # The process in which somebody writes: in a fork's copy nobody does.
    _writes: int
    pid: int
    args: list[str]

    def __init__(self) -> None:
        raise TypeError("spawnfd.start() and spawnfd.start_sync() make these")

    @classmethod
    def _make(
        cls,
        program: Program,
        args: Args,
        options: StartOptions,
        turn: _spawnfd.Turn | None,
        *,
        watched: bool,
    ) -> Self:
        given = dict(options)
        watched |= bool(given.pop("hold", False))
        job = object.__new__(cls)
        job._core = core = _spawnfd.Job(program, args, given, watched, turn)
        job._writes = 0
        job.pid, job.args = core.pid, core.args
        return job

    def read(self, since: int = 0) -> Chunk:
        """What both streams have written from a position on, in order of arrival.

        As far as it is still held: `window` bytes, also after the end. Start with 0, then ask for
        each answer's `next`: every byte comes once, but for those counted in `lost`. Waits for
        nothing but the disk of a `spill`.

        Raises:
            TypeError, ValueError: `since` is no such position.
        """
        return self._core.read(since)

    def close_stdin(self) -> None:
        """Ends the program's input after what has been written so far."""
        self._core.close_stdin()

    def signal(self, signal: int, *, tree: bool = False) -> None:
        """Sends a signal to the program, or to all of its process group; none to one that is gone.

        If that ends it the Result says so (`signal`), also before it had become the program.

        Raises:
            ValueError: There is no such signal.
        """
        self._core.signal(signal, tree)

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the job's terminal; its foreground process group gets SIGWINCH.

        Raises:
            ValueError: The job was started without a terminal, or a size is out of range.
        """
        self._core.resize(rows, columns)

    def detach(self) -> None:
        """Lets go of the program: neither leaving the block nor dropping the job ends it.

        It runs on, drained and reaped. wait(), read() and stop() are as before.
        """
        self._core.detach()

    @contextmanager
    def _writing(self) -> Generator[None]:
        if self._writes == os.getpid():
            raise RuntimeError("write(): another one of this job waits for room")
        self._writes = os.getpid()
        try:
            yield
        finally:
            self._writes = 0

    def __repr__(self) -> str:
        try:
            state = "running" if self._core.result() is None else "ended"
        except OSError:
            state = "failed"
        return f"<spawnfd.{type(self).__name__} {self.pid} {state}: {self.args}>"


class Job(_Held):
    """A supervised run that is held: start() makes these.

    As an async context manager it ends the program's process tree when the block is left, however
    that happens, and waits for it. Otherwise the tree is ended when the job is dropped, unless it
    is detached. What came out is there in any case: see result().
    """

    __slots__ = ()

    @classmethod
    async def _start(cls, program: Program, args: Args, options: StartOptions) -> Job:
        port, turn = await admitted(options)
        job = cls._make(program, args, options, turn, watched=True)
        if not options.get("hold"):
            port.soon(job._core.let_go)
        return job

    async def wait(self, timeout: float | None = None) -> Result | None:
        """Waits for the Result, at most `timeout` seconds; None if the program still runs then.

        The program is left alone, also when the wait is cancelled or interrupted. The Result is
        there when the program has ended and its pipes are read (see run(): `drain`).

        Raises:
            SpawnError: The program could not be started after all; see start().
            TypeError, ValueError: `timeout` is no time to wait.
        """
        return await until(self._core.result, self._core.done, timeout)

    async def result(self) -> Result:
        """Waits for the Result, any number of times.

        Raises:
            SpawnError: As wait().
        """
        while (result := await self.wait()) is None:
            pass
        return result

    async def stop(self, grace: float | None = None) -> Result:
        """Ends the program and its process tree: SIGTERM, and SIGKILL `grace` seconds later.

        `grace` is by default the job's own. Its Result says "cancelled", unless it had ended by
        itself; what it had written is in there. So is a program that SIGKILL does not end: see
        run(), `grace`.

        Raises:
            SpawnError: As wait().
            TypeError, ValueError: `grace` is no time to wait.
        """
        self._core.stop(grace)
        return await self.result()

    async def write(self, data: Input) -> None:
        """Gives the program something to read: bytes, or a str as UTF-8.

        Waits for room: 64 KiB wait for the program at most. Cancelled, it may have taken a part.

        Raises:
            BrokenPipeError: The program reads no more, has ended, or the input was closed.
            ValueError: The job has no such input; see start(): `stdin`.
            RuntimeError: Another write of this job is waiting.
        """
        left = as_bytes(data)
        with self._writing():
            while left:
                attempt = functools.partial(self._core.write, left[:_PIECE])
                left = left[await until(attempt, self._core.writable) or 0 :]

    def events(self, *, lines: bool = False, max_line: int = _LINE) -> Events:
        """What the program writes, as it comes: both streams, in order of arrival.

        As long as the iterator is there the program waits, with its writing, for who iterates: at
        most `window` bytes are in between. Without one the oldest of them are dropped; an event
        with `lost` says so. Called again, it goes on where the last iterator stopped. After a break
        out of a loop there is none any more, so the program runs on.

        Args:
            lines: Whether each event is a line, with what ends it ("\\n" or "\\r\\n"), instead of a
                chunk as it comes. All events' texts together are the output either way, but for a
                character cut where chunks end and lines begin.
            max_line: Bytes after which a line is split in two, 4 at least.

        A program that could not be started has none; result() says why.

        Raises:
            TypeError, ValueError: `max_line` is no such number.
        """
        return Events(self, self._core.watch(max_line if lines else None))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._core
        if core.detached:
            return
        core.stop(None)
        if kind is GeneratorExit:
            # The coroutine is closed, and cannot await any more.
            return
        port = here()
        key, woken = port.expect()
        core.done.listen(port.queue, key)
        try:
            if core.result() is None:
                await port.finish(key, woken, core.grace + PATIENCE)
                core.result()
        except OSError:
            if error is None:
                raise
        finally:
            core.done.unlisten(port.queue, key)
            port.forget(key)


def _until(
    attempt: Callable[[], _T | None], wakeup: _spawnfd.Wakeup, timeout: float | None = None
) -> _T | None:
    """The blocking until()."""
    end, got = deadline(timeout), attempt()
    if got is not None:
        return got
    queue = _spawnfd.Queue()
    try:
        while (left := remaining(end)) != 0:
            wakeup.listen(queue, 0)
            # It may have come before it was listened to.
            if (got := attempt()) is not None:
                return got
            queue.block(left)
            queue.drain({})
            wakeup.unlisten(queue, 0)
    finally:
        wakeup.unlisten(queue, 0)
    return attempt()


def _take_turn(limiter: _spawnfd.Limiter) -> _spawnfd.Turn:
    """The blocking take_turn()."""
    turn = _spawnfd.Turn(limiter)
    try:
        _until(turn.has_come, turn.ready)
    except BaseException:
        turn.give_up()
        raise
    return turn


class SyncJob(_Held):
    """Job for threads: what is awaited there blocks here, and is a context manager as well.

    Blocking releases the GIL, and Python's signal handlers run meanwhile; one that raises leaves
    the program alone.
    """

    __slots__ = ()

    @classmethod
    def _start(cls, program: Program, args: Args, options: StartOptions) -> SyncJob:
        limiter = limiter_of(options)
        turn = None if limiter is None else _take_turn(limiter)
        return cls._make(program, args, options, turn, watched=False)

    def wait(self, timeout: float | None = None) -> Result | None:
        """The blocking Job.wait()."""
        return _until(self._core.result, self._core.done, timeout)

    def result(self) -> Result:
        """The blocking Job.result()."""
        while (result := self.wait()) is None:
            pass
        return result

    def stop(self, grace: float | None = None) -> Result:
        """The blocking Job.stop()."""
        self._core.stop(grace)
        return self.result()

    def write(self, data: Input) -> None:
        """The blocking Job.write()."""
        left = as_bytes(data)
        with self._writing():
            while left:
                attempt = functools.partial(self._core.write, left[:_PIECE])
                left = left[_until(attempt, self._core.writable) or 0 :]

    def events(self, *, lines: bool = False, max_line: int = _LINE) -> SyncEvents:
        """The blocking Job.events()."""
        return SyncEvents(self, self._core.watch(max_line if lines else None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._core.detached:
            self._core.stop(None)
            try:
                self.wait(self._core.grace + PATIENCE)
            except OSError:
                if error is None:
                    raise

    wait.__doc__ = Job.wait.__doc__
    result.__doc__ = Job.result.__doc__
    stop.__doc__ = Job.stop.__doc__
    write.__doc__ = Job.write.__doc__
    events.__doc__ = Job.events.__doc__


class Events(AsyncIterator[Event]):
    """What Job.events() gives."""

    __slots__ = ("_job", "_row", "_watcher")

    def __init__(self, job: Job, watcher: _spawnfd.Watcher) -> None:
        self._job, self._watcher, self._row = job, watcher, 0

    async def __anext__(self) -> Event:
        """The next event."""
        self._row += 1
        if self._row % _IN_A_ROW == 0:
            await here().give_way()
        event: _News = await until(self._job._core.event, self._job._core.readable)
        if not event:
            raise StopAsyncIteration
        return event


class SyncEvents(Iterator[Event]):
    """What SyncJob.events() gives."""

    __slots__ = ("_job", "_watcher")

    def __init__(self, job: SyncJob, watcher: _spawnfd.Watcher) -> None:
        self._job, self._watcher = job, watcher

    def __next__(self) -> Event:
        """The next event."""
        event: _News = _until(self._job._core.event, self._job._core.readable)
        if not event:
            raise StopIteration
        return event
