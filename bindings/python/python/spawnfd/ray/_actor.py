# SPDX-License-Identifier: MIT OR Apache-2.0
"""The actor of a node, which keeps a server that starts the programs of the node."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import itertools
import os
import secrets
import select
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from spawnfd import _spawnfd
from spawnfd._errors import SpawnError
from spawnfd._job import Events, Job
from spawnfd._remote import Remote, RemoteSession
from spawnfd._search import OutputMatch
from spawnfd._spawnfd import Event, Limiter, Result
from spawnfd._types import Args
from spawnfd.ray._api import ray
from spawnfd.ray._wire import Gone, pack

# One reply has at most this many events and bytes of a job.
_EVENTS = 256
_EVENT_BYTES = 256 << 10
# Seconds that calls may take to reply once their programs have ended.
_REPLIES_TIMEOUT = 5.0

# The extension is loaded by its path: the server needs no module that a runtime environment of Ray
# adds to sys.path, and has the version of the actor in any case.
_LOADER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_spawnfd", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
if sys.argv[2:]:
    module.serve()
else:
    # The parent of the server, in whose tree daemons are, too.
    sys.exit(module.supervise([*sys.orig_argv, "serve"]) and 1)
"""


def server_command() -> list[str]:
    """Returns the command of a server of the version that this process uses."""
    return [sys.executable, "-I", "-S", "-c", _LOADER, str(_spawnfd.__file__)]


def _end_at_sigterm() -> None:
    """Lets SIGTERM end this worker at once.

    The handler of Ray waits for the running calls. Only the main thread could install another
    handler in Python, and it runs the loop of Ray.
    """
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_handler.restype = ctypes.c_void_p
    set_handler(signal.SIGTERM, None)


def _end_with_raylet() -> None:
    """Ends this worker as soon as its raylet has ended.

    Ray reports the node as lost then. A worker with running calls would go on without it, and so
    would their programs.
    """
    raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))

    def watch() -> None:
        # A raylet that has ended before has no pidfd.
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(raylet)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="spawnfd-raylet", daemon=True).start()


class NodeActor:
    """Runs programs on its node. Each node of a Pool has one, in a worker process of its own.

    The programs are children of a server, which the actor starts, and not of the worker. Ray ends a
    worker by SIGKILL, or the worker ends all of its direct children by SIGKILL and then itself. In
    the second case the guard of the worker ends, too, as it is a child. If programs were children
    of the worker, nothing would end their own children: in a test, 8 runs left 16 processes. With a
    server, the guard of the server survives the worker, and ends all trees.

    An error of a call is a value of the reply. An exception of an actor would reach the caller as a
    RayTaskError, without the attributes of the original.
    """

    def __init__(self, where: str, slots: int) -> None:
        _end_at_sigterm()
        _end_with_raylet()
        self._where = where
        self._slots = Limiter(slots)
        self._remote: Remote | None = None
        # The default tier: daemons of a run end with the run, not only with the server.
        self._tree: Literal["subreaper", "auto"] = "subreaper"
        # The numbers of an earlier process of this actor do not occur again.
        self._numbers = itertools.count(secrets.randbits(60))
        self._jobs: dict[int, Job] = {}
        self._events: dict[int, Events] = {}
        self._sessions: dict[int, RemoteSession] = {}
        # The running calls, and the jobs and sessions, by caller. A caller is a process.
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}
        self._held: dict[str, set[int]] = {}

    def _box(self) -> Remote:
        """Returns the connection to the server. A new server replaces one that has ended."""
        if self._remote is None or self._remote._core.has_ended():
            self._remote = Remote.command(server_command())
        return self._remote

    async def hello(self) -> str | Exception:
        """Waits for the server. Returns the version of this package on the node."""
        try:
            await self._box().ready()
            try:
                await self._box().run_async(["/bin/sh", "-c", ":"], tree=self._tree)
            except SpawnError:
                # No /proc, say. Then the node has another tier, and perhaps no guard.
                self._tree = "auto"
                await self._box().run_async(["/bin/sh", "-c", ":"], tree=self._tree)
        except OSError as error:
            return error
        return _spawnfd.__version__

    async def run(self, caller: str, argv: Args, options: dict[str, Any]) -> Any:
        """Runs a program. Cancelling the call ends the program."""
        with self._counted(caller):
            return await self._run(argv, options)

    async def run_many(
        self, caller: str, commands: Sequence[Args], options: dict[str, Any]
    ) -> list[Any]:
        """Runs several programs at once, as far as the node has slots."""
        with self._counted(caller):
            return await asyncio.gather(*[self._run(argv, options) for argv in commands])

    async def _run(self, argv: Args, options: dict[str, Any]) -> Any:
        try:
            options = {"tree": self._tree, **options}
            result = await self._box().run_async(argv, limiter=self._slots, **options)
        except (OSError, TypeError, ValueError) as error:
            return error
        return pack(result, self._where)

    @contextmanager
    def _counted(self, caller: str) -> Generator[None]:
        """Cancels the task of this call if its caller ends meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        tasks = self._tasks.setdefault(caller, set())
        tasks.add(task)
        try:
            yield
        finally:
            tasks.discard(task)

    async def alive(self) -> None:
        """Never returns: the result is an object that its caller owns as long as it lives."""
        await asyncio.Event().wait()

    async def watch(self, caller: str, alive: list[Any]) -> None:
        """Waits for the end of a caller, and then ends all of its programs."""
        try:
            await alive[0]
        except ray.exceptions.RayError:
            await self.leave(caller)

    async def leave(self, caller: str) -> None:
        """Ends all programs of a caller."""
        for task in self._tasks.pop(caller, set()):
            task.cancel()
        self._drop(*self._held.pop(caller, ()))

    async def start(self, caller: str, argv: Args, options: dict[str, Any]) -> Any:
        """Starts a job. Returns its number, pid and argv."""
        with self._counted(caller):
            options = {"tree": self._tree, **options}
            job = await self._reply(self._box().start, argv, limiter=self._slots, **options)
        return self._hold(caller, job) if isinstance(job, Job) else job

    def _hold(self, caller: str, job: Job) -> tuple[int, int, list[str]]:
        number = next(self._numbers)
        self._jobs[number] = job
        self._held.setdefault(caller, set()).add(number)
        return number, job.pid, job.args

    async def job(self, number: int, method: str, *args: Any, **options: Any) -> Any:
        """Calls a method of a job."""
        if number not in self._jobs:
            return Gone()
        return await self._reply(getattr(self._jobs[number], method), *args, **options)

    async def _reply(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            value = method(*args, **options)
            if inspect.isawaitable(value):
                value = await value
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            return error
        if isinstance(value, Result):
            return pack(value, self._where)
        # A match of a regular expression cannot be pickled.
        return value._replace(match=None) if isinstance(value, OutputMatch) else value

    async def begin_events(self, number: int, options: dict[str, Any]) -> Any:
        """Creates an iterator over the output of a job. Returns its number."""
        if number not in self._jobs:
            return Gone()
        try:
            events = self._jobs[number].events(**options)
        except (OSError, TypeError, ValueError) as error:
            return error
        iterator = next(self._numbers)
        self._events[iterator] = events
        return iterator

    async def next_events(self, iterator: int) -> Any:
        """Waits for events. An empty list: there are no more."""
        events = self._events.get(iterator)
        if events is None:
            return Gone()
        found: list[Event] = []
        size = 0
        try:
            event: Event | Literal[False] | None = await anext(events, None)
        except OSError as error:
            return error
        while event:
            found.append(event)
            size += len(event.bytes)
            if len(found) == _EVENTS or size >= _EVENT_BYTES:
                break
            event = events._next()
        return found

    async def open(self, caller: str, program: Any, args: Args, options: dict[str, Any]) -> Any:
        """Opens a session. Returns its number."""
        with self._counted(caller):
            try:
                options = {"tree": self._tree, **options}
                session = self._box().session(program, args, **options)
                await session.__aenter__()
            except (OSError, TypeError, ValueError) as error:
                return error
            number = next(self._numbers)
            self._sessions[number] = session
            self._held.setdefault(caller, set()).add(number)
            return number

    async def session(
        self, caller: str, number: int, method: str, *args: Any, **options: Any
    ) -> Any:
        """Calls a method of a session. A job among the results is held here."""
        if number not in self._sessions:
            return Gone()
        session = self._sessions[number]
        if method == "pid":
            return session.pid
        with self._counted(caller):
            value = await self._reply(getattr(session, method), *args, **options)
        return self._hold(caller, value) if isinstance(value, Job) else value

    async def drop(self, caller: str, *numbers: int) -> None:
        """Forgets jobs, sessions and iterators. The trees of running jobs end."""
        self._held.get(caller, set()).difference_update(numbers)
        self._drop(*numbers)

    def _drop(self, *numbers: int) -> None:
        for number in numbers:
            self._jobs.pop(number, None)
            self._events.pop(number, None)
            self._sessions.pop(number, None)

    async def close(self) -> None:
        """Ends all programs, and waits for the end of the server."""
        if self._remote is not None:
            await self._remote.__aexit__()
        # The caller kills this worker next. The replies of the calls leave before this reply.
        if calls := set[asyncio.Task[Any]]().union(*self._tasks.values()):
            await asyncio.wait(calls, timeout=_REPLIES_TIMEOUT)
