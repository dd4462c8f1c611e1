# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests scripts/check-tree.py: the names of files in documents and comments."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

CHECK = runpy.run_path(str(Path(__file__).resolve().parents[1] / "scripts" / "check-tree.py"))

SOURCE = """
pub(crate) fn start(self) {}
pub struct Start<'a> {
enum Outcome {
    Started(Child),
    Failed,
}
// absent, Absent
"""


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("crates/one/src", "crates/two/src"):
        Path(folder).mkdir(parents=True)
    Path("crates/one/src/a.rs").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("1. `crates/one/src/a.rs`: `Start::start` of `Start`.\n", None),
        ("1. `crates/one/src/a.rs`: answers `Started` or\n   `Failed`.\n", None),
        ("1. `crates/one/src/a.rs`: reads.\n\nThen `absent` runs.\n", None),
        ("1. `crates/one/src/a.rs`: a.\n\n## Two\n\n1. `crates/one/src/a.rs`: a.\n", None),
        ("1. `crates/one/src/b.rs`: reads.\n", "there is no crates/one/src/b.rs"),
        (
            "1. `crates/one/src/a.rs`: a\n   `absent`.\n",
            "crates/one/src/a.rs does not define absent",
        ),
        ("1. `crates/one/src/a.rs`: `Absent`.\n", "crates/one/src/a.rs does not define Absent"),
        (
            "1. `crates/one/src/a.rs`: a.\n2. `crates/one/src/a.rs`: b.\n",
            "crates/one/src/a.rs is listed twice",
        ),
    ],
)
def test_entries_of_a_list_of_files(entries: str, problem: str | None) -> None:
    found = list(CHECK["problems_of_entries"](f"# Title\n\n## One\n\n{entries}"))
    assert found == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("path", "text", "missing"),
    [
        ("a.md", "`src/a.rs`, `a.rs`, `one/src/`, `tool.py`, b.rs\n", []),
        ("a.md", "`b.rs` and `src/a.py`\n`three/`\n", ["b.rs", "src/a.py", "three/"]),
        ("crates/one/src/c.rs", "// `a.rs`, `c.rs`, `b.py`\n/// `two/src/d.rs`\n", []),
        ("crates/one/src/c.rs", "    // `d.rs`\n//! `src/e.rs`\n", ["d.rs", "src/e.rs"]),
        ("crates/one/src/c.rs", 'let text = "`d.rs`";\n', []),
    ],
)
def test_names_of_files(path: str, text: str, missing: list[str]) -> None:
    Path("crates/two/src/d.rs").touch()
    Path(path).write_text(text)
    tracked = ["crates/one/src/a.rs", "crates/two/src/d.rs", path]
    found = list(CHECK["problems_of_names"](tracked))
    assert found == [f"{path}: there is no {name}" for name in missing]
