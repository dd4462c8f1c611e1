# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is skipped below comes into the list that `make test` ends with."""

import os


def pytest_runtest_logreport(report):
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {report.nodeid} {report.longrepr[2].removeprefix('Skipped: ')}\n")
