# SPDX-License-Identifier: MIT OR Apache-2.0
"""An owner with parked processes, to be killed: `python warm_owner.py WAY PROGRAM...`."""

from __future__ import annotations

import sys
import time

from conftest import children
from warm_support import Way, add, warm_of


def main(way: Way, *programs: str) -> None:
    """Parks, starts one that goes on, prints the pids, and waits for its own end."""
    warm = warm_of(way)
    for program in programs:
        add(warm, way, program, 3)
    filled = warm.fill(timeout=30)
    print(int(filled), *children(), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
