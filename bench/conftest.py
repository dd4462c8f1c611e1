# SPDX-License-Identifier: MIT OR Apache-2.0
"""Puts bench/ on sys.path for the tests below, which import bench/common."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends each skipped test to the list that `make test` prints at its end."""
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {report.nodeid} {report.longrepr[2].removeprefix('Skipped: ')}\n")
