# SPDX-License-Identifier: MIT OR Apache-2.0
"""The search for times that Node.js has stored leaves other values in its memory unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from calls import TIMEOUT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PARKED = ROOT / "crates" / "spawnfd-parked"
# Times since boot in ns.
UPTIMES = {"an hour": 3600 * 10**9, "104 days": 2**53 + 1, "a year": 365 * 86400 * 10**9 + 1}


@pytest.mark.parametrize("uptime", UPTIMES)
def test_only_times_read_from_the_clock_are_replaced(uptime: str, tmp_path: Path) -> None:
    """The program has a clock of its own, because the rounding of stored times depends on uptime."""
    clock, program = tmp_path / "libfakeclock.so", tmp_path / "find_times"
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra"]
    first = f"-DFIRST_TIME=UINT64_C({UPTIMES[uptime]})"
    library = [*command, "-shared", "-fPIC", first, "-o", clock, HERE / "fake_clock.c"]
    subprocess.run(library, check=True, timeout=TIMEOUT)
    sources = [HERE / "find_times.c", PARKED / "node/find.c", PARKED / "node-threads/clock.c"]
    command += [f"-I{PARKED / 'node'}", "-o", program, *sources, clock, f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*command, "-ldl"], check=True, timeout=TIMEOUT)
    subprocess.run([program], check=True, timeout=TIMEOUT)
