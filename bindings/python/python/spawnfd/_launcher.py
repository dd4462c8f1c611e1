# SPDX-License-Identifier: MIT OR Apache-2.0
"""A thread that starts programs from a descriptor table of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spawnfd import _spawnfd
from spawnfd._types import NotPickled


class LauncherStats(NamedTuple):
    """What a LauncherThread has done so far.

    Attributes:
        spawned: Programs it has started.
        fell_back: How many were started without it, by what differed or could not be compared.
    """

    spawned: int
    fell_back: Mapping[str, int]


class LauncherThread(NotPickled):
    """Starts programs that never hold a descriptor of this process that they were not given.

        with sf.LauncherThread() as launcher:
            sf.run(["make"], launcher=launcher).started  # "thread"

    Not even between its birth and exec: a file that other threads are writing, to execute it next,
    is never busy (ETXTBSY) because of such a start. A start takes longer, and there is one at a
    time. Nothing else changes: what the program may do, and what it inherits, is what it would
    have from the calling thread. Where that thread's ids, capabilities, filters, namespaces,
    working directory, scheduling or the like are not, or are not known to be, those of the
    launcher, the program is started without it; stats() counts why, and `started` of the Result or
    Child is "clone".

    It takes these from the thread that makes it. Where seccomp filters are in force (in a
    container, mostly) it serves other threads only if spawnfd was first used while the process had
    one thread; otherwise make one in each thread that starts programs.

    The thread ends when the block is left, with close(), or with the last reference. Beside it
    there is an ended child process that nobody has waited for; wait(-1) does not see it.
    """

    __slots__ = ("_core",)
    _core: _spawnfd.LauncherThread

    def __init__(self) -> None:
        """Starts the thread.

        Raises:
            SpawnError: EPERM, ENOSYS: nothing can give a thread a descriptor table of its own
                here. ENOENT and the like: /proc cannot be read.
        """
        self._core = _spawnfd.LauncherThread()

    def stats(self) -> LauncherStats:
        """What it has done so far, in this process; also when it is closed."""
        return LauncherStats(*self._core.stats())

    @property
    def closed(self) -> bool:
        """Whether the thread has ended. As an option it is a ValueError then."""
        return self._core.closed

    def close(self) -> None:
        """Ends the thread, as soon as no call under way uses it. Programs are not affected."""
        self._core.close()

    def __enter__(self) -> LauncherThread:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<spawnfd.LauncherThread {state}: {self._core.stats()[0]} started>"
