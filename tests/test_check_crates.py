# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/check-crates.py finds references from a packaged crate to files that do not ship."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = """[package]
description = "d"
license = "MIT"
repository = "r"
documentation = "d"
readme = "README.md"
keywords = ["k"]
categories = ["c"]
"""
COMPLETE = {
    "Cargo.toml": MANIFEST,
    "LICENSE-APACHE": "a",
    "LICENSE-MIT": "m",
    "README.md": "[code](src/lib.rs), [page](https://example.org/docs/warm.md)",
    "src/lib.rs": '#[doc = include_str!("../README.md")] // src/lib.rs, include/linux/sched.h',
}


def check(directory: Path, files: dict[str, str]) -> tuple[int, str]:
    """Packs the files as a crate, and returns the exit status and the output of the check."""
    crate = directory / "x-1.0.0.crate"
    with tarfile.open(crate, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"x-1.0.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    command = [sys.executable, str(ROOT / "scripts/check-crates.py"), str(crate)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_complete_crate_has_no_problems(tmp_path: Path) -> None:
    assert check(tmp_path, COMPLETE) == (0, "check-crates: 1 crates, 0 problems\n")


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("README.md", "[page](../docs/warm.md)", "README.md: a link to ../docs/warm.md"),
        ("src/lib.rs", 'include_str!("../../x.rs")', "src/lib.rs: the path ../../x.rs"),
        (
            "src/lib.rs",
            'concat!(env!("CARGO_MANIFEST_DIR"), "/../x")',
            "src/lib.rs: the path /../x",
        ),
        ("src/lib.rs", "// See docs/warm.md.", "src/lib.rs: names docs/warm.md"),
        ("src/lib.rs", "// See adr/0003.", "src/lib.rs: names adr/0003"),
        ("src/a.c", "/* See scripts/setup.sh. */", "src/a.c: names scripts/setup.sh"),
        ("README.md", "", "no README.md"),
        ("Cargo.toml", MANIFEST.replace("keywords", "other"), "no keywords"),
    ],
)
def test_a_problem_is_reported(tmp_path: Path, file: str, text: str, problem: str) -> None:
    status, output = check(tmp_path, {**COMPLETE, file: text})
    assert status == 1
    assert output == f"x-1.0.0.crate: {problem}\n"
