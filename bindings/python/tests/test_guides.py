# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Python examples of the guides run, and print the output that the guides show."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import spawnfd as sf
from patience import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *(ROOT / page for page in ("README.md", "docs/sessions.md", "docs/warm.md")),
    # tests/suite/posix compiles and runs the examples of the C guide.
    *sorted(page for page in (ROOT / "docs/guides").glob("*.md") if page.stem != "c"),
]
# A ```python block, and the ```text block that may follow it: its standard output.
EXAMPLE = re.compile(r"(?sm)^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_examples(page: Path) -> None:
    assert EXAMPLE.search(page.read_text())
