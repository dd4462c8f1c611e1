# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is skipped below comes into the list that `make test` ends with."""

import os


def pytest_runtest_logreport(report):
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        # A fixture skips many, for the same reason.
        where = report.nodeid.partition("::")[0] if report.when == "setup" else report.nodeid
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {where} {report.longrepr[2].removeprefix('Skipped: ')}\n")
