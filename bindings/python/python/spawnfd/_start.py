# SPDX-License-Identifier: MIT OR Apache-2.0
"""How jobs are started."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING

from spawnfd._job import Job, SyncJob
from spawnfd._options import Program, StartOptions
from spawnfd._types import Args

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Starting:
    """A job to be started, by `await` or `async with`; see start()."""

    __slots__ = ("_coroutine", "_job")

    def __init__(self, program: Program, args: Args, options: StartOptions) -> None:
        self._coroutine = Job._start(program, args, options)

    def __await__(self) -> Generator[None, None, Job]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Job:
        self._job = await self
        return self._job

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._job.__aexit__(kind, error, traceback)


def start(argv: Args, **options: Unpack[StartOptions]) -> Starting:
    """Starts a program and holds it as a job: to stream, to write, to wait without ending it.

        async with sf.start(["npm", "test"], timeout=600) as job:
            async for event in job.events(lines=True):
                print(event.stream, event.text, end="")
            result = await job.result()

        job = await sf.start(sf.sh("npm run dev"))
        if await job.wait(10) is None:
            print(job.read().text)

    Leaving the block ends the program's process tree, if it still runs: SIGTERM, `grace` seconds,
    SIGKILL; and waits for that. So does cancelling the task in it. Without a block the tree is
    ended when the job is dropped, unless it is detached. An asynchronous generator that is closed
    (aclose()) with the block in it ends the tree, but does not wait: nothing tells it from a
    coroutine that is closed, where nothing can be awaited. `await job.stop()` in a `finally` of the
    block does.

    `start` awaits (on asyncio, uvloop, trio, anyio) and gives a Job, which any such loop of this
    process can use; `start_sync` blocks and gives a SyncJob, for threads. For os.fork() see run().

    Args:
        argv: As for run().
        options: As for run(), and these. stdin: "stream", too: what write() gives it.
            window: Bytes of the latest output, both streams in order of arrival, that read() can
            still give, and that may wait for events() (64 KiB may in any case); 1 << 20 by default.
            terminal: Without `input`, write() is what is typed.
            hold: Whether the program waits until events() is called, once `window` bytes wait for
            it. By default it does for as long as the task that starts it has not given way;
            start_sync: not at all. Later the oldest bytes are dropped, as far as events() goes.

    Raises:
        SpawnError: As run(). What goes wrong only in the child (an action, exec) is mostly raised
            by wait(), result(), stop() and the end of the block instead.
        TypeError, ValueError: An argument cannot be what it is; the message names it.
    """
    return Starting(None, argv, options)


def start_sync(argv: Args, **options: Unpack[StartOptions]) -> SyncJob:
    """The blocking start()."""
    return SyncJob._start(None, argv, options)


start_sync.__doc__ = start.__doc__
