# SPDX-License-Identifier: MIT OR Apache-2.0
"""Immutable views of files."""

from __future__ import annotations

from typing import NamedTuple

from spawnfd import _spawnfd
from spawnfd._spawnfd import Snapshot
from spawnfd._types import Arg, Fd, NotPickled


def snapshot(file: Arg | Fd) -> Snapshot:
    """Takes a snapshot of a regular file: contents that stay, whatever happens to the file.

        with sf.snapshot("/usr/bin/rg") as rg:
            sf.Template.from_fd(rg).run(["-n", "TODO"])

    By reflink where the file system has it (btrfs, XFS), else a copy in memory that nobody can
    change (a sealed memfd). A file that changes while it is copied is copied again.

    Args:
        file: A path, or a file that is open for reading: its descriptor, or what has fileno().

    Raises:
        SpawnError: FileNotFoundError, PermissionError and the like; EINVAL: no regular file, or one
            that does not say how long it is (/proc); ESTALE: it kept changing; ENOMEM, EMFILE. Of
            a copy also EFBIG: longer than RLIMIT_FSIZE; EACCES: vm.memfd_noexec is 2.
        TypeError, ValueError: `file` is neither.
    """
    return _spawnfd.snapshot(file)


class SnapshotStats(NamedTuple):
    """What a SnapshotCache has done so far.

    Attributes:
        hits: Snapshots found.
        misses: Taken, as they were not there.
        stale: Dropped, as the file had changed.
        evicted: Dropped for room.
        entries: Held now.
    """

    hits: int
    misses: int
    stale: int
    evicted: int
    entries: int


class SnapshotCache(NotPickled):
    """Snapshots by the version of the file they are of; the least recently used leaves first.

    A version is told by device, inode, ctime, mtime and size: a hit costs two fstats and a
    dup. A file that has changed within the granularity of timestamps is not kept.
    """

    __slots__ = ("_core",)
    _core: _spawnfd.SnapshotCache

    def __init__(self, capacity: int = 64) -> None:
        """Makes an empty cache for `capacity` snapshots (at least one).

        Raises:
            TypeError, ValueError: It is no such number.
        """
        self._core = _spawnfd.SnapshotCache(capacity)

    def get(self, file: Arg | Fd) -> Snapshot:
        """The snapshot of a file as it is now, as snapshot(); its descriptor is yours."""
        return self._core.get(file)

    def clear(self) -> None:
        """Drops all snapshots; those given out stay good."""
        self._core.clear()

    def stats(self) -> SnapshotStats:
        """The counters, and how many snapshots are held."""
        return SnapshotStats(*self._core.stats())

    def __repr__(self) -> str:
        return f"<spawnfd.SnapshotCache {self.stats()}>"
