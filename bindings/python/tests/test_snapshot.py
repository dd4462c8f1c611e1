# SPDX-License-Identifier: MIT OR Apache-2.0
"""Snapshots of files."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf


def contents(snapshot: sf.Snapshot) -> bytes:
    with open(f"/proc/self/fd/{snapshot.fileno()}", "rb") as file:
        return file.read()


def test_snapshot_keeps_the_old_contents(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with sf.snapshot(path) as snapshot, path.open("rb") as file, sf.snapshot(file) as other:
        path.write_text("after")
        assert contents(snapshot) == contents(other) == b"before"
        assert os.read(snapshot.fileno(), 100) == b"before"
        assert sf.run(["cat"], stdin=other).stdout == b"before"
        assert snapshot.kind in ("reflink", "memfd")
        assert snapshot.fileno() != other.fileno()
        assert not os.get_inheritable(snapshot.fileno())
        assert "Snapshot" in repr(snapshot)
        assert not snapshot.closed
    assert snapshot.closed
    snapshot.close()
    with pytest.raises(ValueError, match="closed"):
        snapshot.fileno()
    with pytest.raises(ValueError, match="closed"):
        sf.Template.from_fd(snapshot)
    assert repr(snapshot) == "<spawnfd.Snapshot closed>"


def test_snapshot_of_a_replaced_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy("/bin/echo", program)
    with sf.snapshot(str(program)) as snapshot:
        shutil.copy("/bin/false", program)
        result = sf.Template.from_fd(snapshot).run(["still", "here"])
        assert (result.code, result.stdout) == (0, b"still here\n")


def test_replaced_descriptor_is_left_alone() -> None:
    for closes in (False, True):
        snapshot = sf.snapshot("/bin/echo")
        number = snapshot.fileno()
        if closes:
            os.close(number)
        with open("/bin/false", "rb") as other:
            if other.fileno() != number:
                os.dup2(other.fileno(), number)
            for use in (
                snapshot.fileno,
                lambda lost=snapshot: sf.Template.from_fd(lost),
                lambda lost=snapshot: sf.run(["cat"], stdin=lost),
                lambda lost=snapshot: sf.snapshot(lost),
            ):
                with pytest.raises(sf.SpawnError) as caught:
                    use()
                assert (caught.value.errno, caught.value.stage) == (errno.EBADF, "snapshot")
            assert "lost" in repr(snapshot)
            snapshot.close()
            assert snapshot.closed
            assert os.path.samestat(os.fstat(number), os.stat("/bin/false"))
            if other.fileno() != number:
                os.close(number)


def test_cache_notices_changes(tmp_path: Path) -> None:
    cache = sf.SnapshotCache(2)
    # The cache does not keep a file that changed a moment ago: it could change again unnoticed.
    old = "/etc/passwd"
    with cache.get(old) as one, cache.get(old) as two, open(old, "rb") as file:
        with cache.get(file) as three:
            assert contents(one) == contents(two) == contents(three) == file.read()
        assert cache.stats() == (2, 1, 0, 0, 1)
        cache.clear()
        assert cache.stats().entries == 0
        assert contents(one)
    path = tmp_path / "file"
    for text in (b"one", b"two"):
        path.write_bytes(text)
        with cache.get(path) as now:
            assert contents(now) == text
    assert "hits=2" in repr(cache)


def test_files_that_cannot_be_snapshotted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    cache = sf.SnapshotCache()
    for take in (sf.snapshot, cache.get):
        for path in (tmp_path / "fifo", tmp_path, "/proc/self/status"):
            with pytest.raises(sf.SpawnError) as caught:
                take(path)
            assert (caught.value.errno, caught.value.stage) == (errno.EINVAL, "snapshot")
            assert caught.value.filename == os.fspath(path)
        with pytest.raises(FileNotFoundError, match="missing"):
            take(tmp_path / "missing")
        wrong: Any
        for wrong in (None, 3.5, ()):
            with pytest.raises(TypeError, match="file: expected a path, a descriptor"):
                take(wrong)
        for wrong in (-1, "a\0b"):
            with pytest.raises(ValueError, match="file"):
                take(wrong)
        with pytest.raises(OSError, match="bad file descriptor"):
            take(10**6)
    for wrong in ("many", None, -1):
        with pytest.raises((TypeError, ValueError), match="capacity"):
            sf.SnapshotCache(wrong)
    with pytest.raises(TypeError):
        pickle.dumps(cache)
