# SPDX-License-Identifier: MIT OR Apache-2.0
"""Real command lines have the same outcome cold and warm: output, exit code and files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import spawnfd as sf
from patience import TIMEOUT_S
from warm_lines import ENVIRONMENT, LINES, Line
from warm_support import (
    FOR_ANY,
    Way,
    contents,
    each_way,
    make_scratch,
    parked,
    require,
    retry_if_slow,
)

KEEP = (64 << 20, 0)


class Outcome(NamedTuple):
    """All observable results of a run."""

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    left: dict[str, tuple[str, int, bytes]]


class Run(NamedTuple):
    """The outcome of a run, and how its program was started."""

    outcome: Outcome
    started: str


def run(line: Line, root: Path, start: Callable[..., sf.Result]) -> Run:
    """Runs the line in a new scratch directory at `root`."""
    make_scratch(root, line.files, line.repository)
    options: dict[str, Any] = {"input": line.stdin} if line.stdin is not None else {}
    ends: tuple[int, ...] = ()
    if line.closed:
        ends = os.pipe()
        os.close(ends[0])
        options["stdout"] = ends[1]
    try:
        result = start(
            list(line.argv),
            cwd=root,
            env={**ENVIRONMENT, "HOME": str(root), **line.env},
            timeout=TIMEOUT_S,
            keep=KEEP,
            **options,
        )
    finally:
        for end in ends[1:]:
            os.close(end)
    assert result.stop == "exited", result
    stdout = result.stdout
    if line.unordered:
        stdout = b"".join(sorted(stdout.splitlines(keepends=True)))
    outcome = Outcome(result.code, result.signal, stdout, result.stderr, contents(root))
    shutil.rmtree(root)
    return Run(outcome, result.started)


def test_table_of_lines_is_complete() -> None:
    ids = [line.id for line in LINES]
    assert len(ids) == len(set(ids))
    assert len(ids) >= 60
    wanted = (
        "rg grep sed awk cat head tail find stat ls git sh bash dash perl sort uniq wc cut tr "
        "xargs diff patch make tar gzip jq curl ssh gcc"
    )
    assert set(wanted.split()) == {line.argv[0] for line in LINES}


@each_way
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.id)
def test_line_has_the_same_outcome_warm(line: Line, way: Way, tmp_path: Path) -> None:
    require(line.argv[0], *line.needs, *(["git"] if line.repository else []))
    root = tmp_path / "scratch"
    cold = run(line, root, sf.run)
    with parked(line.argv[0], way, env=ENVIRONMENT | {"HOME": str(root)}) as warm:
        start = partial(sf.run, warm=warm)
        warm_run = retry_if_slow(warm, lambda: run(line, root, start))
    assert warm_run.outcome == cold.outcome
    assert warm_run.started == (f"cold: {line.cold}" if line.cold and way not in FOR_ANY else way)
