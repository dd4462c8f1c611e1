# SPDX-License-Identifier: MIT OR Apache-2.0
"""The check of the documentation site's links."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parent.parent / "docs/site/check_links.py"


def check(site: Path, body: str) -> tuple[int, str]:
    """Checks a site of two pages: `a.html` with this body, and `sub/b.html` with the id `here`."""
    (site / "sub").mkdir()
    (site / "a.html").write_text(f'<h1 id="top">A</h1>{body}')
    (site / "sub/b.html").write_text('<h1 id="here">B</h1><a href="../a.html#top">A</a>')
    command = [sys.executable, str(CHECK), str(site)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout


def test_valid_links_pass(tmp_path: Path) -> None:
    body = (
        '<a href="sub/b.html#here">B</a><a href="#top">top</a><a href="https://example.org">x</a>'
    )
    assert check(tmp_path, body) == (0, "check_links: 0 problems in 2 pages\n")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="sub/c.html">', "no file: sub/c.html"),
        ('<a href="../outside.html">', "no file: ../outside.html"),
        ('<a href="sub/b.html#there">', "no such id: sub/b.html#there"),
        ('<a href="#there">', "no such id: #there"),
        ('<img src="missing.png">', "no file: missing.png"),
        ('<script src="https://example.org/x.js">', "loads https://example.org/x.js"),
    ],
)
def test_problem_is_reported(tmp_path: Path, body: str, problem: str) -> None:
    assert check(tmp_path, body) == (1, f"a.html: {problem}\n")
