# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests of spawnfd.subprocess share: counts, failures, interpreters of their own."""

from __future__ import annotations

import subprocess as original
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf

PYTHON = sys.executable


class Counted:
    """What the counters have gained since this was made."""

    def __init__(self) -> None:
        self.start = sf.stats()

    def get(self) -> tuple[int, dict[str, int], int]:
        now = sf.stats()
        passed = {
            reason: count - self.start.passed.get(reason, 0)
            for reason, count in now.passed.items()
            if count != self.start.passed.get(reason, 0)
        }
        return now.made - self.start.made, passed, now.failed - self.start.failed


def failure(module: Any, *args: Any, **options: Any) -> tuple[Any, ...]:
    """The exception a Popen raises, as far as a caller can tell one from another."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        module.Popen(*args, **options)
    error = caught.value
    if not isinstance(error, OSError):
        return type(error), error.args
    # A path object stays one, but for where CPython 3.13 uses posix_spawn.
    file: Any = error.filename
    name: Any = str(file) if isinstance(file, Path) else file
    return type(error), error.args, error.errno, error.strerror, name


# What an interpreter of its own begins with: `answer` has a filter answer system calls.
START = """
import os, subprocess, sys
sys.path.append(sys.argv.pop(1))
import spawnfd as sf

def answer(calls, action):
    import ctypes, struct
    filter = [(0x20, 0, 0, 0)]
    for call in calls:
        filter += [(0x15, 0, 1, call), (0x06, 0, 0, action)]
    filter += [(0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *each) for each in filter)
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Program(len(filter), code)), 0, 0) == 0
"""


def alone(
    code: str, *args: str, python: str = PYTHON, prefix: Sequence[str] = (), **options: Any
) -> str:
    """Runs code in an interpreter of its own, after START; returns its output.

    `prefix` is a command that executes the interpreter.
    """
    package = str(Path(sf.__file__).parent.parent)
    command = [*prefix, python, "-c", START + textwrap.dedent(code), package, *args]
    ended = original.run(command, capture_output=True, text=True, timeout=240, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
