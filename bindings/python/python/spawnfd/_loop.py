# SPDX-License-Identifier: MIT OR Apache-2.0
"""The connection between the native engine and event loops: wakeups, waits and cancellation."""

from __future__ import annotations

import errno
import functools
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from spawnfd import _spawnfd
from spawnfd._adapter import LoopAdapter, OutputReading
from spawnfd._options import Given, Program
from spawnfd._spawnfd import Result
from spawnfd._types import Args, deadline, remaining

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")

# A cancelled run waits for its killed program until this many seconds after its grace period. After
# that only the engine waits for the program, which may hang in the kernel.
END_TIMEOUT = 5.0

# Seconds between checks of the descriptor that a loop polls. The application may have closed that
# descriptor, or replaced it by another file.
CHECK_INTERVAL = 5.0


def limiter_of(options: Mapping[str, object]) -> _spawnfd.Limiter | None:
    """Returns the limiter from the keyword arguments; the others are validated later, on use."""
    limiter = options.get("limiter")
    return limiter if isinstance(limiter, _spawnfd.Limiter) else None


def attach_result(error: BaseException, run: _spawnfd.ActiveRun | _spawnfd.Job) -> None:
    """Sets the `result` attribute of an exception that ends a run, if there is a Result.

    An existing `result` attribute stays as it is.
    """
    with suppress(AttributeError, OSError):
        if (result := run.result()) is not None and not hasattr(error, "result"):
            cast(Any, error).result = result


def current_adapter() -> LoopAdapter:
    """Returns the adapter of the event loop that runs in this thread."""
    trio: Any = sys.modules.get("trio")
    if trio is not None and _in_trio(trio):
        from spawnfd._trio import trio_adapter

        return trio_adapter()
    loop = _running_loop()
    adapter: _AsyncioAdapter | None = getattr(_last, "adapter", lambda: None)()
    if adapter is None or adapter.loop is not loop or not adapter.watched:
        adapter = _AsyncioAdapter(loop)
        _last.adapter = weakref.ref(adapter)
    return adapter


def _running_loop() -> asyncio.AbstractEventLoop:
    """Returns the asyncio loop that runs in this thread."""
    # `import spawnfd` does not import asyncio, which takes longer than all else. Where a loop runs,
    # asyncio is imported already, so this neither reads a file nor waits for a lock.
    import asyncio

    return asyncio.get_running_loop()


def _in_trio(trio: Any) -> bool:
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


class _AsyncioAdapter(LoopAdapter):
    """The adapter to an asyncio loop, or to a compatible one such as uvloop.

    Only waiting coroutines refer to the adapter and, while `watched` is set, the loop's selector.
    If the application closes the loop, the adapter and its descriptor are freed with the
    coroutines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop = loop
        self.watched = True
        # The latest key at the last check.
        self._checked_key: int = 0
        self._watch()
        self._start_check_timer()

    def _watch(self) -> None:
        try:
            self.loop.add_reader(self.queue.fileno(), self.drain)
        except NotImplementedError:
            # The default loop of Windows, where only the portable engine runs.
            wake = functools.partial(self.loop.call_soon_threadsafe, self.drain)
            cast(Any, self.queue).wake_by(wake)

    def _start_check_timer(self) -> None:
        self._checked_key = self.last_key
        self._check_timer = self.loop.call_later(
            CHECK_INTERVAL, _check_descriptor, weakref.ref(self)
        )

    def check_descriptor(self) -> None:
        """Stops watching a queue that is not used, or whose descriptor was closed or replaced."""
        if not self.queue.is_open():
            self._fail()
        elif self.pending or self.last_key != self._checked_key:
            self._start_check_timer()
        else:
            self._unwatch()

    def _fail(self) -> None:
        """Fails all pending futures with EBADF."""
        # The application owns the descriptor number now, and perhaps the loop's reader for it. So
        # do not call remove_reader().
        self.watched = False
        self.queue.drain(self.pending)
        for future in self.pending.values():
            if not future.done():
                future.set_exception(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        self.pending.clear()

    def _unwatch(self) -> None:
        """Stops watching the queue. The loop's next wait gets another adapter."""
        self.watched = False
        self._check_timer.cancel()
        try:
            self.loop.remove_reader(self.queue.fileno())
        except NotImplementedError:
            cast(Any, self.queue).wake_by(None)

    def create_future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    def register(self) -> tuple[int, asyncio.Future[Any]]:
        self.last_key += 1
        self.pending[self.last_key] = future = self.loop.create_future()
        return self.last_key, future

    async def wait(self, future: asyncio.Future[Any], timeout: float | None = None) -> None:
        if timeout is None:
            await future
            return
        timer = self.loop.call_later(timeout, _set_none, future)
        try:
            await future
        finally:
            timer.cancel()

    async def shielded(self, wait: Callable[[], Awaitable[object]]) -> None:
        import asyncio

        cancelled: asyncio.CancelledError | None = None
        with _anyio_shield():
            while True:
                try:
                    await wait()
                    break
                except asyncio.CancelledError as error:
                    cancelled = error
        if cancelled is not None:
            raise cancelled

    def unregister(self, key: int) -> None:
        self.pending.pop(key, None)

    def read_output(self, watcher: _spawnfd.Watcher, core: _spawnfd.Job) -> OutputReading | None:
        return _AsyncioReading(self, watcher, core)

    def call_soon(self, call: Callable[[], object]) -> None:
        self.loop.call_soon(call)

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        self.loop.call_later(seconds, call)

    async def checkpoint(self) -> None:
        import asyncio

        await asyncio.sleep(0)


class _AsyncioReading(OutputReading):
    """An asyncio loop reads a job's output, so that output wakes this loop's thread alone."""

    def __init__(
        self, adapter: _AsyncioAdapter, watcher: _spawnfd.Watcher, core: _spawnfd.Job
    ) -> None:
        self._loop = adapter.loop
        # The adapter with the registered notification of the engine, and the notification's key. 0:
        # none is registered, and the loop may have replaced the adapter meanwhile.
        self._adapter: LoopAdapter = adapter
        self._key = 0
        self._watcher = watcher
        self._core = core
        # The futures of the tasks that wait.
        self._waiters: set[asyncio.Future[None]] = set()
        # The descriptor of each stream that the loop watches, and of each that it shall watch again
        # once all events are taken.
        self._watched: dict[int, int] = {}
        fds = enumerate(watcher.begin_reading())
        self._paused = {stream: fd for stream, fd in fds if fd is not None}

    def is_current(self) -> bool:
        try:
            return _running_loop() is self._loop
        except RuntimeError:
            return False

    async def wait(self, timeout: float | None) -> None:
        while self._paused:
            stream, fd = self._paused.popitem()
            self._watched[stream] = fd
            self._loop.add_reader(fd, self._read, stream)
        if not self._key:
            self._listen()
        waiter = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            await self._adapter.wait(waiter, timeout)
        finally:
            self._waiters.discard(waiter)

    def _listen(self) -> None:
        self._adapter = current_adapter()
        self._key, notified = self._adapter.register()
        notified.add_done_callback(self._on_notification)
        self._core.readable.listen(self._adapter.queue, self._key)
        if self._core.has_event():
            # The event may have arrived before listen().
            self._loop.call_soon(self._wake, None)

    def _on_notification(self, notified: asyncio.Future[Any]) -> None:
        self._key = 0
        self._wake(None if notified.cancelled() else notified.exception())

    def _wake(self, error: BaseException | None) -> None:
        for waiter in self._waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def _read(self, stream: int) -> None:
        status = self._watcher.read(stream)
        if status != "watch":
            fd = self._watched.pop(stream)
            self._loop.remove_reader(fd)
            if status == "full":
                self._paused[stream] = fd
        self._wake(None)

    def close(self) -> None:
        if self.is_current() or not (self._loop.is_running() or self._loop.is_closed()):
            self._close()
        else:
            # Only the thread that runs the loop may change its readers. A closed loop has none.
            try:
                self._loop.call_soon_threadsafe(self._close)
            except RuntimeError:
                self._watcher.end_reading()

    def _close(self) -> None:
        for stream, fd in self._watched.items():
            # A descriptor that the application has replaced may have a reader of the application.
            if self._watcher.is_own(stream):
                self._loop.remove_reader(fd)
        self._watched.clear()
        self._paused.clear()
        self._core.readable.unlisten(self._adapter.queue, self._key)
        self._adapter.unregister(self._key)
        self._watcher.end_reading()


def _check_descriptor(reference: Callable[[], _AsyncioAdapter | None]) -> None:
    if adapter := reference():
        adapter.check_descriptor()


def _set_none(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


def _anyio_shield() -> AbstractContextManager[object]:
    """Returns a shield from anyio's cancellation, which cancels an asyncio task repeatedly."""
    # Use getattr() with a default, because another thread may be importing anyio.
    scope: Any = getattr(sys.modules.get("anyio"), "CancelScope", None)
    return nullcontext() if scope is None else scope(shield=True)


# `adapter` is a weak reference to the adapter of the asyncio loop that last ran in this thread.
_last = threading.local()


async def wait_until(
    attempt: Callable[[], _T | None],
    wakeup: _spawnfd.Wakeup,
    timeout: float | None = None,
    *,
    start: LoopAdapter | None = None,
) -> _T | None:
    """Calls `attempt` after each wakeup, until it returns a value other than None; returns that.

    Returns None after `timeout` seconds. `start`: the wait is for a program that has just started
    by this adapter, whose gate counts it.
    """
    end, value = deadline(timeout), attempt()
    while value is None and (left := remaining(end)) != 0:
        adapter = start or current_adapter()
        key, woken = adapter.register()
        wakeup.listen(adapter.queue, key)
        if start:
            adapter.gate.recent.append(key)
        try:
            # The wakeup may have occurred before listen().
            if (value := attempt()) is None:
                await adapter.wait(woken, left)
                value = attempt()
        except GeneratorExit:
            # Another thread may be closing the coroutine, so leave the loop alone.
            adapter.pending.pop(key, None)
            raise
        finally:
            wakeup.unlisten(adapter.queue, key)
            adapter.unregister(key)
    return value


def wait_until_sync(
    attempt: Callable[[], _T | None], wakeup: _spawnfd.Wakeup, timeout: float | None = None
) -> _T | None:
    """The blocking form of wait_until()."""
    end, value = deadline(timeout), attempt()
    if value is not None:
        return value
    queue = _spawnfd.Queue(False)
    try:
        while (left := remaining(end)) != 0:
            wakeup.listen(queue, 0)
            # The wakeup may have occurred before listen().
            if (value := attempt()) is not None:
                return value
            queue.block(left)
            queue.drain({})
            wakeup.unlisten(queue, 0)
    finally:
        wakeup.unlisten(queue, 0)
    return attempt()


async def wait_shielded(
    attempt: Callable[[], _T | None], wakeup: _spawnfd.Wakeup, timeout: float
) -> _T | None:
    """Waits like wait_until(), also if the task is cancelled.

    A cancellation is raised after the wait.
    """
    end = deadline(timeout)
    # If the application has closed the queue's descriptor, the wait ends early.
    with suppress(OSError):
        await current_adapter().shielded(lambda: wait_until(attempt, wakeup, remaining(end)))
    return attempt()


async def acquire_permit(limiter: _spawnfd.Limiter | None) -> _spawnfd.PermitRequest:
    """Waits for a permit of a limiter; a cancelled task leaves the limiter's queue."""
    request = _spawnfd.PermitRequest(limiter)
    try:
        await wait_until(request.is_granted, request.ready)
    except BaseException:
        request.cancel()
        raise
    return request


def acquire_permit_sync(limiter: _spawnfd.Limiter | None) -> _spawnfd.PermitRequest:
    """The blocking form of acquire_permit()."""
    request = _spawnfd.PermitRequest(limiter)
    try:
        wait_until_sync(request.is_granted, request.ready)
    except BaseException:
        request.cancel()
        raise
    return request


async def enter(options: Mapping[str, object]) -> _spawnfd.PermitRequest:
    """Waits for the limiter and the gate; returns the permit."""
    request = await acquire_permit(limiter_of(options))
    try:
        adapter = current_adapter()
        if not adapter.gate.try_enter(adapter):
            await adapter.gate.wait(adapter)
    except BaseException:
        request.cancel()
        raise
    return request


async def complete(program: Program | _spawnfd.Session, args: Args, options: Given) -> Result:
    """Starts a program in this thread and awaits its end; if cancelled, ends the program first.

    With a session, the program runs beside the session's shell.
    """
    # Fast path: most calls have no limiter, and the gate admits them at once.
    adapter, request = current_adapter(), None
    if options.get("limiter") is not None or not adapter.gate.try_enter(adapter):
        request = await enter(options)
        adapter = current_adapter()
    started: list[_spawnfd.ActiveRun] = []
    try:
        _spawnfd.begin(program, args, options, request, adapter.queue, started)
        [run] = started
        return cast(Result, await wait_until(run.result, run.done, start=adapter))
    except BaseException as error:
        await end_started(started, error)
        raise


def complete_sync(
    program: Program | _spawnfd.Session | _spawnfd.Remote, args: Args, options: Given
) -> Result:
    """The blocking form of complete(). With a Remote, the program runs on the other machine."""
    started: list[_spawnfd.ActiveRun] = []
    try:
        request = acquire_permit_sync(limiter_of(options))
        _spawnfd.begin(program, args, options, request, None, started)
        [run] = started
        return cast(Result, wait_until_sync(run.result, run.done))
    except BaseException as error:
        end_started_sync(started, error)
        raise


async def finish_start(start: _spawnfd.RemoteStart | None, started: list[_spawnfd.Job]) -> None:
    """Waits for the start of a job on another machine; None: the job has started."""
    if start is None:
        return
    try:
        await wait_until(start.is_over, start.done)
        start.finish(started)
    except BaseException:
        start.cancel()
        raise


def finish_start_sync(start: _spawnfd.RemoteStart | None, started: list[_spawnfd.Job]) -> None:
    """The blocking form of finish_start()."""
    if start is None:
        return
    try:
        wait_until_sync(start.is_over, start.done)
        start.finish(started)
    except BaseException:
        start.cancel()
        raise


async def end_started(
    started: Iterable[_spawnfd.ActiveRun | _spawnfd.Job], error: BaseException
) -> None:
    """Ends the run of a call that raises `error`, which then has the Result."""
    for run in started:
        run.cancel()
        if isinstance(error, GeneratorExit):
            # The coroutine is being closed, perhaps by another thread, and cannot await.
            return
        try:
            await wait_shielded(run.result, run.done, run.grace + END_TIMEOUT)
        except OSError:
            # There is no Result.
            return
        except BaseException as again:
            attach_result(again, run)
            raise
        attach_result(error, run)


def end_started_sync(
    started: Iterable[_spawnfd.ActiveRun | _spawnfd.Job], error: BaseException
) -> None:
    """The blocking form of end_started()."""
    for run in started:
        run.cancel()
        with suppress(OSError):
            wait_until_sync(run.result, run.done, run.grace + END_TIMEOUT)
        attach_result(error, run)
