# SPDX-License-Identifier: MIT OR Apache-2.0
"""Immutable views of files."""

from __future__ import annotations

from typing import NamedTuple

from spawnfd import _spawnfd
from spawnfd._spawnfd import Snapshot
from spawnfd._types import Arg, Fd, NotPickled


def snapshot(file: Arg | Fd) -> Snapshot:
    """Takes a snapshot of a regular file; later changes of the file do not affect it.

        with sf.snapshot("/usr/bin/rg") as rg:
            sf.Template.from_fd(rg).run(["-n", "TODO"])

    The snapshot is a reflink where the file system supports it (btrfs, XFS), else a sealed copy in
    memory (memfd). If the file changes during the copy, it is copied again.

    Args:
        file: A path, or a file that is open for reading: a descriptor, or an object with fileno().

    Raises:
        SpawnError: FileNotFoundError, PermissionError: the file cannot be opened. EINVAL: it is not
            a regular file, or does not report its length (/proc). ESTALE: it kept changing. ENOMEM,
            EMFILE. For a copy in memory also EFBIG: the file is longer than RLIMIT_FSIZE; EACCES:
            vm.memfd_noexec is 2.
        TypeError, ValueError: `file` is neither a path nor a file.
    """
    return _spawnfd.snapshot(file)


class SnapshotStats(NamedTuple):
    """Counters of a SnapshotCache.

    Attributes:
        hits: Snapshots found in the cache.
        misses: Snapshots taken because the cache did not have them.
        stale: Snapshots dropped because the file had changed.
        evicted: Snapshots dropped because the cache was full.
        entries: Snapshots in the cache now.
    """

    hits: int
    misses: int
    stale: int
    evicted: int
    entries: int


class SnapshotCache(NotPickled):
    """A cache of snapshots by file version; it evicts the least recently used one first.

    Device, inode, ctime, mtime and size identify a version. A hit costs two fstat calls and one
    dup. The cache does not keep a file that has changed within the granularity of timestamps.
    """

    __slots__ = ("_core",)
    _core: _spawnfd.SnapshotCache

    def __init__(self, capacity: int = 64) -> None:
        """Creates an empty cache for `capacity` snapshots, at least one.

        Raises:
            TypeError, ValueError: `capacity` is not a valid count.
        """
        self._core = _spawnfd.SnapshotCache(capacity)

    def get(self, file: Arg | Fd) -> Snapshot:
        """Returns a snapshot of the file's current version; the arguments are those of snapshot().

        The caller owns the snapshot's descriptor.

        Raises:
            SpawnError, TypeError, ValueError: In the same cases as snapshot().
        """
        return self._core.get(file)

    def clear(self) -> None:
        """Drops all snapshots of the cache; snapshots that get() has returned stay valid."""
        self._core.clear()

    def stats(self) -> SnapshotStats:
        """Returns the counters and the number of snapshots in the cache."""
        return SnapshotStats(*self._core.stats())

    def __repr__(self) -> str:
        return f"<spawnfd.SnapshotCache {self.stats()}>"
