# SPDX-License-Identifier: MIT OR Apache-2.0
"""Captured runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from spawnfd import _spawnfd
from spawnfd._loop import complete
from spawnfd._options import (
    Actions,
    Environment,
    NoOptions,
    RunStderr,
    RunStdin,
    RunStdout,
    Warm,
    hide_unknown,
)
from spawnfd._spawnfd import Limiter, Result, Sandbox
from spawnfd._types import Arg, Args, Cwd, Input, Keep, Limits, Spill

if TYPE_CHECKING:
    from typing_extensions import Unpack


os.register_at_fork(before=_spawnfd.end_idle_threads)


def run(
    argv: Args,
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    timeout: float | None = None,
    idle_timeout: float | None = None,
    grace: float = 2.0,
    input: Input | None = None,
    stdin: RunStdin | None = "null",
    stdout: RunStdout | None = "capture",
    stderr: RunStderr | None = "separate",
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
    drain: float = 0.1,
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
    leftovers: Literal["kill", "adopt", "detach"] = "kill",
    limits: Limits | None = None,
    limiter: Limiter | None = None,
    terminal: tuple[int, int] | None = None,
    actions: Actions | None = None,
    arg0: Arg | None = None,
    sandbox: Sandbox | None = None,
    warm: Warm | None = None,
    **unknown: Unpack[NoOptions],
) -> Result:
    """Runs a program to its end and captures its output: run() at once, run_async() when awaited.

    `run` blocks; `run_async` is awaitable (on asyncio, uvloop, trio and anyio), and does nothing
    until it is awaited. Both take the same arguments and return the same Result. By default the
    program gets a session of its own, an empty standard input and no descriptors except the
    standard ones. With actions.ProcessGroup the program stays in this process's session.
    ProcessGroup(0) then puts the program into a new process group. A nonzero exit code, a timeout
    and truncated output are results; Result.check() raises for them.

    Args:
        argv: The program and its arguments: str, bytes or paths. The program is a path, or a name
            without a slash, which is searched in PATH: the PATH of `env` if it has one, else this
            process's. A relative path such as "./configure" starts at `cwd`, or at this process's
            directory, and so do relative and empty parts of PATH. "~" is not expanded. For a shell
            command line see sh().
        cwd: The program's working directory: a path, or the descriptor of an open directory. Do
            not pass /proc/self/fd/N: the child resolves paths, with its own descriptor numbers.
        env: The program's environment: an Env, a mapping, or None for a copy of this process's
            current one.
        timeout: Seconds after which the program's process tree gets SIGTERM. `stop` of the Result
            is then "timeout", and the Result has the output so far. None: no timeout.
        idle_timeout: Seconds without output, in either stream, after which the tree is ended as by
            `timeout`. `stop` is then "idle_timeout". None: no such timeout.
        grace: Seconds between SIGTERM and SIGKILL; 2.0 by default, 0: SIGKILL at once. If the
            program still runs one second after SIGKILL, the run ends without it. The program is
            then in `leftovers` with the fate "not_permitted" (a set-uid program that has become
            root, say) or "uninterruptible" (in a read from a dead network file system, say).
        input: Data for the program's standard input: bytes-like, or a str encoded as UTF-8.
        stdin: Instead of `input`: "null" (default), "inherit", a descriptor or a file.
            subprocess.DEVNULL is "null".
        stdout: "capture" (default), "null", "inherit", a descriptor or a file. subprocess.PIPE is
            "capture".
        stderr: "separate" (default: captured), "merge" (into stdout), "null", "inherit", a
            descriptor or a file. subprocess.PIPE is "separate", and subprocess.STDOUT is "merge".
        keep: How many bytes of each stream's beginning and end are kept, (64_000, 64_000) by
            default. The rest is read and dropped; `omitted` of the Result counts it. A cut moves to
            a line end that is near: within a fifth of the head's or tail's size. "all" keeps all
            bytes: combine it with `output_limit`, which bounds the memory.
        marker: The text of the line that replaces omitted bytes in the Result, by default
            "[… {omitted} omitted …]". "{omitted}" in it becomes their number: "12,345 bytes". None
            or "": no line.
        combined: If True, `output` of the Result has both streams in order of arrival.
        spill: A Spill: once a stream exceeds `keep`, all output also goes to a file; see
            `spill_path` and `spilled` of the Result.
        output_limit: Total bytes of both streams after which the program is ended as by a timeout.
            `stop` is then "output_limit".
        drain: Seconds that other processes of the tree have after the program's end, 0.1 by
            default, with and without captured output. Meanwhile the pipes that they keep open are
            read, and `leftovers` does not act on them. `drain` of the Result names the processes
            that kept a pipe open to the end.
        tree: How the program's process tree is controlled.
            None (default): "guard", or "group" if no guard can be started, or if the limit on
            processes leaves no room for one.
            "guard": its session, process group and known descendants. A helper process (the guard)
            ends the tree if this process ends, however that happens.
            "group": as "guard", but without the helper: the tree outlives this process.
            "subreaper": every process, by a helper that becomes the program's parent. An error if
            no helper can be started.
            "cgroup": every process that does not leave the cgroup; an error if none can be created.
            "pidns": every process, by a pid namespace; an error if none can be created.
            "auto": the most complete tier available, but never "pidns".
            `tree` of the Result has the tier that was used.
        leftovers: The treatment of processes that outlive the program: "kill" (default), "adopt"
            (a job lets them run, reads their output and ends them with itself; a run kills them)
            or "detach" (they run on, uncontrolled).
        limits: A Limits: resource limits for the program and its process tree.
        limiter: A Limiter: the run waits for a permit before it starts the program. `timeout` and
            `wall` begin at the start of the program.
        terminal: A pair (rows, columns), or an os.terminal_size: the program gets a terminal of
            that size as its three streams. All its output is "stdout", as the terminal transmits
            it ("\\n" becomes "\\r\\n"). `input` is typed into the terminal, followed by
            end-of-file (Ctrl-D). A program waits for more input if it continues to read after that,
            reads single keys, or discards early input (at a password prompt).
        actions: Further steps of the child before exec, in this order: see spawnfd.actions.
        arg0: The program's argv[0]; by default the name in `argv`.
        sandbox: A Sandbox: its command finds and starts the program. `cwd`, `env`, `actions` and
            `arg0` apply to the command, which passes them on. Each call opens the sandbox's files
            again (PermissionError if access is no longer permitted).
        warm: A Warm. If it has a suitable parked process, the program starts from that process.

    Cancelling run_async, or a signal handler that raises during run (as on Ctrl-C), ends the
    program's process tree as a timeout does. The call waits for the end of the tree before the
    exception propagates (run_async: at most 5 s longer than `grace`). The exception
    (CancelledError, trio.Cancelled, KeyboardInterrupt) has the Result with the output so far as its
    `result`. It has no `result` if the program was not started or has not ended by then. From
    Python 3.11 on, the TimeoutError of asyncio.timeout() and asyncio.wait_for() has such an
    exception as its `__context__`; the `__cause__` is None in asyncio.timeout() of Python 3.11.2.

    Each start raises the auditing event "subprocess.Popen" with the arguments executable, args, cwd
    and env, as subprocess does. A hook that raises prevents the start.

    run_async and start() use a thread of the library; run uses no thread. The thread ends before
    os.fork() if no run or job is active. A fork while the thread runs is safe, but from Python 3.12
    on os.fork() counts threads and warns (DeprecationWarning).

    Raises:
        SpawnError: The program could not be started, or its limits could not be applied; `stage`,
            `errno` and `action` give the reason. FileNotFoundError: the program or directory does
            not exist. PermissionError: the program may not be executed, or the directory not be
            entered.
        TypeError, ValueError: An argument is invalid; the message names it.
    """
    return _spawnfd.run(None, argv, locals())


async def run_async(
    argv: Args,
    *,
    cwd: Cwd | None = None,
    env: Environment | None = None,
    timeout: float | None = None,
    idle_timeout: float | None = None,
    grace: float = 2.0,
    input: Input | None = None,
    stdin: RunStdin | None = "null",
    stdout: RunStdout | None = "capture",
    stderr: RunStderr | None = "separate",
    keep: Keep = (64_000, 64_000),
    marker: str | None = "[… {omitted} omitted …]",
    combined: bool = False,
    spill: Spill | None = None,
    output_limit: int | None = None,
    drain: float = 0.1,
    tree: Literal["group", "guard", "subreaper", "cgroup", "pidns", "auto"] | None = None,
    leftovers: Literal["kill", "adopt", "detach"] = "kill",
    limits: Limits | None = None,
    limiter: Limiter | None = None,
    terminal: tuple[int, int] | None = None,
    actions: Actions | None = None,
    arg0: Arg | None = None,
    sandbox: Sandbox | None = None,
    warm: Warm | None = None,
    **unknown: Unpack[NoOptions],
) -> Result:
    """The awaitable form of run(); it does nothing until it is awaited."""
    return await complete(None, argv, locals())


run_async.__doc__ = run.__doc__
hide_unknown(run, run_async)
