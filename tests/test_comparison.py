# SPDX-License-Identifier: MIT OR Apache-2.0
"""docs/comparison.md has a source for each statement about another project."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parent.parent / "docs/comparison.md").read_text()
SOURCE = re.compile(r"\]\[(\w+)\]")
HEADINGS = ("property", "property of a captured run")


def test_cells_about_other_projects_have_a_source() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    assert sum(row[0] in HEADINGS for row in rows) == 5
    for row in rows:
        for cell in row[2:]:
            assert row[0] in HEADINGS or cell == "–" or "](" in cell or SOURCE.search(cell), row


def test_sources_are_used_and_defined() -> None:
    defined = re.findall(r"^\[(\w+)\]: https://\S+$", TEXT, re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert set(SOURCE.findall(TEXT)) == set(defined)
