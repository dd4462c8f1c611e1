# SPDX-License-Identifier: MIT OR Apache-2.0
"""Puts bench/ on sys.path for the tests below, which import bench/common; shared fixtures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

BENCH = Path(__file__).resolve().parent


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends each skipped test to the list that `make test` prints at its end."""
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {report.nodeid} {report.longrepr[2].removeprefix('Skipped: ')}\n")


@pytest.fixture
def run_bench(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str]]:
    """Runs a benchmark as a user does. Returns its result file and its output.

    `name` is that of the result file, if it is not the suite's.
    """

    def run(
        suite: str, *arguments: str, name: str = "", **variables: str
    ) -> tuple[dict[str, Any], str]:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        done = subprocess.run(
            [sys.executable, str(BENCH / suite / "run.py"), *arguments, "--out", str(tmp_path)],
            env={**os.environ, "TMPDIR": str(scratch), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert list(scratch.iterdir()) == []
        document = json.loads((tmp_path / f"{name or suite}.json").read_text())
        assert document["suite"] == (name or suite)
        for ratio in document["ratios"]:
            assert {"value", "low", "high", "meaning"} <= ratio.keys()
        return document, done.stdout

    return run


@pytest.fixture
def bench_launch() -> Path:
    """The path of bench-launch, which cargo builds. Skips the test without the program."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", BENCH.parent / "target"))
    programs = [target / profile / "bench-launch" for profile in ("release", "debug")]
    built = [program for program in programs if program.exists()]
    if not built:
        pytest.skip("bench-launch is not built")
    return max(built, key=lambda program: program.stat().st_mtime)
