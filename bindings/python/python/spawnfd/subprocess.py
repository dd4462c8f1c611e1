# SPDX-License-Identifier: MIT OR Apache-2.0
"""CPython's subprocess, with programs started by spawnfd.

    from spawnfd import subprocess

Everything the original has is here, and is the original's own but for one step: where it would fork
(or vfork, or posix_spawn) a child, the core starts the program. Pipes, text, waiting, timeouts and
exceptions are CPython's code; CompletedProcess, CalledProcessError, PIPE and the like are the very
same objects, and Popen is a subclass of the original.

With env=None, strings without "=" that C code may have left in the environment are not passed on.

The core calls the kernel, not libc: what an object in LD_PRELOAD has put in the place of execve,
posix_spawn or vfork (libredirect, fakechroot, bear, a build's sandbox) does not see these starts.
The programs themselves are preloaded as ever.

The 64 programs that were started last are held open: before their file system can be unmounted,
spawnfd.TemplateCache.shared().clear() lets go of them. /proc is held from the first start on: one
that this process mounts for itself can be unmounted lazily (umount -l).

What the core cannot start the original does. `stats()` counts it, by reason:

    preexec_fn: Python code that runs in the child asks for a fork.
    patched: The program, or its debugger, has replaced subprocess._fork_exec (Python 3.10:
        _posixsubprocess.fork_exec), or set _USE_VFORK to False.
    template: No descriptor was left to open the program, or it could not be read.
    closed_stdio: Two spawns at once while this process has no descriptor 0, 1 or 2.
    groups: Another user by a root that may not keep its groups.
    refused: More than about 250 descriptors in pass_fds, or one beyond a hard RLIMIT_NOFILE.
    arguments: Flags that are no bool or int, a cwd below /proc/self or /dev/fd, or that leads to
        one by a link (where openat2 is refused: by any link), empty args, and whatever else
        CPython takes and spawnfd does not.
    not_found, stale: The program came into being, or never stopped changing, during the call.
    no_process: The kernel would make no process; the original says so in its own way.
    interpreter: This version of Python calls Popen's inner parts in another way.
"""

from __future__ import annotations

import subprocess as _original
from types import FunctionType
from typing import Any

from spawnfd._popen import BASE, Stats, execute, stats

__all__ = [*_original.__all__, "Stats", "stats"]  # pyright: ignore[reportUnsupportedDunderAll]


class Popen(BASE):  # type: ignore[misc]
    """subprocess.Popen, its program started by spawnfd."""

    def _execute_child(self, *args: Any) -> None:
        execute(self, *args)


def _adopt(space: dict[str, Any]) -> None:
    """Puts all the original has into this module, its functions made anew to find our Popen."""
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


_adopt(globals())
