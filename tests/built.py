#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds tests of the crates and suites, and prints the paths of the test binaries.

    tests/built.py [--with-programs] [--only NAME]... OPTION...

OPTION: an option of `cargo test`, for example `-p spawnfd-tests`. With --with-programs, prints the
paths of the other programs of these packages, too. With --only, prints only the binaries with
these names. If the build fails, exits with cargo's status;
if no binary matches, with 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "crates", ROOT / "tests")


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--with-programs", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    arguments, options = parser.parse_known_args()
    command = [
        "cargo",
        "test",
        "-q",
        *options,
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        return ended.returncode
    found = set()
    for line in ended.stdout.splitlines():
        item = json.loads(line) if line.startswith("{") else {}
        if not item.get("executable"):
            continue
        if not item["profile"]["test"] and not arguments.with_programs:
            continue
        if not any(Path(item["manifest_path"]).is_relative_to(folder) for folder in FOLDERS):
            continue
        name = Path(item["executable"]).name.rpartition("-")[0]
        if not arguments.only or name in arguments.only:
            found.add(item["executable"])
    if not found:
        print(f"built.py: no binary matches {' '.join(sys.argv[1:])}", file=sys.stderr)
        return 1
    print("\n".join(sorted(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
