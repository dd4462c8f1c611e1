# SPDX-License-Identifier: MIT OR Apache-2.0
"""Captured runs."""

from __future__ import annotations

import os
from typing import Any

from spawnfd import _signatures, _spawnfd
from spawnfd._loop import complete
from spawnfd._options import like
from spawnfd._spawnfd import Result
from spawnfd._types import Args

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_spawnfd.end_idle_threads)


@like(_signatures.run)
def run(argv: Args, **options: Any) -> Result:
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
        cwd: A path, or the descriptor of an open directory. The program's working directory. A
            relative program such as `./configure` starts here, and so do relative and empty parts
            of PATH. Do not pass `/proc/self/fd/N`: the child resolves paths, with its own
            descriptor numbers.
        env: An Env, or a mapping. The program's environment. By default it is a copy of the
            environment of this process.
        stdin: The program's standard input, in place of `input`. "null", "inherit", a descriptor or
            a file. subprocess.DEVNULL is "null".
        stdout: The program's standard output. "capture", "null", "inherit", a descriptor or a file.
            subprocess.PIPE is "capture".
        stderr: The program's standard error. "separate" (captured), "merge" (into stdout), "null",
            "inherit", a descriptor or a file. subprocess.PIPE is "separate", and subprocess.STDOUT
            is "merge".
        actions: Further steps of the child before exec, in this order. The page on actions lists
            them. See spawnfd.actions.
        arg0: The program's `argv[0]`. By default it is the name of the program in the call.
        sandbox: A Sandbox. A command that finds and starts the program in confinement. The
            directory, environment, actions and `arg0` apply to that command, which passes them on.
            Each call opens the sandbox's files again (EACCES if access is no longer permitted).
        warm: A Warm. If it has a suitable parked process, the program starts from that process.
        timeout: The time after which the library ends the program: SIGTERM to the process tree, and
            SIGKILL after the `grace`. The result has the output so far, and its `stop` is
            `timeout`. By default there is no timeout. In seconds.
        grace: The time between SIGTERM and SIGKILL. Zero: SIGKILL at once. If the program still
            runs one second after SIGKILL, the run ends without it. The program is then among the
            result's `leftovers`, with the fate `not_permitted` (a set-uid program that has become
            root, say) or `uninterruptible` (in a read from a dead network file system, say). In
            seconds.
        drain: The time that other processes of the tree have after the program's end, with and
            without captured output. Until then the library reads the pipes that such processes hold
            open, and does not apply `leftovers`. The run ends earlier if no such process is left.
            The result's `drain` names the processes that kept a pipe open to the end. In seconds.
        tree: How the library controls the process tree. The result's `tree` has the tier that was
            used. Except with `group`, the tree ends with this process, however this process ends.
            By default the tier is `guard`, or `group` if no guard can be started, or if the limit
            on processes leaves no room for one.
            "group": The session, the process group and known descendants, without a helper process:
            the tree outlives this process.
            "guard": The same processes. A helper process (the guard) ends the tree if this process
            ends, however that happens. An error if no guard can be started.
            "subreaper": Every process, by a helper that becomes the program's parent. An error if
            no helper can be started.
            "cgroup": Every process that does not leave the cgroup. An error if no cgroup can be
            created.
            "pidns": Every process, by a pid namespace. An error if no pid namespace can be created.
            "auto": The most complete tier available of `cgroup`, `subreaper`, `guard` and `group`.
        leftovers: The treatment of processes that outlive the program.
            "kill": The library kills the processes.
            "adopt": The processes run on, the library still reads their output, and the end of the
            job ends them. A run without a job kills them.
            "detach": The library leaves the processes alone.
        limiter: A Limiter. Limits how many runs execute at once. A run waits for a permit before
            its program starts. The `timeout` and the measured time begin after that wait.
        idle_timeout: The time without output in either stream after which the library ends the
            program, in the same way as after a `timeout`. The result's `stop` is then
            `idle_timeout`. By default there is no such timeout. In seconds.
        input: The program's input. By default the program has the standard input that the call
            gives it, or else an empty one. An input cannot be combined with another standard input.
            Input of a program with a `terminal` is typed, followed by end-of-file (Ctrl-D). Such a
            program waits for more input if it continues to read after that, reads single keys, or
            discards early input (at a password prompt). Bytes-like, or a str encoded as UTF-8.
        keep: A pair (head, tail), or "all". The number of bytes of each stream's beginning and end
            that the result has. The library reads and drops the rest, and the result's `omitted`
            counts it. A cut moves to a line end that is near: within a fifth of the size of the
            head or tail. `all` keeps all bytes; then only `output_limit` bounds the memory.
        marker: The text of the line that replaces omitted bytes in the result. `{omitted}` in it
            stands for their number: `12,345 bytes`. No text, or an empty one: no line.
        combined: Whether the result also has both streams in order of arrival.
        spill: A Spill; see `spill_path` and `spilled` of the Result. Also writes all output to a
            file, once a stream exceeds `keep`.
        output_limit: The number of bytes, of both streams together, after which the library ends
            the program as after a `timeout`. The result's `stop` is then `output_limit`. By default
            there is no such limit.
        terminal: A pair (rows, columns), or an os.terminal_size. Gives the program a terminal of
            this size as its three streams, and as the controlling terminal of its session. All its
            output is standard output, as the terminal transmits it (`\\n` becomes `\\r\\n`). A
            program with a terminal can have no other standard stream, and no process group of its
            own.
        limits: A Limits. Limits of the resources of the program and its process tree. With limits,
            the tree gets a cgroup wherever one can be made, unless the run asks for a guard or a
            pid namespace.

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
    return _spawnfd.run(None, argv, options)


@like(_signatures.run)
async def run_async(argv: Args, **options: Any) -> Result:
    """The awaitable form of run(); it does nothing until it is awaited."""
    return await complete(None, argv, options)


run_async.__doc__ = run.__doc__
