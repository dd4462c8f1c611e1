# SPDX-License-Identifier: MIT OR Apache-2.0
"""The number of system calls that a run makes in the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# More calls than this slow down a run of a short program.
MOST = 45

SCRIPT = """
import asyncio, os, sys
from contextlib import suppress
import spawnfd as sf

def mark():
    with suppress(FileNotFoundError):
        os.stat("/mark")

async def awaited():
    for _ in range(30):
        mark()
        await sf.run_async(["/bin/true"])

def blocking():
    for _ in range(30):
        mark()
        sf.run(["/bin/true"])

asyncio.run(awaited()) if sys.argv[1] == "run_async" else blocking()
"""


def calls_between_marks(trace: str) -> list[int]:
    """Returns the number of calls of all threads of the host between each two marks."""
    # strace shows the end of an interrupted call in another line, and signals and exits in lines of
    # their own.
    calls = [line.split(maxsplit=1) for line in trace.splitlines()]
    calls = [(pid, call) for pid, call in calls if not call.startswith(("<...", "---", "+++"))]
    host = calls[0][0]
    programs = {pid for pid, call in calls if call.startswith("execve(")} - {host}
    counts: list[int] = []
    for pid, call in calls:
        if '"/mark"' in call:
            counts.append(0)
        elif counts and pid not in programs:
            counts[-1] += 1
    # The first run starts helpers, and the end of the script follows the last one.
    return counts[1:-1]


@pytest.mark.parametrize("how", ["run", "run_async"])
def test_number_of_system_calls_of_a_run(how: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), sys.executable, "-c", SCRIPT, how]
    subprocess.run(command, check=True, timeout=120)
    # In most runs, the ends of both streams and of the program arrive in one batch of events.
    assert min(calls_between_marks(trace.read_text())) <= MOST
