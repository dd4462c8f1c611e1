#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks licence lines, lengths of files, file names in documents, and that all version numbers are equal."""

import json
import re
import subprocess
import sys
from pathlib import Path

SPDX = "SPDX-License-Identifier: MIT OR Apache-2.0"
# kernel/: patches of the kernel, programs linked with its sources, and scripts that build and boot it.
KERNEL_SPDX = "SPDX-License-Identifier: GPL-2.0-only"
SOURCES = {".rs", ".py", ".pyi", ".c", ".h", ".S", ".sh"}
LONGEST = 800
# cbindgen writes it, with the documentation of each function.
GENERATED = Path("include/spawnfd.h")
# A source file with its directory, in a document.
NAMED = re.compile(r"`((?:[\w-]+/)+[\w.-]+\.(?:rs|py|c|h|S|sh|toml))`")


def main() -> int:
    """Prints one line per problem. The exit status is 1 if there are any."""
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True)
    problems = []
    for path in map(Path, listed.stdout.splitlines()):
        if path.suffix not in SOURCES or not path.exists():
            continue
        lines = path.read_text().splitlines()
        wanted = KERNEL_SPDX if path.is_relative_to("kernel") else SPDX
        if not any(wanted in line for line in lines[:3]):
            problems.append(f"{path}: no SPDX line among the first three")
        if len(lines) > LONGEST and path != GENERATED:
            problems.append(f"{path}: {len(lines)} lines, {LONGEST} at most")
    tracked = listed.stdout.split()
    for document in [path for path in tracked if path.endswith(".md")]:
        for named in NAMED.findall(Path(document).read_text()):
            if not any(f"/{path}".endswith(f"/{named}") for path in tracked):
                problems.append(f"{document}: there is no {named}")
    manifest = Path("Cargo.toml").read_text()
    version = re.search(r'^version = "(.+)"', manifest, re.MULTILINE)
    if version is None:
        problems.append("Cargo.toml: no workspace version")
    else:
        for crate in re.findall(r'^spawnfd[\w-]* = .*version = "=?(.+?)"', manifest, re.MULTILINE):
            if crate != version[1]:
                problems.append(f"Cargo.toml: a dependency on {crate}, the workspace is {version[1]}")
        if f"## {version[1]}" not in Path("CHANGELOG.md").read_text():
            problems.append(f"CHANGELOG.md: nothing on {version[1]}")
        if 'dynamic = ["version"]' not in Path("bindings/python/pyproject.toml").read_text():
            problems.append("bindings/python/pyproject.toml: the version must come from Cargo.toml")
        for path in ["bindings/node/package.json", "bindings/node/package-lock.json"]:
            found = json.loads(Path(path).read_text())["version"]
            if found != version[1]:
                problems.append(f"{path}: version {found}, the workspace is {version[1]}")
    print("\n".join(problems) or "check-tree: 0 problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
