# SPDX-License-Identifier: MIT OR Apache-2.0
"""start() and start_sync(), which start jobs."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from spawnfd import _signatures
from spawnfd._job import Job, SyncJob
from spawnfd._options import like
from spawnfd._types import Args


class Starting:
    """A pending start; `await` or `async with` performs the start. See start()."""

    __slots__ = ("_coroutine", "_job")

    def __init__(self, coroutine: Coroutine[Any, Any, Job]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[None, None, Job]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Job:
        self._job = await self
        return self._job

    async def __aexit__(self, *error: Any) -> None:
        await self._job.__aexit__(*error)


@like(_signatures.start)
def start(argv: Args, **options: Any) -> Starting:
    """Starts a program as a job: start() when awaited, start_sync() at once.

    A job streams the program's output, takes input and waits for the result.

        async with sf.start(["npm", "test"], timeout=600) as job:
            async for event in job.events(lines=True):
                print(event.stream, event.text, end="")
            result = await job.result()

        job = await sf.start(sf.sh("npm run dev"))
        if await job.wait(10) is None:
            print(job.read().text)

    Leaving the block ends the program's process tree, if it still runs: SIGTERM, then SIGKILL after
    `grace` seconds. The block waits until the tree has ended. Cancelling the task in the block does
    the same. Without a block, dropping the job ends the tree, unless the job is detached. If an
    asynchronous generator is closed (aclose()) inside the block, the tree is ended without waiting:
    the block cannot tell this case from a closed coroutine, which cannot await. To wait for the
    tree in this case, use `await job.stop()` in a `finally` inside the block.

    `start` is awaitable (on asyncio, uvloop, trio and anyio), and starts nothing until `await` or
    `async with`. It returns a Job, which any such loop of this process can use. `start_sync` blocks
    and returns a SyncJob, for threads. For os.fork() see run().

    Args:
        argv: The program and its arguments, as for run().
        options: The options of run(), with these additions.
            stdin: "stream", too, or subprocess.PIPE: the program reads the data passed to write().
            window: Bytes of the latest output, of both streams, that read() can return and that may
            be pending for events(); 1 << 20 by default. At least 64 KiB may be pending for
            events().
            terminal: Without `input`, the data passed to write() is typed.
            hold: Whether the program blocks, once `window` bytes are pending, until events() is
            called. By default it blocks only until the starting task first yields to the event
            loop, and with start_sync not at all. After that the oldest bytes pending for events()
            are dropped.

    Raises:
        SpawnError: In the same cases as run(). wait(), result(), stop() and the end of the block
            raise most errors that occur only in the child (in an action, at exec).
        TypeError, ValueError: An argument is invalid; the message names it.
    """
    return Starting(Job._start(None, argv, options))


@like(_signatures.start)
def start_sync(argv: Args, **options: Any) -> SyncJob:
    """The blocking form of start()."""
    return SyncJob._start(None, argv, options)


start_sync.__doc__ = start.__doc__
