# SPDX-License-Identifier: MIT OR Apache-2.0
"""Helpers for the tests of spawnfd.subprocess: counters, expected errors, new interpreters."""

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


class CountersSince:
    """How much the counters have grown since this object was created."""

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
    """Returns everything that a caller can compare of the exception that Popen raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        module.Popen(*args, **options)
    error = caught.value
    if not isinstance(error, OSError):
        return type(error), error.args
    # CPython 3.13 turns a path object into a str where it uses posix_spawn.
    file: Any = error.filename
    name: Any = str(file) if isinstance(file, Path) else file
    return type(error), error.args, error.errno, error.strerror, name


# The first lines of a script. `answer` installs a seccomp filter that gives these calls this
# action.
START = """
import os, subprocess, sys
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


def run_script(
    code: str,
    *args: str,
    start: str = START,
    python: str = PYTHON,
    prefix: Sequence[str] = (),
    timeout: float = 240,
    **options: Any,
) -> str:
    """Runs code in a new interpreter, which must print no errors, and returns its output.

    `prefix` is a command that executes the interpreter.
    """
    package = str(Path(sf.__file__).parent.parent)
    text = "import sys; sys.path.append(sys.argv.pop(1))\n" + start + textwrap.dedent(code)
    command = [*prefix, python, "-c", text, package, *args]
    ended = original.run(command, capture_output=True, text=True, timeout=timeout, **options)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr
    return ended.stdout
