# SPDX-License-Identifier: MIT OR Apache-2.0
"""Helpers that wait, send signals and run threads, whatever the machine's speed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import spawnfd as sf

T = TypeVar("T")

# Even a very busy machine finishes any single step of a test within this time.
TIMEOUT_S = 60.0 * float(os.environ.get("SPAWNFD_SLOWNESS", "1"))


def eventually(condition: Callable[[], object]) -> bool:
    """Waits for the condition. Returns whether it became true in time."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def growing_timeouts(seconds: float) -> Iterator[float]:
    """Yields longer and longer timeouts, for attempts that fail if the machine is too slow."""
    while seconds < TIMEOUT_S / 2:
        yield seconds
        seconds *= 2


def in_time(marker: Path, seconds: float, attempt: Callable[[float], T]) -> T:
    """The result of the first attempt whose program creates `marker` before the timeout.

    An attempt gets its timeout in seconds. If the file is missing afterwards, the machine was too
    slow, and the next attempt gets more time.
    """
    tried: list[T] = []
    for more in growing_timeouts(seconds):
        tried.append(attempt(more))
        if marker.exists():
            return tried[-1]
    raise AssertionError(f"the program never created {marker}: {tried}")


@contextmanager
def signal_after(seconds: float, number: int) -> Generator[None]:
    """Sends a signal to this process after some seconds.

    `pytest.raises` must enclose this context manager, because the signal may arrive on entry.
    """
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def signal_handler(number: int, handler: Callable[[int, Any], object]) -> Generator[None]:
    """Installs a signal handler meanwhile."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def in_background(*works: Callable[[], object]) -> Generator[None]:
    """Runs each function in a thread meanwhile. Waits for all, and raises the first exception."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
        yield
    for each in running:
        each.result()


def in_threads(*works: Callable[[], object]) -> None:
    """Runs each function in a thread of its own, and raises the first exception."""
    with in_background(*works):
        pass


def assert_releases_the_gil(call: Callable[[], object]) -> None:
    """Asserts that another thread can run while this thread repeats the call."""
    interval = sys.getswitchinterval()
    go, ran = threading.Event(), threading.Event()

    def other() -> None:
        go.wait()
        ran.set()

    def has_run() -> bool:
        call()
        return ran.is_set()

    with in_background(other):
        # With this interval a thread gets the GIL only if another releases it.
        sys.setswitchinterval(1000)
        try:
            go.set()
            deadline = time.monotonic() + TIMEOUT_S
            while not has_run():
                assert time.monotonic() < deadline
        finally:
            sys.setswitchinterval(interval)


def ignores_sigterm(marker: Path) -> list[str | bytes]:
    """Returns a program that ignores SIGTERM. The program creates `marker` once it does."""
    return sf.sh(f"trap '' TERM; echo ready; : > '{marker}'; while :; do sleep 0.01; done")


class Gate:
    """A FIFO. A program waits on it until the test opens the gate."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        os.mkfifo(self.path)
        # This shell command waits for the gate.
        self.wait = f"read line < '{self.path}'"

    def open(self) -> None:
        """Lets one program go on. Blocks until the program waits at the gate."""
        self.path.write_text("\n")
