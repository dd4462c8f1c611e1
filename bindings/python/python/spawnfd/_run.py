# SPDX-License-Identifier: MIT OR Apache-2.0
"""Captured runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spawnfd import _spawnfd
from spawnfd._loop import complete
from spawnfd._options import RunOptions
from spawnfd._spawnfd import Result
from spawnfd._types import Args

if TYPE_CHECKING:
    from typing_extensions import Unpack

os.register_at_fork(before=_spawnfd.end_idle_threads)


def run(argv: Args, **options: Unpack[RunOptions]) -> Result:
    """Runs a program to its end and captures what it writes.

    `run` blocks, `run_async` awaits (on asyncio, uvloop, trio, anyio); arguments and Result are the
    same. The program gets a session of its own (with actions.ProcessGroup it stays in this one,
    with ProcessGroup(0) in a process group of its own), nothing to read unless told otherwise, and
    no descriptor but the standard ones. An exit code, a timeout and cut output are results, see
    Result.check().

    Args:
        argv: The program and its arguments: str, bytes or paths. The program is an absolute path,
            or a name that is searched in PATH (that of `env` if it has one). For a shell command
            line see sh().
        cwd: The directory it starts in: a path, or the descriptor of an open directory (not as
            /proc/self/fd/N: the child looks paths up, and has numbers of its own).
        env: Its environment: an Env, a mapping, or None for this process's as it is now.
        timeout: Seconds after which the program's process tree is told to end (SIGTERM); `stop` is
            "timeout" then, and what has come out so far is in the Result. None: never.
        grace: Seconds it has for that before it is killed; 2.0 by default, 0: none. If the program
            still runs a second after SIGKILL, the run ends without it: `leftovers` has the program,
            with the fate "not_permitted" (as a set-uid program that has become root) or
            "uninterruptible" (as in a read from a dead network file system).
        input: What it reads: bytes-like, or a str, as UTF-8.
        stdin: Instead of input: "null" (default), "inherit", a descriptor or a file.
        stdout: "capture" (default), "null", "inherit", a descriptor or a file.
        stderr: "separate" (default: captured), "merge" (into stdout), "null", "inherit", a
            descriptor or a file.
        keep: How many bytes of each stream's beginning and end are kept. The rest is read and
            dropped; `omitted_bytes` says how much. (64_000, 64_000) by default.
        spill: A Spill: all output goes to a file, too, once a stream has more than is kept;
            `spill_path` and `spilled` of the Result tell of it.
        output_limit: Bytes of both streams together after which the program is ended as by a
            timeout; `stop` is "output_limit" then.
        drain: Seconds to go on reading after the program's end while another process still holds
            its pipes, 0.1 by default; `drain` of the Result names who did.
        tree: How the program's process tree is controlled: "group" (its session, process group and
            known descendants; the default of run), "guard" (the same, and it ends with this
            process, however that ends; the default of start, where it can be had), "cgroup" (all
            of it but who leaves the cgroup; an error where none can be made), "pidns" (the same
            by a pid namespace; an error where none can be made) or "auto" (the most that can be
            had, but never "pidns"). `tree` of the Result says what it was.
        leftovers: What becomes of processes the program leaves behind: "kill" (default), "adopt"
            (they go on, still read, and end with the job; a run, which is none, kills them) or
            "detach" (they are left alone).
        limits: What the program and its process tree may use at most: a Limits.
        limiter: A Limiter: the program is started when it is its turn. `timeout` and `wall` begin
            then.
        terminal: A pair (rows, columns), or an os.terminal_size: the program gets a terminal of
            that size as its three streams. All it writes is "stdout", as the terminal has it
            ("\\n" comes as "\\r\\n"); `input`, then the end of input, is what is typed. A program
            that reads on after that, reads keys, or discards what is typed too early (for a
            password) waits for more.
        actions: What else the child does before it becomes the program, in this order: see
            spawnfd.actions.
        arg0: What the program sees as its argv[0], if not the name it is started by.
        sandbox: A Sandbox: the program is started through it, and found by it; `cwd`, `env`,
            `actions` and `arg0` are those of its command, to hand on. Its files are opened for each
            call (PermissionError where they may not be any more).
        warm: A Warm: it is started from a parked process, if there is one for it.

    Cancelling run_async, or a signal handler that raises during run (Ctrl-C), ends the program's
    process tree as a timeout does, and waits for its end before the exception goes on (run_async:
    at most 5 s longer than `grace`). That exception (CancelledError, trio.Cancelled, Ctrl-C's) has
    the Result, with what came out, as its `result`, unless there is none: the program was not
    started, or has not ended by then. A TimeoutError of asyncio's has such a one as its cause, from
    Python 3.11 on.

    run_async and start() have a thread of the library at work; run has none. It ends before
    os.fork() unless one of them is under way. A fork beside it loses nothing, but from Python 3.12
    on os.fork() counts threads, and warns (DeprecationWarning).

    Raises:
        SpawnError: The program could not be started, or not be held to its limits; `stage`,
            `errno` and `action` say why. Also
            FileNotFoundError if there is none, PermissionError if it may not be run or entered.
        TypeError, ValueError: An argument cannot be what it is; the message names it.
    """
    return _spawnfd.run(None, argv, options)


async def run_async(argv: Args, **options: Unpack[RunOptions]) -> Result:
    """The awaitable run()."""
    return await complete(None, argv, options)


run_async.__doc__ = run.__doc__
