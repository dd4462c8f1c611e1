# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every test leaves no process, no descriptor and no zombie."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import spawnfd as sf


def descriptors() -> dict[int, str]:
    """What is open: the target of each number.

    But for the socket pairs the core keeps for as many spawns as there have been at once.
    """
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:") and is_kept_pair(int(name)):
                continue
            found[int(name)] = target
        except OSError:
            continue
    return found


def is_kept_pair(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as end:
        return (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)


def children() -> set[int]:
    """The pids of all children, zombies too."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
        except FileNotFoundError:
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def warmed_up() -> None:
    """What the core keeps for the next spawn of a thread is there before anything is compared."""
    sf.run(["/bin/true"])
    with ThreadPoolExecutor(24) as pool:
        for run in [pool.submit(sf.run, ["/bin/sleep", "0.05"]) for _ in range(48)]:
            run.result()


@pytest.fixture(autouse=True)
def nothing_left(warmed_up: None) -> Iterator[None]:
    """Compares before and after, and gives what ends by itself (the engine's thread) time to."""
    sf.TemplateCache.shared().clear()
    gc.collect()
    before = descriptors(), children()
    yield
    deadline = time.monotonic() + 5
    while True:
        sf.TemplateCache.shared().clear()
        gc.collect()
        after = descriptors(), children()
        if after == before or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert after == before


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An executable script that can be changed."""
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\necho one\n")
    path.chmod(0o755)
    return path
