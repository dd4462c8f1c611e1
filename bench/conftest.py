# SPDX-License-Identifier: MIT OR Apache-2.0
"""Its place puts bench/ on the path of the tests below it, for bench/common."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds what is skipped to the list that `make test` ends with."""
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {report.nodeid} {report.longrepr[2].removeprefix('Skipped: ')}\n")
