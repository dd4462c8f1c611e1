# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Node.js and the CPython of Debian's releases park as those of this machine do.

The suites of both interpreters run in a root directory of each release.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import spawnfd as sf

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
CACHE = os.environ.get("CACHE", "/var/cache/spawnfd")
NODE, PYTHON = "tests/warm/node/test_warm_node.py", "tests/warm/python"
# Debian 12 is the release of most machines that run this test, so their suites have its CPython.
SUITES = {"bookworm": [NODE], "trixie": [NODE, PYTHON], "sid": [NODE, PYTHON]}
PACKAGES = ["nodejs", "python3-pytest", "python3-pytest-xdist"]
ROOT_LIMIT_S, LIMIT_S = 1800, 2400
# Many more tests than this number pass, so the interpreters were found and have parked.
FEWEST = 150


def make_root(suite: str) -> str:
    """Returns the root directory of the release, from the cache or Debian's mirror."""
    for command in (
        [f"{PACKAGING}/setup-roots.sh"],
        [f"{PACKAGING}/root.sh", f"{CACHE}/roots", suite, *PACKAGES],
    ):
        made = subprocess.run(
            ["timeout", str(ROOT_LIMIT_S), *command], capture_output=True, text=True
        )
        if made.returncode:
            why = made.stderr.strip().rpartition("\n")[2] or f"status {made.returncode}"
            pytest.skip(f"{Path(command[0]).name} {suite}: {why[:200]}")
    return made.stdout.strip()


@pytest.mark.skipif(not os.environ.get("SPAWNFD_FULL"), reason="part of make test-all")
@pytest.mark.skipif(os.geteuid() != 0, reason="a root directory of Debian needs root")
@pytest.mark.parametrize("suite", SUITES)
def test_interpreters_of_debian_park(suite: str) -> None:
    package = Path(sf.__file__).resolve().parents[1]
    # On SIGTERM in-root.sh ends all processes, and removes the copy of the root.
    command = ["timeout", str(LIMIT_S), f"{PACKAGING}/in-root.sh", "--network"]
    command += ["--bind", str(ROOT), "/mnt/checkout", "--bind", str(package), "/mnt/package"]
    command += [make_root(suite), "env", "PYTHONPATH=/mnt/package", "PYTHONDONTWRITEBYTECODE=1"]
    command += ["sh", "-c", 'cd /mnt/checkout && exec "$@"', "sh"]
    command += ["python3", "-m", "pytest", "-q", "-rs", "-n", "2", "-p", "no:cacheprovider"]
    ended = subprocess.run([*command, *SUITES[suite]], capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    passed = re.search(r"(\d+) passed", said)
    assert ended.returncode == 0, said
    assert passed, said
    assert int(passed[1]) > FEWEST, said
