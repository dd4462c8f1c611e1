# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the programs that a benchmark needs."""

import subprocess
from pathlib import Path
from typing import Any

from .errors import BenchError

TAIL = 2_000


def output(*command: str | Path, **options: Any) -> str:
    """Runs a command and returns its output. Raises BenchError if the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, errors="replace", **options)
    if done.returncode:
        raise BenchError(f"{words[0]}: exit status {done.returncode}\n{done.stdout[-TAIL:]}")
    return str(done.stdout)
