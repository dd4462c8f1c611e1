# SPDX-License-Identifier: MIT OR Apache-2.0
"""spawn() and Child: a started program and its pidfd, without supervision."""

from __future__ import annotations

import os
import signal as signals
import time
from io import FileIO
from typing import Any

from spawnfd import _signatures, _spawnfd
from spawnfd._options import Given, Program, like
from spawnfd._types import Args, NotPickled, deadline


class Child(NotPickled):
    """A child process that has executed its program; spawn() and Template.spawn() create it.

    A Child identifies its process by pidfd, so waits and signals cannot reach another process.
    As a context manager it closes its pipes and waits for the program at the end of the block.
    wait_async() and `async with` work on asyncio and uvloop; for trio use a Job. Dropping a Child
    does not kill the program and leaves no zombie: a thread of the library reaps it.

    Attributes:
        pid: The process id, for printing and for interfaces that take no pidfd. The kernel may
            reuse it after the wait.
        stdin: The unbuffered pipe to the program if stdin="pipe", else None.
        stdout: The unbuffered pipe from the program if stdout="pipe", else None.
        stderr: The unbuffered pipe from the program if stderr="pipe", else None.
    """

    __slots__ = ("__weakref__", "_core", "pid", "stderr", "stdin", "stdout")
    _core: _spawnfd.Child
    pid: int
    stdin: FileIO | None
    stdout: FileIO | None
    stderr: FileIO | None

    def __init__(self) -> None:
        raise TypeError("a Child cannot be created directly; use spawnfd.spawn()")

    @classmethod
    def _spawn(cls, program: Program, args: Args, options: Given) -> Child:
        child = object.__new__(cls)
        child._core = core = _spawnfd.Child(program, args, options)
        child.pid = core.pid
        stdin, stdout, stderr = core.take_pipes()
        child.stdin = None if stdin is None else FileIO(stdin, "w")
        child.stdout = None if stdout is None else FileIO(stdout, "r")
        child.stderr = None if stderr is None else FileIO(stderr, "r")
        return child

    def fileno(self) -> int:
        """Returns the pidfd, which is readable once the program has ended.

        The pidfd stays open as long as this object exists.
        """
        return self._core.fileno()

    @property
    def pidfd(self) -> int:
        """The pidfd: the number that fileno() returns."""
        return self._core.fileno()

    @property
    def started(self) -> str:
        """How the program was started; the values are those of Result.started."""
        return self._core.started

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negated number of the signal that ended the program.

        None until poll() or a wait has returned the code.
        """
        return self._core.returncode

    @property
    def cpu(self) -> float | None:
        """Seconds of user and system time that the program used; None before it is reaped."""
        usage = self._core.usage()
        return None if usage is None else usage[0]

    @property
    def max_rss(self) -> int | None:
        """The program's largest resident set in bytes; None before it is reaped.

        Never less than the resident set of this process when it started the program.
        """
        usage = self._core.usage()
        return None if usage is None else usage[1]

    def poll(self) -> int | None:
        """Returns the exit code, or the negated signal number; None while the program runs.

        Raises:
            SpawnError: ECHILD: other code reaped the program, by a wait(-1) or because SIGCHLD is
                ignored, so its status is lost.
        """
        return self._core.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the program to end, at most `timeout` seconds; None waits without a limit.

        Returns the exit code, or the negated signal number. Returns None if the program still runs
        after `timeout` seconds; the program runs on. Does not close stdin.

        Raises:
            SpawnError: In the same cases as poll().
            TypeError, ValueError: `timeout` is not a valid number of seconds.
        """
        return self._core.wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> int | None:
        """The awaitable form of wait()."""
        import asyncio
        import fcntl

        end = deadline(timeout)
        code = self._core.poll()
        if code is not None:
            return code
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        # Each waiter duplicates the pidfd, because a loop allows one reader per descriptor.
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
        """Sends a signal to the program through its pidfd; does nothing once the program has ended.

        Raises:
            SpawnError: EINVAL: there is no such signal (also a ValueError). EPERM: the program runs
                under other user ids.
        """
        self._core.send_signal(signal)

    def terminate(self) -> None:
        """Sends SIGTERM through the pidfd; does nothing once the program has ended.

        Raises:
            SpawnError: EPERM: the program runs under other user ids.
        """
        self._core.send_signal(signals.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL through the pidfd; does nothing once the program has ended.

        Raises:
            SpawnError: EPERM: the program runs under other user ids.
        """
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


@like(_signatures.spawn)
def spawn(argv: Args, **options: Any) -> Child:
    """Starts a program, and returns once the child has executed it.

    The program gets the three standard descriptors. Actions can give it others. The call raises an
    auditing event: see run().

    Args:
        argv: The program and its arguments, as for run().
        cwd: The program's working directory: a path, or the descriptor of an open directory. Do
            not pass /proc/self/fd/N: the child resolves paths, with its own descriptor numbers.
        env: The program's environment: an Env, a mapping, or None for a copy of this process's
            current one.
        stdin: "inherit" (default), "null", "pipe", a descriptor or a file. subprocess.DEVNULL is
            "null", and subprocess.PIPE is "pipe".
        stdout: The same choices as for stdin.
        stderr: The same choices as for stdin, or "merge" (subprocess.STDOUT): the same file as
            stdout.
        actions: Further steps of the child before exec, in this order: see spawnfd.actions.
        arg0: The program's argv[0]; by default the name in `argv`.
        sandbox: A Sandbox that starts the program; see run().
        warm: A Warm. If it has a suitable parked process, the program starts from that process.

    Raises:
        SpawnError: In the same cases as run().
        TypeError, ValueError: An argument is invalid; the message names it.
    """
    return Child._spawn(None, argv, options)
