# SPDX-License-Identifier: MIT OR Apache-2.0
"""CPython's subprocess, with programs started by spawnfd.

    from spawnfd import subprocess

This module has everything that the standard subprocess module has. It differs in one step: where
CPython would fork (or vfork, or posix_spawn) a child, spawnfd's core starts the program. Pipes,
text mode, waiting, timeouts and exceptions are CPython's code. CompletedProcess,
CalledProcessError, PIPE and the like are the same objects, and Popen is a subclass of the original.

With env=None, strings without "=" that C code may have left in the environment are not passed on.

Until a program has been waited for, its Popen keeps a pidfd open. From Linux 6.15 on, the pidfd has
the program's status also if other code has taken it (a SIGCHLD handler that calls waitpid(-1)), or
if SIGCHLD is ignored. CPython reports 0 there, and asyncio 255.

If a signal handler raises (as on Ctrl-C) while Popen() starts a program, the program is killed.

The core calls the kernel directly, not libc. A library in LD_PRELOAD that replaces execve,
posix_spawn or vfork (libredirect, fakechroot, bear, a build's sandbox) does not see these starts.
LD_PRELOAD still applies to the started programs.

The cache keeps the 64 most recently started programs open. Before their file system can be
unmounted, call spawnfd.TemplateCache.shared().clear() to close them. /proc stays open from the
first start on. If this process has mounted that /proc itself, unmount it lazily (umount -l).

CPython's own code starts a program that the core cannot start. `stats()` counts these starts by
reason:

    preexec_fn: preexec_fn runs Python code in the child, which requires a fork.
    patched: The application or its debugger has replaced subprocess._fork_exec (Python 3.10:
        _posixsubprocess.fork_exec), or has set _USE_VFORK to False.
    template: No descriptor was free to open the program, or it could not be read.
    closed_stdio: Two spawns ran at once while descriptor 0, 1 or 2 of this process was closed.
    groups: Root starts a program as another user, but may not call setgroups in the child. CPython
        leaves root's supplementary groups to the child.
    refused: pass_fds has more than about 250 descriptors, or one beyond the hard RLIMIT_NOFILE.
    arguments: A flag is neither bool nor int; cwd is below /proc/self or /dev/fd, or leads there
        through a link (if openat2 is refused: contains any link); args is empty; or another
        argument that CPython accepts and spawnfd does not.
    not_found, stale: The program was created during the call, or changed repeatedly.
    no_process: The kernel created no process; CPython's code reports that with its own exception.
    interpreter: This Python version calls Popen's internal functions differently.
"""

from __future__ import annotations

import subprocess as _original
from types import FunctionType
from typing import Any

from spawnfd._popen import BASE, Stats, execute, internal_poll, stats, try_wait

__all__ = [*_original.__all__, "Stats", "stats"]  # pyright: ignore[reportUnsupportedDunderAll]


class Popen(BASE):  # type: ignore[misc]
    """subprocess.Popen that starts its program through spawnfd."""

    _execute_child = execute
    _try_wait = try_wait
    _internal_poll = internal_poll


def _copy_original(space: dict[str, Any]) -> None:
    """Copies the original's contents into this module; its functions are rebound to our Popen."""
    for name, value in vars(_original).items():
        if name in space:
            continue
        if isinstance(value, FunctionType) and value.__module__ == _original.__name__:
            function = FunctionType(
                value.__code__, space, name, value.__defaults__, value.__closure__
            )
            function.__kwdefaults__ = value.__kwdefaults__
            function.__annotations__ = value.__annotations__
            function.__doc__ = value.__doc__
            value = function
        space[name] = value


_copy_original(globals())
