# SPDX-License-Identifier: MIT OR Apache-2.0
"""Captured runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spawnfd import _spawnfd
from spawnfd._loop import complete
from spawnfd._types import KEEP

if TYPE_CHECKING:
    from spawnfd._spawnfd import Result
    from spawnfd._types import (
        Actions,
        Arg,
        Args,
        Cwd,
        Environment,
        Input,
        RunStderr,
        RunStdin,
        RunStdout,
    )


def run(
    argv: Args,
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    timeout: float | None = None,
    input: Input | None = None,
    stdin: RunStdin | None = None,
    stdout: RunStdout | None = None,
    stderr: RunStderr = "separate",
    keep: tuple[int, int] = KEEP,
    actions: Actions | None = None,
    arg0: Arg | None = None,
) -> Result:
    """Runs a program to its end and captures what it writes.

    `run` blocks, `run_async` awaits (on asyncio); arguments and Result are the same. The program
    gets a session of its own, nothing to read unless told otherwise, and no descriptor but the
    standard ones. An exit code, a timeout and cut output are results, see Result.check().

    Args:
        argv: The program and its arguments: str, bytes or paths. The program is an absolute path,
            or a name that is searched in PATH (that of `env` if it has one). For a shell command
            line see sh().
        cwd: The directory it starts in: a path, or the descriptor of an open directory.
        env: Its environment: an Env, a mapping, or None for this process's as it is now.
        timeout: Seconds after which the program and its process group are killed;
            `stop` is "timeout" then. None: never.
        input: What it reads: bytes-like, or a str, as UTF-8.
        stdin: Instead of input: "null" (default), "inherit", a descriptor or a file.
        stdout: "capture" (default), "null", "inherit", a descriptor or a file.
        stderr: "separate" (default: captured), "merge" (into stdout), "null", "inherit", a
            descriptor or a file.
        keep: How many bytes of each stream's beginning and end are kept. The rest is read and
            dropped; `omitted_bytes` says how much.
        actions: What else the child does before it becomes the program, in this order: see
            spawnfd.actions.
        arg0: What the program sees as its argv[0], if not the name it is started by.

    Cancelling run_async, or a signal handler that raises during run (Ctrl-C), kills the program and
    its process group, and waits for its end before the exception goes on.

    Raises:
        SpawnError: The program could not be started; `stage`, `errno` and `action` say why. Also
            FileNotFoundError if there is none, PermissionError if it may not be run or entered.
        TypeError, ValueError: An argument cannot be what it is; the message names it.
    """
    return _spawnfd.run(
        (None, argv, arg0, cwd, env, stdin, stdout, stderr, actions), (timeout, input, keep)
    )


async def run_async(
    argv: Args,
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    timeout: float | None = None,
    input: Input | None = None,
    stdin: RunStdin | None = None,
    stdout: RunStdout | None = None,
    stderr: RunStderr = "separate",
    keep: tuple[int, int] = KEEP,
    actions: Actions | None = None,
    arg0: Arg | None = None,
) -> Result:
    """The awaitable run()."""
    return await complete(
        (None, argv, arg0, cwd, env, stdin, stdout, stderr, actions), (timeout, input, keep)
    )


run_async.__doc__ = run.__doc__
