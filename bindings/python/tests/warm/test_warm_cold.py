# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every reason to go cold, made to happen; and what is none, and has to be taken over."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm_cases import CASES, Case
from warm_support import ANY, Way, each_way, outcome_of


@each_way
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_change(case: Case, way: Way, tmp_path: Path) -> None:
    found = outcome_of(case, way, tmp_path)
    by_exec = way in ANY and case.cold in ("variable", "memory limits")
    if case.cold is None or by_exec:
        assert found["after"] == way
    else:
        assert found["after"].startswith("cold: ")
        assert case.cold in found["after"]
    if case.thread:
        assert found["elsewhere"] == way
