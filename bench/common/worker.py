# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the benchmarks' worker processes have in common; pipe.py is the driver's side."""

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

# Seconds that children may stay: spawnfd's guard, for one, ends a second after its last tree.
LINGER = 3.0

Serve = Callable[[dict[str, Any], dict[str, Reference], TextIO], None]


def tell(out: TextIO, **fields: Any) -> None:
    """One line to the driver."""
    out.write(json.dumps(fields) + "\n")
    out.flush()


def check_leftovers(who: str, files_after_first: int | None = None, few: int = 0) -> None:
    """Fails if children were left behind, or more than a few descriptors since the first round.

    Some may be kept for each call in flight, and for each tool, of which the first round need not
    have met all; a leak is one for each call made.
    """
    if files_after_first is not None and probes.open_files() > files_after_first + few:
        raise BenchError(f"{who}: {probes.open_files()} fds open, {files_after_first} before")
    until = time.monotonic() + LINGER
    while (left := probes.children()) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        raise BenchError(f"{who}: children left behind: {', '.join(left)}")


def run_worker(serve: Serve) -> int:
    """`python -m SUITEbench.worker JOB`: serves the driver, which is the only caller.

    Any failure is one line {"error": "..."} and exit status 1.
    """
    # The driver ends its workers itself. A handler, not SIG_IGN: the tools would inherit that.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        references = [Reference.from_plain(entry) for entry in job["references"]]
        serve(job, {reference.name: reference for reference in references}, sys.stdout)
    except Exception as error:  # the driver must learn of any failure, whatever it is
        kind = "" if isinstance(error, BenchError) else f"{type(error).__name__}: "
        tell(sys.stdout, error=f"{kind}{error}")
        return 1
    return 0
