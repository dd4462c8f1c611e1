# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is compared: the interpreters of this machine, and what their programs say cold and warm."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
from pathlib import Path

from starting import Finished

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "A": "1"}


def interpreters() -> list[str]:
    """The CPythons of this machine, one for each version and build."""
    found = [shutil.which("python3", path="/usr/bin")]
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    for root in roots:
        found += sorted(str(path) for path in root.glob("3.*/bin/python3"))
    chosen = os.environ.get("WARM_PYTHONS")
    found = chosen.split(":") if chosen else found

    def known(path: str) -> bool:
        check = "import sys; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 13))"
        return subprocess.run([path, "-Ic", check], timeout=60).returncode == 0

    return [path for path in found if path and known(path)]


def without_addresses(data: bytes) -> list[bytes]:
    data = re.sub(rb"0x[0-9a-f]{7,16}", b"0x...", data)
    return re.sub(rb"in \d\.\d+s", b"in ...", data).splitlines(True)


def differences(expected: Finished, got: Finished) -> list:
    found: list = [] if got.status == expected.status else [("status", expected.status, got.status)]
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
