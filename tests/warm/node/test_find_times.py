# SPDX-License-Identifier: MIT OR Apache-2.0
"""The search for times that Node.js has stored leaves other values in its memory unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

from owner import ROOT, TIMEOUT

HERE = Path(__file__).resolve().parent
PARKED = ROOT / "crates" / "spawnfd-parked"


def test_only_times_read_from_the_clock_are_replaced(tmp_path: Path) -> None:
    sources = [HERE / "find_times.c", PARKED / "node/find.c", PARKED / "node-threads/clock.c"]
    program = tmp_path / "find_times"
    command = ["cc", "-std=c11", "-O1", "-Wall", "-Wextra", f"-I{PARKED / 'node'}"]
    command += ["-o", program, *sources, "-ldl"]
    subprocess.run(command, check=True, timeout=TIMEOUT)
    subprocess.run([program], check=True, timeout=TIMEOUT)
