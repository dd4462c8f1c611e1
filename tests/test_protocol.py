# SPDX-License-Identifier: MIT OR Apache-2.0
"""The generated file matches the header. scripts/protocol.py rejects unsupported declarations."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEADER = "crates/spawnfd-parked/common/protocol.h"
GENERATED = "crates/spawnfd-parked/src/protocol.rs"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copies the header and the generated file."""
    for name in (HEADER, GENERATED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/protocol.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def change(tree: Path, before: str, after: str) -> None:
    header = tree / HEADER
    text = header.read_text()
    assert before in text
    header.write_text(text.replace(before, after, 1))


def test_generated_file_is_current() -> None:
    checked = run("--check")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_check_reports_a_changed_header(tree: Path) -> None:
    assert run("--check", "--root", str(tree)).returncode == 0
    change(tree, "SPAWNFD_OP_TCSETPGRP,", "SPAWNFD_OP_NEW,\n\tSPAWNFD_OP_TCSETPGRP,")
    checked = run("--check", "--root", str(tree))
    assert checked.returncode == 1
    assert f"{GENERATED}: out of date" in checked.stderr
    assert run("--root", str(tree)).returncode == 0
    assert "    New = 2,\n" in (tree / GENERATED).read_text()
    assert run("--check", "--root", str(tree)).returncode == 0


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("\tuint16_t index;", "\tchar index;", "char"),
        ("\tuint16_t index;", "\tuint64_t index;", "padding"),
        ("\tint32_t a;", "\tint32_t a[2];", "["),
        ("SPAWNFD_STAGE_ACTION = 2", "SPAWNFD_STAGE_ACTION = sizeof(int)", "("),
        ("#define SPAWNFD_MAX_FIRST 24", "#define SPAWNFD_MAX_FIRST(n) 24", "MAX_FIRST(n)"),
        ("#define SPAWNFD_MAX_FIRST 24", "#define SPAWNFD_MAX_FIRST UNKNOWN", "UNKNOWN"),
        ("\tuint64_t z;", "\tuint64_t z : 3;", ":"),
        ("struct spawnfd_step {", "union spawnfd_step {", "union"),
    ],
)
def test_unsupported_declarations_are_rejected(
    tree: Path, before: str, after: str, why: str
) -> None:
    change(tree, before, after)
    checked = run("--check", "--root", str(tree))
    assert checked.returncode == 1
    assert "unsupported" in checked.stderr
    assert why in checked.stderr


def test_values_must_match_the_c_compilers(tree: Path) -> None:
    # The C compiler rounds the quotient before it adds. The script rounds the sum.
    change(tree, "#define SPAWNFD_MAX_FIRST 24", "#define SPAWNFD_MAX_FIRST (24 + -7 / 2)")
    checked = run("--check", "--root", str(tree))
    assert checked.returncode == 1
    assert "the C compiler reads it differently" in checked.stderr
