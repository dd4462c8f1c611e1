# SPDX-License-Identifier: MIT OR Apache-2.0
"""Finds the interpreters of this machine, and compares cold with warm results."""

from __future__ import annotations

import difflib
import functools
import os
import re
import subprocess
from pathlib import Path

from calls import Result

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "A": "1"}
VERSIONS = [f"3.{minor}" for minor in range(8, 15)]
# If set, each test runs with every build of each version, in both modes.
FULL = bool(os.environ.get("SPAWNFD_FULL"))


@functools.cache
def interpreters() -> dict[str, list[str]]:
    """The CPythons of this machine, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python"))
    paths = ["/usr/bin/python3", *sorted(map(str, pyenv.glob("3.*/bin/python3")))]
    paths += sorted(map(str, uv.glob("cpython-3.*-linux-x86_64-gnu/bin/python3")))
    # It is built as uv's are, but not optimised.
    paths += ["/usr/lib/google-cloud-sdk/platform/bundledpythonunix/bin/python3"]
    found: dict[str, list[str]] = {version: [] for version in VERSIONS}
    for path in filter(os.path.exists, paths):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        ended = subprocess.run([path, "-Ic", code], capture_output=True, text=True, timeout=60)
        if (version := ended.stdout.strip()) in found and (FULL or not found[version]):
            found[version].append(path)
    return found


def without_addresses(data: bytes) -> list[bytes]:
    data = re.sub(rb"0x[0-9a-f]{7,16}", b"0x...", data)
    return re.sub(rb"in \d\.\d+s", b"in ...", data).splitlines(True)


def differences(expected: Result, got: Result) -> list:
    found: list = [] if got.code == expected.code else [("code", expected.code, got.code)]
    for name in ("stdout", "stderr"):
        before, after = (without_addresses(getattr(one, name)) for one in (expected, got))
        found += [
            (name, line) for line in difflib.diff_bytes(difflib.unified_diff, before, after, n=0)
        ]
    return found


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)
