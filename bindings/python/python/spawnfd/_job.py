# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs: handles of supervised runs, in an awaitable and a blocking form."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from spawnfd import _spawnfd
from spawnfd._adapter import OutputReading
from spawnfd._loop import (
    END_TIMEOUT,
    acquire_permit_sync,
    current_adapter,
    end_started_sync,
    enter,
    finish_start,
    finish_start_sync,
    limiter_of,
    wait_shielded,
    wait_until,
    wait_until_sync,
)
from spawnfd._options import Given, Program
from spawnfd._search import OutputMatch, Pattern, Search
from spawnfd._spawnfd import Chunk, Event, Result
from spawnfd._types import Args, Deadline, Input, NotPickled, as_bytes, deadline

if TYPE_CHECKING:
    import asyncio

    from anyio.abc import ByteStream
    from typing_extensions import Self

    # None: no event yet. False: no more events.
    _NextEvent: TypeAlias = Event | Literal[False] | None
    # None: no match yet. False: the output has ended without a match.
    _Found: TypeAlias = OutputMatch | Literal[False] | None

# The default maximum length of a line event, in bytes.
_MAX_LINE = 65_536
# The maximum number of bytes that write() passes to the engine at once.
_WRITE_SIZE = 65_536
# Ctrl-], which ends interact().
_ESCAPE = b"\x1d"
# After this many events an iterator lets other tasks run.
_EVENTS_PER_YIELD = 64


class _JobBase(NotPickled):
    """The methods of a job that neither await nor block.

    Attributes:
        pid: The process id, for printing. The kernel may reuse it once the program has ended. For a
            command of a session: the shell's.
        args: The program's argv. A command of a session has one item, its text.
    """

    __slots__ = ("__weakref__", "_core", "_matched", "_writer_pid", "args", "pid")
    _core: _spawnfd.Job
    # The end of the latest match of wait_for().
    _matched: int
    # The pid of the process in which a write() is in progress, else 0. In a forked child the pid
    # differs, so there no write is in progress.
    _writer_pid: int
    pid: int
    args: list[str]

    def __init__(self) -> None:
        name = type(self).__name__
        raise TypeError(
            f"a {name} cannot be created directly; use spawnfd.start() or spawnfd.start_sync()"
        )

    @classmethod
    def _of(cls, core: _spawnfd.Job) -> Self:
        job = object.__new__(cls)
        job._core = core
        job._matched = job._writer_pid = 0
        job.pid, job.args = core.pid, core.args
        return job

    @property
    def running(self) -> bool:
        """Whether the job has no Result yet. False also if the start failed in the child."""
        try:
            return self._core.result() is None
        except OSError:
            return False

    def read(self, since: int = 0) -> Chunk:
        """Returns the output of both streams from a position on, in order of arrival.

        The job keeps the latest `window` bytes, also after the program's end. Start with 0, then
        pass each chunk's `next`. Such a loop gets every byte once, except those counted in `lost`.
        The call does not block, except on the disk of a `spill`.

        Raises:
            TypeError, ValueError: `since` is not a valid position.
        """
        return self._core.read(since)

    def close_stdin(self) -> None:
        """Closes the program's input after the data that has been written so far."""
        self._core.close_stdin()

    def signal(self, signal: int, *, tree: bool = False) -> None:
        """Sends a signal to the program, or with `tree` to its whole process group.

        A program that has ended gets no signal. If the signal ends the program, even before exec,
        `signal` of the Result has its number.

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
        """Detaches the program: neither leaving the block nor dropping the job ends it.

        The library still reads the program's output and reaps it. wait(), read() and stop() work
        as before.
        """
        self._core.detach()

    def interrupt(self) -> None:
        """Sends SIGINT to the program and its process group, as Ctrl-C in a terminal does.

        A shell abandons the rest of a session's command, as after Session.interrupt(), and keeps
        its state. The call does not wait for the end, and has no effect after the end.
        """
        self.signal(signal.SIGINT, tree=True)

    def _keep_match(self, found: _Found) -> _Found:
        if found:
            self._matched = found.next
        return found

    def _write_now(self, data: Input) -> memoryview | None:
        """Writes what can be written without waiting. Returns the rest; None: nothing is left."""
        if self._writer_pid and self._writer_pid == os.getpid():
            raise RuntimeError("write(): another write() of this job is in progress")
        if type(data) is bytes and len(data) <= _WRITE_SIZE:
            written = self._core.write(data)
            if written == len(data):
                return None
            return memoryview(data)[written or 0 :]
        return as_bytes(data)

    def __repr__(self) -> str:
        try:
            state = "running" if self._core.result() is None else "ended"
        except OSError:
            state = "failed"
        return f"<spawnfd.{type(self).__name__} {self.pid} {state}: {self.args}>"


class Job(_JobBase):
    """The handle of a supervised run; start() creates it.

    As an async context manager it ends the program's process tree when the block is left in any
    way, and waits until the tree has ended. Without a block, dropping the job ends the tree. After
    detach() neither of these ends the tree. result() has the captured output in every case.
    """

    __slots__ = ()

    @classmethod
    async def _start(cls, program: Program | _spawnfd.Remote, args: Args, options: Given) -> Job:
        request = await enter(options)
        started: list[_spawnfd.Job] = []
        adapter = current_adapter()
        if isinstance(program, _spawnfd.Remote):
            await finish_start(program.start(args, options, request, True), started)
        else:
            _spawnfd.Job.start(program, args, options, request, adapter.queue, started)
        job = cls._of(started[0])
        if not options.get("hold", False):
            adapter.call_soon(job._core.release_hold)
        return job

    async def wait(
        self, timeout: float | None = None, *, idle_timeout: float | None = None
    ) -> Result | None:
        """Waits for the Result, at most `timeout` seconds; returns None after that time.

        With `idle_timeout`, the call also returns None once the program has written no output for
        that many seconds during the call. None waits without a limit. The program runs on if the
        time is over, or if the wait is cancelled or interrupted. The Result is available once the
        program has ended and its pipes have been read (see run(): `drain`).

        Raises:
            SpawnError: The start failed in the child; see start().
            TypeError, ValueError: `timeout` or `idle_timeout` is not a valid number of seconds.
        """
        end, core = Deadline(timeout, idle_timeout, self._core.idle), self._core
        while (result := await wait_until(core.result, core.done, end.left())) is None:
            if end.left() == 0:
                return None
        return result

    async def wait_for(
        self,
        pattern: Pattern | Sequence[Pattern],
        timeout: float | None = None,
        *,
        since: int | None = None,
    ) -> OutputMatch | Literal[False] | None:
        """Waits until the output matches a pattern; returns the match.

            if found := await job.wait_for(["Listening on", "already in use"], timeout=30):
                print(("started", "failed")[found.which])

        The call searches the output of both streams in order of arrival. It returns None after
        `timeout` seconds, and False if the output has ended without a match. In both cases the
        program is not affected, and a later call searches the same output again.

        Args:
            pattern: A str or bytes to find as it is, or a compiled regular expression; or a list of
                these, of which `which` of the match names the one that was found first. A match of
                a regular expression is at most 64 KiB long.
            timeout: Seconds to wait. None: no limit.
            since: The position at which the search begins. None: the end of the previous match of
                this job, at first 0. Output that read() no longer has is not searched; see
                start(): `window`.

        Raises:
            SpawnError: The start failed in the child; see start().
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        search = Search(self._core, pattern, self._matched if since is None else since)
        found: _Found = await wait_until(search.attempt, self._core.arrived, timeout)
        if found is False:
            # Raises the error of a failed start.
            await self.result()
        return self._keep_match(found)

    async def result(self) -> Result:
        """Waits for the Result and returns it; it can be called any number of times.

        Raises:
            SpawnError: In the same cases as wait().
        """
        while (result := await self.wait()) is None:
            pass
        return result

    async def stop(self, grace: float | None = None) -> Result:
        """Ends the program and its process tree: SIGTERM, and SIGKILL `grace` seconds later.

        `grace` defaults to the job's own. The returned Result has the output so far. Its `stop` is
        "cancelled", unless the program had already ended. A program that SIGKILL does not end is
        in `leftovers`: see run(), `grace`.

        Raises:
            SpawnError: In the same cases as wait().
            TypeError, ValueError: `grace` is not a valid number of seconds.
        """
        self._core.stop(grace)
        return await self.result()

    async def write(self, data: Input) -> None:
        """Writes to the program's input: bytes, or a str encoded as UTF-8.

        At most 64 KiB are buffered for the program; the call waits until the buffer has taken all
        data. If it is cancelled, a part of the data may have been written.

        Raises:
            BrokenPipeError: The program has ended or closed its input, or close_stdin() was called.
            ValueError: The job was not started with an input to write to; see start(): `stdin`.
            RuntimeError: Another write() of this job is waiting.
        """
        if left := self._write_now(data):
            self._writer_pid = os.getpid()
            try:
                while left:
                    attempt = functools.partial(self._core.write, left[:_WRITE_SIZE])
                    left = left[await wait_until(attempt, self._core.writable) or 0 :]
            finally:
                self._writer_pid = 0

    def events(
        self,
        *,
        lines: bool = False,
        max_line: int = _MAX_LINE,
        flush_after: float | None = None,
        until: Literal["result", "closed"] | None = None,
    ) -> Events:
        """Iterates over the program's output as it arrives, from both streams.

        While the iterator exists, the program blocks on writing when `window` bytes are pending.
        Without an iterator the oldest pending bytes are dropped, and an event with `lost` reports
        that. A further call continues where the last iterator stopped. A `break` drops the iterator
        of a loop, so the program no longer blocks. If the program could not be started, there are
        no events, and result() raises the error.

        Args:
            lines: Whether each event is a line with its line ending ("\\n" or "\\r\\n"), rather
                than a chunk of arbitrary size. In both modes the concatenated texts of all events
                are the output, except for a character that is split at a switch from chunks to
                lines.
            max_line: Maximum length of a line event in bytes, at least 4; 64 KiB by default. A
                longer line becomes several events, all but the last with `partial` set. For
                messages of one line each (JSON-RPC), pass the length of the longest one.
            flush_after: With `lines`: seconds without output after which an incomplete line, such
                as a prompt, becomes an event with `partial` set. None: a line is complete.
            until: When the events end. "result": with the Result of the job; output of surviving
                processes follows only in a further call. "closed": when all processes have closed
                the streams. None: "result" for a command of a session, else "closed".

        Raises:
            TypeError, ValueError: An argument is invalid; the message names it.
        """
        deadline(flush_after, "flush_after")
        return Events(self, self._core.watch(max_line if lines else None, until), flush_after)

    async def interact(
        self, *, stdin: int = 0, stdout: int = 1, escape: bytes = _ESCAPE
    ) -> Result | None:
        """Connects this process's terminal with the job's terminal, until the job has its Result.

            async with sf.start(["vim", "notes.txt"], terminal=os.get_terminal_size()) as job:
                await job.interact()

        The program gets the user's keystrokes, including Ctrl-C and the other control characters.
        The user's terminal shows the program's output. The program's terminal gets the size of the
        user's terminal, also when that size changes.
        The call returns the Result. It returns None when the user types the escape character; the
        program then runs on. The user's terminal gets its settings back in every case. A thread
        does the work, because a terminal may block.

        Args:
            stdin: The descriptor of the terminal to read from.
            stdout: The descriptor to write the output to.
            escape: The byte that ends the call, by default Ctrl-]. b"": none.

        Raises:
            ValueError: The job has no terminal, `stdin` is none, or `escape` is longer than a byte.
            SpawnError: The start failed in the child; see start().
        """
        from spawnfd._interact import interact_async

        return await interact_async(self._core, stdin, stdout, escape)

    def asyncio_streams(
        self, *, limit: int = _MAX_LINE
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns the program's output and input as asyncio streams.

            async with sf.start(["server"], stdin="stream", stderr="inherit") as job:
                reader, writer = job.asyncio_streams()

        The reader has standard output. Captured standard error goes only to the Result and to
        read(). Closing the writer ends the program's input. Use either the streams or events() and
        write(), not both. Call this method before the starting task first yields to the event loop,
        or start the job with `hold`; otherwise output may be lost, and the reader raises OSError.

        Args:
            limit: The reader's buffer limit in bytes, and so the maximum length of a line in
                readline().

        Raises:
            RuntimeError: No asyncio loop runs in this thread.
        """
        from spawnfd._streams import asyncio_streams

        return asyncio_streams(self._core, self.events(), self.write, limit)

    def anyio_stream(self) -> ByteStream:
        """Returns the program's output and input as one anyio.abc.ByteStream.

        The same rules apply as for asyncio_streams(). send_eof() and aclose() end the program's
        input.

        Raises:
            ImportError: anyio is not installed.
        """
        from spawnfd._anyio import JobStream

        return JobStream(self._core, self.events(), self.write)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *traceback: object
    ) -> None:
        core = self._core
        if core.detached:
            return
        core.cancel()
        if kind is GeneratorExit:
            # The coroutine is being closed and cannot await.
            return
        try:
            await wait_shielded(core.result, core.done, core.grace + END_TIMEOUT)
        except OSError:
            if error is None:
                raise


class SyncJob(_JobBase):
    """The blocking form of Job, for threads; start_sync() creates it.

    Methods that are awaitable in Job block here. `with` replaces `async with`. A blocking call
    releases the GIL, and Python's signal handlers run meanwhile. If a handler raises, the call ends
    with that exception and the program runs on.
    """

    __slots__ = ()

    @classmethod
    def _start(cls, program: Program | _spawnfd.Remote, args: Args, options: Given) -> SyncJob:
        started: list[_spawnfd.Job] = []
        try:
            request = acquire_permit_sync(limiter_of(options))
            if isinstance(program, _spawnfd.Remote):
                finish_start_sync(program.start(args, options, request, False), started)
            else:
                _spawnfd.Job.start(program, args, options, request, None, started)
            return cls._of(started[0])
        except BaseException as error:
            end_started_sync(started, error)
            raise

    def wait(
        self, timeout: float | None = None, *, idle_timeout: float | None = None
    ) -> Result | None:
        """The blocking form of Job.wait()."""
        end, core = Deadline(timeout, idle_timeout, self._core.idle), self._core
        while (result := wait_until_sync(core.result, core.done, end.left())) is None:
            if end.left() == 0:
                return None
        return result

    def wait_for(
        self,
        pattern: Pattern | Sequence[Pattern],
        timeout: float | None = None,
        *,
        since: int | None = None,
    ) -> OutputMatch | Literal[False] | None:
        """The blocking form of Job.wait_for()."""
        search = Search(self._core, pattern, self._matched if since is None else since)
        found: _Found = wait_until_sync(search.attempt, self._core.arrived, timeout)
        if found is False:
            self.result()
        return self._keep_match(found)

    def result(self) -> Result:
        """The blocking form of Job.result()."""
        while (result := self.wait()) is None:
            pass
        return result

    def stop(self, grace: float | None = None) -> Result:
        """The blocking form of Job.stop()."""
        self._core.stop(grace)
        return self.result()

    def write(self, data: Input) -> None:
        """The blocking form of Job.write()."""
        if left := self._write_now(data):
            self._writer_pid = os.getpid()
            try:
                while left:
                    attempt = functools.partial(self._core.write, left[:_WRITE_SIZE])
                    left = left[wait_until_sync(attempt, self._core.writable) or 0 :]
            finally:
                self._writer_pid = 0

    def events(
        self,
        *,
        lines: bool = False,
        max_line: int = _MAX_LINE,
        flush_after: float | None = None,
        until: Literal["result", "closed"] | None = None,
    ) -> SyncEvents:
        """The blocking form of Job.events()."""
        deadline(flush_after, "flush_after")
        return SyncEvents(self, self._core.watch(max_line if lines else None, until), flush_after)

    def interact(
        self, *, stdin: int = 0, stdout: int = 1, escape: bytes = _ESCAPE
    ) -> Result | None:
        """The blocking form of Job.interact()."""
        from spawnfd._interact import interact

        return interact(self._core, stdin, stdout, escape)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *traceback: object
    ) -> None:
        if not self._core.detached:
            self._core.cancel()
            try:
                self.wait(self._core.grace + END_TIMEOUT)
            except OSError:
                if error is None:
                    raise

    wait.__doc__ = Job.wait.__doc__
    wait_for.__doc__ = Job.wait_for.__doc__
    result.__doc__ = Job.result.__doc__
    stop.__doc__ = Job.stop.__doc__
    write.__doc__ = Job.write.__doc__
    events.__doc__ = Job.events.__doc__
    interact.__doc__ = Job.interact.__doc__


def _until_flush(core: _spawnfd.Job, flush_after: float | None) -> float | None:
    """Returns the seconds until an incomplete line becomes an event; None: there is none."""
    if flush_after is None or not core.has_open_line():
        return None
    return max(0.0, flush_after - core.idle())


class Events(AsyncIterator[Event]):
    """The asynchronous iterator that Job.events() returns."""

    __slots__ = ("_count", "_flush_after", "_job", "_next", "_reading", "_watcher")

    def __init__(self, job: Job, watcher: _spawnfd.Watcher, flush_after: float | None) -> None:
        self._job, self._watcher, self._count = job, watcher, 0
        self._flush_after = flush_after
        self._next: Callable[[], _NextEvent] = job._core.event
        # The reading of the output by the loop of the latest wait, if that loop reads it.
        self._reading: OutputReading | None = None

    async def __anext__(self) -> Event:
        """The next event."""
        self._count += 1
        if self._count % _EVENTS_PER_YIELD == 0:
            await current_adapter().checkpoint()
        event = self._next()
        core = self._job._core
        while event is None:
            left = _until_flush(core, self._flush_after)
            if left == 0:
                core.flush_lines()
            elif self._reading is None or not self._reading.is_current():
                self._end_reading()
                self._reading = current_adapter().read_output(self._watcher, core)
                if self._reading is None:
                    await wait_until(core.has_event, core.readable, left)
            else:
                await self._reading.wait(left)
            event = self._next()
        if not event:
            raise StopAsyncIteration
        return event

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def __del__(self) -> None:
        with suppress(AttributeError):
            self._end_reading()


class SyncEvents(Iterator[Event]):
    """The iterator that SyncJob.events() returns."""

    __slots__ = ("_flush_after", "_job", "_watcher")

    def __init__(self, job: SyncJob, watcher: _spawnfd.Watcher, flush_after: float | None) -> None:
        self._job, self._watcher, self._flush_after = job, watcher, flush_after

    def __next__(self) -> Event:
        """The next event."""
        core = self._job._core
        event: _NextEvent = core.event()
        while event is None:
            left = _until_flush(core, self._flush_after)
            if left == 0:
                core.flush_lines()
            else:
                wait_until_sync(core.has_event, core.readable, left)
            event = core.event()
        if not event:
            raise StopIteration
        return event
