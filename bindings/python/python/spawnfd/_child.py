# SPDX-License-Identifier: MIT OR Apache-2.0
"""The primitive: a started program, held by its pidfd."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal as signals
import time
from io import FileIO
from typing import TYPE_CHECKING

from spawnfd import _spawnfd
from spawnfd._options import Program, SpawnOptions
from spawnfd._types import Args, NotPickled, deadline

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Child(NotPickled):
    """A child process that has become its program; spawn() and Template.spawn() make them.

    It is known by its pidfd, so neither waiting nor signalling can hit another process. As a
    context manager it closes its pipes and waits at the end of the block; wait_async() and
    `async with` are for asyncio and uvloop (a Job is for trio, too). Dropping it does not kill
    it, and leaves no zombie: if it still runs, a thread of the library waits for it.

    Attributes:
        pid: For printing, and for what takes no pidfd. Another process may have it after the wait.
        stdin: The pipe to write to (unbuffered) where stdin="pipe", else None.
        stdout: The pipe to read from where stdout="pipe", else None.
        stderr: Likewise.
    """

    __slots__ = ("__weakref__", "_core", "pid", "stderr", "stdin", "stdout")
    _core: _spawnfd.Child
    pid: int
    stdin: FileIO | None
    stdout: FileIO | None
    stderr: FileIO | None

    def __init__(self) -> None:
        raise TypeError("spawnfd.spawn() makes these")

    @classmethod
    def _spawn(cls, program: Program, args: Args, options: SpawnOptions) -> Child:
        child = object.__new__(cls)
        child._core = core = _spawnfd.Child(program, args, options)
        child.pid = core.pid
        stdin, stdout, stderr = core.take_pipes()
        child.stdin = None if stdin is None else FileIO(stdin, "w")
        child.stdout = None if stdout is None else FileIO(stdout, "r")
        child.stderr = None if stderr is None else FileIO(stderr, "r")
        return child

    def fileno(self) -> int:
        """The pidfd: readable when the program has ended. It stays open as long as this object."""
        return self._core.fileno()

    @property
    def pidfd(self) -> int:
        """The same."""
        return self._core.fileno()

    @property
    def started(self) -> str:
        """How it was started, as `started` of a Result."""
        return self._core.started

    @property
    def returncode(self) -> int | None:
        """The exit code, a signal's number negative, or None if it has not been waited for."""
        return self._core.returncode

    @property
    def cpu(self) -> float | None:
        """Seconds of user and system time it used, None before it has been waited for."""
        usage = self._core.usage()
        return None if usage is None else usage[0]

    @property
    def max_rss(self) -> int | None:
        """The largest resident set in bytes, None before it has been waited for.

        Never less than this process's own as it started the program.
        """
        usage = self._core.usage()
        return None if usage is None else usage[1]

    def poll(self) -> int | None:
        """The exit code (a signal's number negative) if the program has ended; None if it runs.

        Raises:
            SpawnError: ECHILD: somebody else has taken the status (a wait(-1), SIGCHLD ignored).
        """
        return self._core.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the program's end, at most `timeout` seconds; None if it still runs, untouched.

        Returns the exit code, or a signal's number negative. Does not close stdin.

        Raises:
            SpawnError: As poll().
        """
        return self._core.wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> int | None:
        """The awaitable wait()."""
        end = deadline(timeout)
        code = self._core.poll()
        if code is not None:
            return code
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        # A number of its own for each waiter: a loop has one reader for a number.
        fd = fcntl.fcntl(self._core.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            loop.add_reader(fd, wake)
            try:
                await asyncio.wait([ended], timeout=end and end - time.monotonic())
            finally:
                loop.remove_reader(fd)
        finally:
            os.close(fd)
        return self._core.poll()

    wait_async.__doc__ = wait.__doc__

    def send_signal(self, signal: int) -> None:
        """Sends a signal to this process and no other; one that has ended is left alone.

        Raises:
            SpawnError: EINVAL: no such signal (a ValueError). EPERM: it runs under other ids.
        """
        self._core.send_signal(signal)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._core.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._core.send_signal(signals.SIGKILL)

    def close(self) -> None:
        """Closes the pipes that are still open."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        self.wait()

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()
        await self.wait_async()

    def __repr__(self) -> str:
        code = self.returncode
        return f"<spawnfd.Child {self.pid} {'running' if code is None else f'ended: {code}'}>"


def spawn(argv: Args, **options: Unpack[SpawnOptions]) -> Child:
    """Starts a program, and returns as soon as it has become the program.

    It gets the standard descriptors and no other, unless an action says so.

    Args:
        argv: As for run().
        cwd: The directory it starts in: a path, or the descriptor of an open directory (not as
            /proc/self/fd/N: the child looks paths up, and has numbers of its own).
        env: Its environment: an Env, a mapping, or None for this process's as it is now.
        stdin: "inherit" (default), "null", "pipe", a descriptor or a file.
        stdout: Likewise.
        stderr: Likewise, or "merge": whatever stdout is.
        actions: What else the child does before it becomes the program, in this order: see
            spawnfd.actions.
        arg0: What the program sees as its argv[0], if not the name it is started by.
        sandbox: A Sandbox: the program is started through it; see run().
        warm: A Warm: it is started from a parked process, if there is one for it.

    Raises:
        SpawnError: As run().
        TypeError, ValueError: An argument cannot be what it is; the message names it.
    """
    return Child._spawn(None, argv, options)
