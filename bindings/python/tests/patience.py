# SPDX-License-Identifier: MIT OR Apache-2.0
"""How tests do without knowing how fast the machine is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import spawnfd as sf

T = TypeVar("T")

# In seconds: in that time a machine gets round to anything, whatever else it does.
EVER = 60.0


def eventually(condition: Callable[[], object]) -> bool:
    """Whether it comes true."""
    deadline = time.monotonic() + EVER
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def longer(seconds: float) -> Iterator[float]:
    """So many, and ever more: for what may have been too slow, to be tried again."""
    while seconds < EVER / 2:
        yield seconds
        seconds *= 2


def in_time(mark: Path, seconds: float, attempt: Callable[[float], T]) -> T:
    """What comes of something that may take so long, and makes a file when it has done its part.

    Without the file the machine was too slow: it is tried again, with more time.
    """
    tried: list[T] = []
    for more in longer(seconds):
        tried.append(attempt(more))
        if mark.exists():
            return tried[-1]
    raise AssertionError(f"it has not done its part: {tried}")


@contextmanager
def signal_after(seconds: float, number: int) -> Generator[None]:
    """Who expects it to raise something has to do so around this: it may come at once."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def deaf(mark: Path) -> list[str | bytes]:
    """A program that SIGTERM does not end, and that says when that is so."""
    return sf.sh(f"trap '' TERM; echo ready; : > '{mark}'; while :; do sleep 0.01; done")


class Gate:
    """A fifo that a program reads a line of: it does not go on before it is let."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        os.mkfifo(self.path)
        # For a shell.
        self.wait = f"read line < '{self.path}'"

    def open(self) -> None:
        """Lets one program through; waits until it is there."""
        self.path.write_text("\n")
