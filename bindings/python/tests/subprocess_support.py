# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests of spawnfd.subprocess share: counts, failures, interpreters of their own."""

from __future__ import annotations

import subprocess as original
import sys
import textwrap
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


def alone(code: str, *args: str, **options: Any) -> str:
    """Runs code in an interpreter of its own, `subprocess` and `sf` imported; its output."""
    package = str(Path(sf.__file__).parent.parent)
    start = f"import sys, os\nsys.path.append({package!r})\nimport subprocess, spawnfd as sf\n"
    command = [PYTHON, "-c", start + textwrap.dedent(code), *args]
    ended = original.run(command, capture_output=True, text=True, timeout=50, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
