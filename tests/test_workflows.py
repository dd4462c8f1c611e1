# SPDX-License-Identifier: MIT OR Apache-2.0
"""The workflows of GitHub Actions and the pages for contributors name existing targets of make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
# `make test-docker` has no description of its own in the Makefile.
TARGETS |= {f"test-{name}" for name in ("docker", "examples", "python", "node", "parked")}
FILES = [*sorted((ROOT / ".github/workflows").glob("*.yml")), ROOT / "CONTRIBUTING.md"]


def named_targets(text: str) -> set[str]:
    """The targets in `make TARGET` commands and in the matrix of a workflow."""
    commands = re.findall(r"(?:`|run: |^)make ([a-z-]+)", text, re.MULTILINE)
    matrices = re.findall(r"target: \[(.*)\]", text)
    return {*commands, *(name for matrix in matrices for name in matrix.split(", "))}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_targets_exist(file: Path) -> None:
    named = named_targets(file.read_text())
    assert named
    assert named <= TARGETS
