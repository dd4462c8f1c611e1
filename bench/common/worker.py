# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shared by the benchmarks' worker processes. pipe.py is the driver's side."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from . import probes
from .errors import BenchError
from .reference import Reference

# Seconds that children may take to end. spawnfd's guard process ends one second after its last
# tree.
LINGER = 10.0

Serve = Callable[[dict[str, Any], dict[str, Reference], TextIO], None]


def send(out: TextIO, **fields: Any) -> None:
    """Sends one line to the driver."""
    out.write(json.dumps(fields) + "\n")
    out.flush()


def check_leftovers(who: str, files_after_first: int | None = None, few: int = 0) -> None:
    """Raises BenchError if children are left, or more than `few` descriptors were added.

    The count of descriptors starts after the first round.

    The library may keep descriptors for each call in flight and each tool, and the first round may
    not have used all tools. A leak would be one descriptor for each call.
    """
    if files_after_first is not None and probes.open_files() > files_after_first + few:
        raise BenchError(f"{who}: {probes.open_files()} fds open, {files_after_first} before")
    until = time.monotonic() + LINGER
    while (left := probes.children()) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        raise BenchError(f"{who}: leftover children: {', '.join(left)}")


def run_worker(serve: Serve) -> int:
    """The main function of `python -m SUITEbench.worker JOB`, which only the driver starts.

    Any failure is reported as one line {"error": "..."}, with exit status 1.
    """
    # The driver ends its workers itself, so SIGINT has no effect here. With SIG_IGN in place of
    # this handler, the tools would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        references = [Reference.from_plain(entry) for entry in job["references"]]
        serve(job, {reference.name: reference for reference in references}, sys.stdout)
    except Exception as error:  # the driver must learn of every failure
        kind = "" if isinstance(error, BenchError) else f"{type(error).__name__}: "
        send(sys.stdout, error=f"{kind}{error}")
        return 1
    return 0
