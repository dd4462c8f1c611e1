#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks licence lines, lengths of files, names of files, and that all version numbers are equal.

Documents and comments name files that exist. In docs/ARCHITECTURE.md, an entry "1. `path`: text" of
a numbered list has a file that no other entry of the section has. The file defines the names in
backticks of the entry.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SPDX = "SPDX-License-Identifier: MIT OR Apache-2.0"
# kernel/: patches of the kernel, programs linked with its sources, scripts that build and boot it.
KERNEL_SPDX = "SPDX-License-Identifier: GPL-2.0-only"
SOURCES = {".rs", ".py", ".pyi", ".c", ".h", ".S", ".sh"}
LONGEST = 800
# cbindgen writes it, with the documentation of each function.
GENERATED = Path("include/spawnfd.h")
ARCHITECTURE = Path("docs/ARCHITECTURE.md")
# A folder or a source file, in a document. Only files of Rust and C may be named without a folder.
NAMED = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.(?:rs|py|c|h|S|sh|toml))?|[\w-]+\.(?:rs|c|h|S))`")
# A comment of Rust, and a file of the crate in it.
COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
NAMED_RUST = re.compile(r"`((?:[\w-]+/)*[\w-]+\.rs)`")
# An entry of a numbered list of files, and the names in it.
ENTRY = re.compile(r"^\d+\. `([^`]+)`:((?:.*\n)(?: +.*\n)*)", re.MULTILINE)
NAME = re.compile(r"`(?:\w+::)*(\w+)`")
# A definition of a name in Rust, or a variant of an enum.
DEFINITION = r"\b(?:fn|struct|enum|trait|type|const|static) {0}\b|^ +{0}(?:[,({{]| {{)"


def problems_of_names(tracked: list[str]) -> Iterator[str]:
    """Files that documents and comments name, and that do not exist."""
    folders = {f"{folder}/" for path in tracked for folder in Path(path).parents}
    for path in tracked:
        names = []
        near = known = [*tracked, *folders]
        if path.endswith(".md"):
            names = NAMED.findall(Path(path).read_text())
        elif path.endswith(".rs"):
            names = NAMED_RUST.findall("\n".join(COMMENT.findall(Path(path).read_text())))
            near = [other for other in tracked if other.split("/")[:2] == path.split("/")[:2]]
        for name in names:
            among = known if "/" in name else near
            if not any(f"/{other}".endswith(f"/{name}") for other in among):
                yield f"{path}: there is no {name}"


def problems_of_entries(text: str) -> Iterator[str]:
    """Entries of numbered lists whose file is missing, is listed twice, or lacks a name."""
    for section in text.split("\n## "):
        listed = set()
        for path, entry in ENTRY.findall(section):
            if path in listed:
                yield f"{path} is listed twice"
            listed.add(path)
            if not Path(path).is_file():
                yield f"there is no {path}"
                continue
            source = Path(path).read_text()
            for name in NAME.findall(entry):
                if not re.search(DEFINITION.format(name), source, re.MULTILINE):
                    yield f"{path} does not define {name}"


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
    problems += problems_of_names([path for path in tracked if Path(path).is_file()])
    entries = problems_of_entries(ARCHITECTURE.read_text())
    problems += [f"{ARCHITECTURE}: {problem}" for problem in entries]
    manifest = Path("Cargo.toml").read_text()
    version = re.search(r'^version = "(.+)"', manifest, re.MULTILINE)
    if version is None:
        problems.append("Cargo.toml: no workspace version")
    else:
        for crate in re.findall(r'^spawnfd[\w-]* = .*version = "=?(.+?)"', manifest, re.MULTILINE):
            if crate != version[1]:
                problems.append(
                    f"Cargo.toml: a dependency on {crate}, the workspace is {version[1]}"
                )
        if f"## {version[1]}" not in Path("CHANGELOG.md").read_text():
            problems.append(f"CHANGELOG.md: nothing on {version[1]}")
        if 'dynamic = ["version"]' not in Path("bindings/python/pyproject.toml").read_text():
            problems.append("bindings/python/pyproject.toml: the version must come from Cargo.toml")
        module = Path("bindings/python/python/spawnfd/_portable/version.py")
        if f'VERSION = "{version[1]}"' not in module.read_text():
            problems.append(f"{module}: the workspace has version {version[1]}")
        for package in ["bindings/node/package.json", "bindings/node/package-lock.json"]:
            found = json.loads(Path(package).read_text())["version"]
            if found != version[1]:
                problems.append(f"{package}: version {found}, the workspace is {version[1]}")
    print("\n".join(problems) or "check-tree: 0 problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
