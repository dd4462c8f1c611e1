# SPDX-License-Identifier: MIT OR Apache-2.0
"""Changes of the owner: each makes the next start cold, or is taken over by a warm start."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm_cases import CASES, Case
from warm_support import FOR_ANY, Way, each_way, outcome_of


@each_way
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_change_is_taken_over_or_starts_cold(case: Case, way: Way, tmp_path: Path) -> None:
    found = outcome_of(case, way, tmp_path)
    by_exec = way in FOR_ANY and case.cold in ("variable", "memory limits")
    if case.cold is None or by_exec:
        assert found["after"] == way
    else:
        assert found["after"].startswith("cold: ")
        assert case.cold in found["after"]
    if case.thread:
        assert found["elsewhere"] == way
