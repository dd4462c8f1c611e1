# SPDX-License-Identifier: MIT OR Apache-2.0
"""How a run that the native engine finishes wakes the event loop that awaits it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from spawnfd import _spawnfd

if TYPE_CHECKING:
    from spawnfd._spawnfd import Result
    from spawnfd._types import Capture, Spawning

# How long, in seconds, a cancelled run waits for the killed program to be gone. Beyond (it hangs in
# the kernel, say) the engine goes on waiting for it.
_PATIENCE = 5.0


class _Completions:
    """The pending runs of one event loop, which one descriptor wakes for all that have ended.

    It is held by those who wait and, as long as it is watched, by the loop's selector. So when the
    loop is closed under them it goes with the coroutines, and its descriptor with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue = _spawnfd.Queue()
        self.pending: dict[int, asyncio.Future[Result]] = {}
        self.last_key = 0
        self.watched = True
        loop.add_reader(self.queue.fileno(), self._drain)

    def _drain(self) -> None:
        self.queue.drain(self.pending)
        self.settle()

    def settle(self) -> None:
        """Lets go of the descriptor soon, unless there is another run by then."""
        if not self.pending:
            # Those who waited run before _rest: one who starts the next run finds everything ready.
            self.loop.call_soon(self._rest)

    def _rest(self) -> None:
        if self.watched and not self.pending:
            self.watched = False
            self.loop.remove_reader(self.queue.fileno())


def _nothing() -> None:
    return None


class _Here(threading.local):
    """What the loop that last ran in this thread has."""

    def __init__(self) -> None:
        self.completions: Callable[[], _Completions | None] = _nothing


_here = _Here()


def _of(loop: asyncio.AbstractEventLoop) -> _Completions:
    completions = _here.completions()
    if completions is None or completions.loop is not loop or not completions.watched:
        completions = _Completions(loop)
        _here.completions = weakref.ref(completions)
    return completions


async def complete(spawning: Spawning, capture: Capture) -> Result:
    """Starts a program in this thread and awaits its end; cancelled, it ends the program first."""
    loop = asyncio.get_running_loop()
    completions = _of(loop)
    completions.last_key = key = completions.last_key + 1
    future: asyncio.Future[Result] = loop.create_future()
    completions.pending[key] = future
    try:
        running = _spawnfd.begin(completions.queue, key, spawning, capture)
    except BaseException:
        del completions.pending[key]
        completions.settle()
        raise
    try:
        return await future
    except asyncio.CancelledError:
        running.cancel()
        if key in completions.pending:
            ended: asyncio.Future[Result] = loop.create_future()
            completions.pending[key] = ended
            await asyncio.wait([ended], timeout=_PATIENCE)
            if ended.done():
                ended.exception()
        raise
    except BaseException:
        # The coroutine is closed, and cannot await any more.
        running.cancel()
        raise
