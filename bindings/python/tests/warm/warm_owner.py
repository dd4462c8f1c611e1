# SPDX-License-Identifier: MIT OR Apache-2.0
"""An owner with parked processes, to be killed: `python warm_owner.py MODE PROGRAM...`."""

from __future__ import annotations

import sys
import time

import spawnfd as sf
from conftest import children


def main(mode: str, *programs: str) -> None:
    """Parks, starts one that goes on, prints the pids, and waits for its own end."""
    warm = sf.Warm(mode=mode)  # type: ignore[arg-type]
    for program in programs:
        warm.add(program, depth=3)
    filled = warm.fill(timeout=30)
    print(int(filled), *children(), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
