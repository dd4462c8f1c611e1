# SPDX-License-Identifier: MIT OR Apache-2.0
"""asyncio's subprocesses, with programs started by spawnfd.

    from spawnfd.asyncio import PIPE, create_subprocess_exec

    process = await create_subprocess_exec("git", "status", stdout=PIPE)
    stdout, _ = await process.communicate()

Process, streams and transports are asyncio's own. The program is started in the same way as by
spawnfd.subprocess.Popen. A pidfd reports the program's end; if no pidfd is available, the loop
polls at least every 50 ms. No child watcher and no waiting thread is used. This module works on
every event loop that has add_reader() and pipes, such as asyncio's own and uvloop.
"""

from __future__ import annotations

from asyncio import base_events, events, streams, subprocess
from asyncio.streams import StreamReader
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from typing import Any

from spawnfd._transport import Transport, make_transport
from spawnfd.subprocess import Popen

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "Process",
    "StreamReader",
    "create_subprocess_exec",
    "create_subprocess_shell",
]

_LIMIT: int = streams._DEFAULT_LIMIT  # type: ignore[attr-defined]


class _SpawnfdTransport(Transport):
    def _start(self, args: Any, shell: bool, *streams: Any, **kwargs: Any) -> None:
        names = dict(zip(("stdin", "stdout", "stderr", "bufsize"), streams, strict=False))
        self._proc = Popen(args, shell=shell, **names, **kwargs)


class _LoopProxy:
    """A stand-in for the running loop that gives loop.subprocess_exec() our transport."""

    _log_subprocess = base_events.BaseEventLoop._log_subprocess  # type: ignore[attr-defined]
    subprocess_exec = base_events.BaseEventLoop.subprocess_exec
    subprocess_shell = base_events.BaseEventLoop.subprocess_shell

    def __init__(self) -> None:
        self.loop = events.get_running_loop()
        self._debug = self.loop.get_debug()

    async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any:
        return await make_transport(_SpawnfdTransport, self.loop, *args, **kwargs)

    async def process(self, method: str, limit: int, *args: Any, **options: Any) -> Process:
        loop = self.loop
        transport, protocol = await getattr(self, method)(
            lambda: subprocess.SubprocessStreamProtocol(limit=limit, loop=loop), *args, **options
        )
        return Process(transport, protocol, loop)


async def create_subprocess_exec(
    program: Any,
    *args: Any,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    limit: int = _LIMIT,
    **kwds: Any,
) -> Process:
    """Starts a program; takes the arguments of asyncio.create_subprocess_exec().

    Raises:
        OSError: The program could not be started, as from subprocess.Popen.
    """
    kwds.update(stdin=stdin, stdout=stdout, stderr=stderr)
    return await _LoopProxy().process("subprocess_exec", limit, program, *args, **kwds)


async def create_subprocess_shell(
    cmd: str | bytes,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    limit: int = _LIMIT,
    **kwds: Any,
) -> Process:
    """Runs a command line in /bin/sh; takes the arguments of asyncio.create_subprocess_shell().

    Raises:
        OSError: The shell could not be started, as from subprocess.Popen.
    """
    kwds.update(stdin=stdin, stdout=stdout, stderr=stderr)
    return await _LoopProxy().process("subprocess_shell", limit, cmd, **kwds)
