# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs on the nodes of a Pool, in an awaitable and a blocking form."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from spawnfd._search import OutputMatch, Pattern
from spawnfd._spawnfd import Chunk, Event, Result
from spawnfd._types import Input
from spawnfd.ray._api import ray
from spawnfd.ray._calls import PROCESS, Calls
from spawnfd.ray._driver import drive, drive_async
from spawnfd.ray._errors import PoolClosed
from spawnfd.ray._nodes import Node
from spawnfd.ray._wire import Steps

if TYPE_CHECKING:
    from typing_extensions import Self


class JobHandle:
    """What both forms of a job have in common.

    Attributes:
        pid: The process id on the node, for printing.
        args: The program's argv. A command of a session has one item, its text.
        where: The name of the node.
    """

    def __init__(
        self, calls: Calls, node: Node, started: tuple[int, int, list[str]], *, slots: int = 0
    ) -> None:
        """`slots` is the number of slots that the job takes until its end: 1 outside a session."""
        self._calls, self._node = calls, node
        self._number, self.pid, self.args = started
        self.where = node.where
        self._slots = slots
        node.active += slots

    def _call(self, method: str, *args: Any, **options: Any) -> Steps:
        ref = self._node.actor.job.remote(self._number, method, *args, **options)
        value = yield from self._calls.call(self._node, ref, self.args[0], 0)
        if isinstance(value, Result):
            self._free_slot()
        return value

    def _free_slot(self) -> None:
        self._node.active -= self._slots
        self._slots = 0

    def _result(self) -> Steps:
        while (result := (yield from self._call("wait"))) is None:
            pass
        return result

    def _begin_events(self, options: dict[str, Any]) -> Steps:
        ref = self._node.actor.begin_events.remote(self._number, options)
        return self._calls.call(self._node, ref, self.args[0], 0)

    def _next_events(self, iterator: int) -> Steps:
        ref = self._node.actor.next_events.remote(iterator)
        return self._calls.call(self._node, ref, self.args[0], 0)

    def _drop(self, number: int) -> None:
        drop(self._calls, self._node, number)

    def __del__(self) -> None:
        # The constructor may have failed.
        if hasattr(self, "_slots"):
            self._free_slot()
            self._drop(self._number)

    def __repr__(self) -> str:
        return f"<spawnfd.ray.{type(self).__name__} {self.pid} on {self.where}: {self.args}>"


def drop(calls: Calls, node: Node, number: int) -> None:
    """Lets the actor forget a job, a session or an iterator, without waiting."""
    # At the end of the interpreter the connection to Ray may be gone.
    if not (calls.closed and calls.nodes.owned) and ray.is_initialized():
        with suppress(Exception):
            node.actor.drop.remote(PROCESS, number)


def forget_started(calls: Calls, node: Node, started: int | tuple[int, int, list[str]]) -> None:
    """Ends a session, or a job, whose caller was interrupted before it had the reply."""
    if not isinstance(started, Exception):
        drop(calls, node, started[0] if isinstance(started, tuple) else started)


class Job(JobHandle):
    """A job on a node; Pool.start() creates it.

    It is used as a spawnfd.Job, and all of its methods are awaitable, as each one is a call to the
    node. Leaving the block ends the program's tree and waits for its end. Without a block, dropping
    the job ends the tree. If the node is lost, the calls raise NodeLost.
    """

    async def wait(
        self, timeout: float | None = None, *, idle_timeout: float | None = None
    ) -> Result | None:
        """Waits for the Result as Job.wait() does; None after the time."""
        return await drive_async(self._call("wait", timeout, idle_timeout=idle_timeout))

    async def wait_for(
        self,
        pattern: Pattern | Sequence[Pattern],
        timeout: float | None = None,
        *,
        since: int | None = None,
    ) -> OutputMatch | Literal[False] | None:
        """Waits for a match in the output as Job.wait_for() does. `match` of it is None."""
        return await drive_async(self._call("wait_for", pattern, timeout, since=since))

    async def result(self) -> Result:
        """Waits for the Result."""
        return await drive_async(self._result())

    async def stop(self, grace: float | None = None) -> Result:
        """Ends the tree, and returns the Result."""
        return await drive_async(self._call("stop", grace))

    async def read(self, since: int = 0) -> Chunk:
        """Returns the output from a position on."""
        return await drive_async(self._call("read", since))

    async def write(self, data: Input) -> None:
        """Writes to the program's input."""
        return await drive_async(self._call("write", data))

    async def close_stdin(self) -> None:
        """Closes the program's input."""
        return await drive_async(self._call("close_stdin"))

    async def signal(self, signal: int, *, tree: bool = False) -> None:
        """Sends a signal to the program, or with `tree` to its process group."""
        return await drive_async(self._call("signal", signal, tree=tree))

    async def interrupt(self) -> None:
        """Sends SIGINT to the program and its process group."""
        return await self.signal(signal.SIGINT, tree=True)

    async def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the job's terminal."""
        return await drive_async(self._call("resize", rows, columns))

    async def events(self, **options: Any) -> AsyncIterator[Event]:
        """Iterates over the output as Job.events() does, with the same options."""
        iterator = await drive_async(self._begin_events(options))
        try:
            while events := await drive_async(self._next_events(iterator)):
                for event in events:
                    yield event
        finally:
            self._drop(iterator)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        if kind is GeneratorExit:
            self._drop(self._number)
            return
        try:
            await self.stop()
        except (OSError, PoolClosed):
            if kind is None:
                raise


class SyncJob(JobHandle):
    """The blocking form of Job; Pool.start_sync() creates it."""

    def wait(
        self, timeout: float | None = None, *, idle_timeout: float | None = None
    ) -> Result | None:
        """The blocking form of Job.wait()."""
        return drive(self._call("wait", timeout, idle_timeout=idle_timeout))

    def wait_for(
        self,
        pattern: Pattern | Sequence[Pattern],
        timeout: float | None = None,
        *,
        since: int | None = None,
    ) -> OutputMatch | Literal[False] | None:
        """The blocking form of Job.wait_for()."""
        return drive(self._call("wait_for", pattern, timeout, since=since))

    def result(self) -> Result:
        """The blocking form of Job.result()."""
        return drive(self._result())

    def stop(self, grace: float | None = None) -> Result:
        """The blocking form of Job.stop()."""
        return drive(self._call("stop", grace))

    def read(self, since: int = 0) -> Chunk:
        """The blocking form of Job.read()."""
        return drive(self._call("read", since))

    def write(self, data: Input) -> None:
        """The blocking form of Job.write()."""
        return drive(self._call("write", data))

    def close_stdin(self) -> None:
        """The blocking form of Job.close_stdin()."""
        return drive(self._call("close_stdin"))

    def signal(self, signal: int, *, tree: bool = False) -> None:
        """The blocking form of Job.signal()."""
        return drive(self._call("signal", signal, tree=tree))

    def interrupt(self) -> None:
        """The blocking form of Job.interrupt()."""
        return self.signal(signal.SIGINT, tree=True)

    def resize(self, rows: int, columns: int) -> None:
        """The blocking form of Job.resize()."""
        return drive(self._call("resize", rows, columns))

    def events(self, **options: Any) -> Iterator[Event]:
        """The blocking form of Job.events()."""
        iterator = drive(self._begin_events(options))
        try:
            while events := drive(self._next_events(iterator)):
                yield from events
        finally:
            self._drop(iterator)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        try:
            self.stop()
        except (OSError, PoolClosed):
            if kind is None:
                raise
