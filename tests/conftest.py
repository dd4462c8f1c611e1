# SPDX-License-Identifier: MIT OR Apache-2.0
"""Appends each skipped test to the list that `make test` prints at its end."""

import os


def pytest_runtest_logreport(report):
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        # A fixture may skip all tests of a file. The list then names the file once.
        where = report.nodeid.partition("::")[0] if report.when == "setup" else report.nodeid
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {where} {report.longrepr[2].removeprefix('Skipped: ')}\n")
