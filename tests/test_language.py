# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests scripts/check-language.py."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import pytest

CHECK = runpy.run_path(str(Path(__file__).resolve().parents[1] / "scripts" / "check-language.py"))


def check(path: Path, text: str) -> tuple[int, str]:
    """Checks one file with this text; returns the exit status and the output."""
    path.write_text(text)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = CHECK["main"]([str(path)])
    return status, output.getvalue()


@pytest.mark.parametrize(
    "word", ["midwife", "undertaker", "take_off", "Takes off", "gave birth", "buried"]
)
def test_words_with_a_standard_term_are_reported(tmp_path: Path, word: str) -> None:
    for name in ("a.rs", "a.md", "Makefile"):
        status, output = check(tmp_path / name, f"fine\n{word}\n")
        assert (status, output.count("\n")) == (1, 1)
        assert output.startswith(f"{tmp_path / name}:2: say ")
        assert output.endswith(f"not '{word}'\n")


@pytest.mark.parametrize("text", ["theirs", "their", "cake_off", "burying_the"])
def test_other_words_are_accepted_unless_they_contain_one(tmp_path: Path, text: str) -> None:
    assert check(tmp_path / "a.rs", text)[0] == (text == "burying_the")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.rs", "    // Who waits here sleeps.\n"),
        ("a.rs", "/// What a child has.\n"),
        ("a.rs", "//! Whoever asks.\n"),
        ("a.c", "/* What is left. */\n"),
        ("a.c", " * Who has it?\n"),
        ("a.py", "# What is missing\n"),
    ],
)
def test_a_comment_that_begins_with_a_clause_is_reported(
    tmp_path: Path, name: str, text: str
) -> None:
    status, output = check(tmp_path / name, text)
    assert status == (0 if "?" in text else 1), output


def test_a_question_may_end_on_a_later_line(tmp_path: Path) -> None:
    assert check(tmp_path / "a.rs", "// What happens if a child\n// exits? It is reaped.\n")[0] == 0
    assert check(tmp_path / "a.rs", "// What a child\n// has. Is it reaped?\n")[0] == 1


def test_long_lines_of_documents_are_reported_outside_code(tmp_path: Path) -> None:
    long = "x" * 121
    assert check(tmp_path / "a.md", long + "\n") == (
        1,
        f"{tmp_path}/a.md:1: 121 columns, 120 at most\n",
    )
    assert check(tmp_path / "a.md", f"```\n{long}\n```\n")[0] == 0
    assert check(tmp_path / "a.md", f"[{long}](https://example.org)\n")[0] == 0
    assert check(tmp_path / "a.rs", long)[0] == 0
