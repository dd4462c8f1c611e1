# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Python examples of the pages run, and print the output that the pages show."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import spawnfd as sf
from patience import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[3]
READMES = (ROOT / "README.md", ROOT / "bindings/python/README.md")
# Other tests have the examples of three guides: tests/suite/posix (c), bindings/node/test.
OTHERS = ("c", "node", "replace-child-process")
GUIDES = sorted(page for page in (ROOT / "docs/guides").glob("*.md") if page.stem not in OTHERS)
# A ```python block, and the ```text block that may follow it: its standard output.
EXAMPLE = re.compile(r"(?sm)^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?")
PAGES = [
    page
    for page in (*READMES, *sorted((ROOT / "docs").glob("*.md")), *GUIDES)
    if EXAMPLE.search(page.read_text())
]


def examples() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        for number, (code, output) in enumerate(EXAMPLE.findall(page.read_text()), 1):
            found.append(pytest.param(code, output, id=f"{page.stem}-{number}"))
    return found


@pytest.mark.parametrize(("code", "output"), examples())
def test_example_runs(code: str, output: str, tmp_path: Path) -> None:
    if '"bwrap"' in code and shutil.which("bwrap") is None:
        pytest.skip("no bwrap")
    result = sf.run([sys.executable, "-c", code], cwd=tmp_path, timeout=TIMEOUT_S)
    assert (result.code, result.stderr) == (0, b"")
    if output:
        assert result.text == output


def test_each_guide_has_examples() -> None:
    others = {"README", "sessions", "trees", "warm", "warm-reference"}
    assert {page.stem for page in PAGES} == {page.stem for page in GUIDES} | others


def test_rust_example_of_the_readme_is_a_program() -> None:
    """Each line of code in the README is in the example `quick`, which `make test` compiles."""
    block = re.search(r"(?sm)^```rust\n(.*?)^```", (ROOT / "README.md").read_text())
    assert block is not None
    lines = [line.partition(" // ")[0] for line in block[1].splitlines()]
    program = (ROOT / "crates/spawnfd/examples/quick.rs").read_text()
    missing = [line for line in lines if line not in program and not line.startswith("//")]
    assert missing == []
