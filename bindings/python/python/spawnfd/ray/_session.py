# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sessions on the nodes of a Pool, in an awaitable and a blocking form."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from spawnfd._spawnfd import Result
from spawnfd._start import Starting
from spawnfd._types import Arg, Args, SessionProcess
from spawnfd.ray._calls import PROCESS, Calls
from spawnfd.ray._driver import drive, drive_async
from spawnfd.ray._errors import PoolClosed
from spawnfd.ray._job import Job, JobHandle, SyncJob, drop, forget_started
from spawnfd.ray._nodes import Node, Place
from spawnfd.ray._wire import Steps, with_defaults

if TYPE_CHECKING:
    from typing_extensions import Self


class _SessionHandle:
    """What both forms of a session have in common."""

    def __init__(
        self, calls: Calls, place: Place, program: Arg, args: Args, options: dict[str, Any]
    ) -> None:
        self._calls, self._place = calls, place
        self._arguments = (program, args, with_defaults(options))
        # The node and the number of the session there, once it was opened.
        self._node: Node | None = None
        self._number = 0

    @property
    def where(self) -> str | None:
        """The name of the node; None before the session is open."""
        return None if self._node is None else self._node.where

    def _open(self) -> Steps:
        if self._node is not None:
            return
        node = self._calls.choose(self._place)
        yield from self._calls.ready(node)
        ref = node.actor.open.remote(PROCESS, *self._arguments)
        undo = functools.partial(forget_started, self._calls, node)
        self._number = yield from self._calls.call(node, ref, self._name(), 0, undo)
        self._node = node

    def _name(self) -> str:
        return str(self._arguments[0])

    def _call(self, method: str, *args: Any, **options: Any) -> Steps:
        yield from self._open()
        node = self._node
        assert node is not None
        ref = node.actor.session.remote(PROCESS, self._number, method, *args, **options)
        return (yield from self._calls.call(node, ref, self._name(), 0))

    def _run(
        self, form: type[JobHandle], method: str, command: Arg, options: dict[str, Any]
    ) -> Steps:
        """Returns a Result, or the job of a command that runs on."""
        value = yield from self._call(method, command, **options)
        node = self._node
        assert node is not None
        return value if isinstance(value, Result) else form(self._calls, node, value)

    def _close(self) -> Steps:
        if self._node is not None:
            yield from self._call("close")
            self._drop()

    def _drop(self) -> None:
        if self._node is not None:
            drop(self._calls, self._node, self._number)

    def __del__(self) -> None:
        if getattr(self, "_node", None) is not None:
            self._drop()

    def __repr__(self) -> str:
        where = "not open" if self._node is None else f"on {self.where}"
        return f"<spawnfd.ray.{type(self).__name__} {where}: {self._name()}>"


class Session(_SessionHandle):
    """A session on a node; Pool.session() creates it.

    It is used as a spawnfd.Session, with run(), start(), interrupt(), processes() and close(). All
    of them are awaitable. The block, or the first command, chooses the node and opens the session.
    If the node is lost, the calls raise NodeLost.
    """

    async def run(self, command: Arg, **options: Any) -> Any:
        """Runs a command as Session.run() does, and returns its Result.

        With `yield_after`, a Job is returned if the command takes longer.
        """
        return await drive_async(self._run(Job, "run", command, options))

    def start(self, command: Arg, **options: Any) -> Starting:
        """Starts a command as Session.start() does; `await` or `async with` gives a Job."""
        steps = self._run(Job, "start", command, options)
        return Starting(drive_async(steps))

    async def pid(self) -> int | None:
        """Returns the shell's process id on the node."""
        return await drive_async(self._call("pid"))

    async def interrupt(self) -> None:
        """Sends SIGINT to the running command."""
        await drive_async(self._call("interrupt"))

    async def processes(self) -> list[SessionProcess]:
        """Returns the processes of the session except its shell."""
        return await drive_async(self._call("processes"))

    async def close(self) -> None:
        """Ends the shell and the other processes of the session."""
        await drive_async(self._close())

    async def __aenter__(self) -> Self:
        """Chooses a node, and starts the shell there."""
        await drive_async(self._open())
        return self

    async def __aexit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        if kind is GeneratorExit:
            self._drop()
            return
        with suppress(*([] if kind is None else [OSError, PoolClosed])):
            await self.close()


class SyncSession(_SessionHandle):
    """The blocking form of Session; Pool.session_sync() creates it."""

    def run(self, command: Arg, **options: Any) -> Any:
        """The blocking form of Session.run()."""
        return drive(self._run(SyncJob, "run", command, options))

    def start(self, command: Arg, **options: Any) -> SyncJob:
        """The blocking form of Session.start()."""
        job: SyncJob = drive(self._run(SyncJob, "start", command, options))
        return job

    def pid(self) -> int | None:
        """The blocking form of Session.pid()."""
        return drive(self._call("pid"))

    def interrupt(self) -> None:
        """The blocking form of Session.interrupt()."""
        drive(self._call("interrupt"))

    def processes(self) -> list[SessionProcess]:
        """The blocking form of Session.processes()."""
        return drive(self._call("processes"))

    def close(self) -> None:
        """The blocking form of Session.close()."""
        drive(self._close())

    def __enter__(self) -> Self:
        """Chooses a node, and starts the shell there."""
        drive(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *error: object) -> None:
        with suppress(*([] if kind is None else [OSError, PoolClosed])):
            self.close()
