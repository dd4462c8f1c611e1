# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every reason to go cold, made to happen; and what is none, and has to be taken over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warm_cases import CASES, Case
from warm_support import ANY, Way, each_way, need

HERE = Path(__file__).parent


@each_way
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_change(case: Case, way: Way, tmp_path: Path) -> None:
    need(case.argv[0])
    if case.root and os.geteuid() != 0:
        pytest.skip("only root may do this")
    # No session of its own: a leader could not become one again.
    ended = subprocess.run(
        [sys.executable, str(HERE / "warm_cases.py"), way, case.id],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    if "cannot" in found:
        pytest.skip(f"not possible here: {found['cannot']}")
    assert found["filled"]
    assert found["before"] == way
    assert found["warm"] == found["cold"]
    by_exec = way in ANY and case.cold in ("variable", "memory limits")
    if case.cold is None or by_exec:
        assert found["after"] == way
    else:
        assert found["after"].startswith("cold: ")
        assert case.cold in found["after"]
    if case.thread:
        assert found["elsewhere"] == way
