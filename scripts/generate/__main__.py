#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes signatures, stubs and pages from the library's tables of options and actions.

    scripts/generate            writes the generated files, and the generated parts of other files
    scripts/generate --check    fails if the repository has anything else

A generated part of a file stands between a line with `generated: NAME` and a line with
`end of NAME`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import subprocess
import sys
from pathlib import Path

import actions
import node
import node_actions
import options
from parts import Part

ROOT = Path(__file__).resolve().parents[2]


def tables() -> dict[str, list[dict[str, object]]]:
    """Returns the tables, which the library prints."""
    command = ["cargo", "run", "--quiet", "-p", "spawnfd-cli", "--example", "tables"]
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    read: dict[str, list[dict[str, object]]] = json.loads(printed)
    return read


def replaced(text: str, part: Part) -> str:
    """Returns the text of a file with a generated part replaced."""
    if part.name is None:
        return part.text
    name = re.escape(part.name)
    marks = rf"(^[^\n]*\bgenerated: {name}\b[^\n]*\n).*?(^[^\n]*\bend of {name}\b)"
    found = re.findall(marks, text, re.MULTILINE | re.DOTALL)
    if len(found) != 1:
        raise SystemExit(
            f"{part.path}: expected one generated part {part.name!r}, found {len(found)}"
        )
    return re.sub(
        marks, lambda match: match[1] + part.text + match[2], text, flags=re.MULTILINE | re.DOTALL
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file differs"
    )
    arguments = parser.parse_args()
    printed = tables()
    texts: dict[str, str] = {}
    modules = (options, actions, node, node_actions)
    for part in (part for module in modules for part in module.parts(printed)):
        path = ROOT / part.path
        before = texts.get(part.path) or (path.read_text() if path.exists() else "")
        texts[part.path] = replaced(before, part)
    differs = False
    for name, text in texts.items():
        path = ROOT / name
        before = path.read_text() if path.exists() else ""
        if before == text:
            continue
        differs = True
        if arguments.check:
            lines = difflib.unified_diff(
                before.splitlines(), text.splitlines(), name, "generated", lineterm=""
            )
            print("\n".join(lines), file=sys.stderr)
        else:
            path.write_text(text)
    if differs and arguments.check:
        print("generate: these files differ from the tables; run scripts/generate", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
