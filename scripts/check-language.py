#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks the language of comments, texts and documents.

- Words for which the field has a standard term, in any file.
- Comment lines that begin with Who, Whoever or What, unless the comment asks a question.
- Lines of documents longer than 120 columns, except links and code.

    scripts/check-language.py [PATH...]    checks these files; by default, all of the checkout
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# The first word of a pair must not occur; the second is its replacement.
WORDS = {
    r"midwi(?:fe|ves)": "intermediate process",
    r"undertakers?": "supervisor thread",
    r"bur(?:y|ies|ied|ying)": "reap, or kill and reap",
    r"heirs?": "child",
    r"barren": "cannot fork",
    r"(?:give|gives|gave|giving)[ _]births?": "create, start, fork",
    r"(?:take|takes|took|taking)[ _]off": "start without vfork, detach",
    r"newborns?": "new process",
}
FORBIDDEN = {
    re.compile(rf"(?<![a-z]){pattern}(?![a-z])", re.IGNORECASE): term
    for pattern, term in WORDS.items()
}

# Comments of Rust, C, Python, shell and assembly.
COMMENT = re.compile(r"^\s*(?://[/!]?|/\*+|\*|#)\s+(.*)$")
CLAUSE = re.compile(r"(?:Who|Whoever|What)\b")
SOURCES = {".rs", ".c", ".h", ".S", ".py", ".pyi", ".sh"}
DOCUMENTS = {".md"}
COLUMNS = 120

# Files with the words themselves, and files whose text comes from elsewhere.
EXEMPT = (
    "scripts/check-language.py",
    "tests/test_language.py",
    "tests/data/",
    "kernel/patches/",
)
# File contents that are not the project's prose.
BINARY = {".lock", ".png", ".svg", ".json", ".bpf"}


def asks(lines: list[str], number: int) -> bool:
    """Whether the comment that begins at this line asks a question before its first full stop."""
    text = ""
    for line in lines[number:]:
        comment = COMMENT.match(line)
        if comment is None:
            break
        text += " " + comment[1]
    sentence = re.split(r"[.?!](?:\s|$)", text, maxsplit=1)[0]
    return text[len(sentence) : len(sentence) + 1] == "?"


def problems_of(path: Path) -> Iterator[str]:
    """Yields one line for each problem of a file."""
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        return
    is_code = False
    for number, line in enumerate(lines, 1):
        for word, term in FORBIDDEN.items():
            if found := word.search(line):
                yield f"{path}:{number}: say '{term}', not '{found[0]}'"
        comment = COMMENT.match(line) if path.suffix in SOURCES else None
        if comment and CLAUSE.match(comment[1]) and not asks(lines, number - 1):
            yield f"{path}:{number}: name the actor; the comment begins with a clause"
        if path.suffix in DOCUMENTS:
            is_code ^= line.lstrip().startswith("```")
            if len(line) > COLUMNS and not is_code and "](http" not in line:
                yield f"{path}:{number}: {len(line)} columns, {COLUMNS} at most"


def main(arguments: list[str]) -> int:
    """Prints one line for each problem; the exit status is 1 if there is any."""
    if not arguments:
        listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True)
        arguments = listed.stdout.splitlines()
    paths = [Path(name) for name in arguments if not name.startswith(EXEMPT)]
    problems = [
        problem
        for path in paths
        if path.is_file() and path.suffix not in BINARY
        for problem in problems_of(path)
    ]
    print("\n".join(problems) or "check-language: 0 problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
