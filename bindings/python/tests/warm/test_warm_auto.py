# SPDX-License-Identifier: MIT OR Apache-2.0
"""Mode "auto", explanations of starts, and the counters that show what warm starts save."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import spawnfd as sf
from warm_support import FILL_S, each_mode, retry_if_slow

ECHO = ["sh", "-c", "echo x"]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    sf.uninstall()


def test_an_added_program_is_parked_at_once() -> None:
    with sf.Warm(mode="auto") as warm:
        warm.add("sh")
        assert warm.fill(FILL_S)
        assert retry_if_slow(warm, lambda: warm.run(ECHO)).started == "reserve"


def test_install_chooses_by_itself() -> None:
    sf.install(warm=True)
    before = sf.stats()
    assert subprocess.run(ECHO, capture_output=True, check=True).stdout == b"x\n"
    after = sf.stats()
    assert after.cold["not added"] == before.cold.get("not added", 0) + 1
    # Mode "auto" parks nothing after the first start, so the second one finds no process.
    assert subprocess.run(ECHO, capture_output=True, check=True).stdout == b"x\n"
    assert sf.stats().cold["empty"] == after.cold.get("empty", 0) + 1
    # Whether the machine has time to park a process now depends on other programs.
    for _ in range(20):
        assert subprocess.run(ECHO, capture_output=True, check=True).stdout == b"x\n"


def test_counters_show_what_is_saved() -> None:
    with sf.Warm() as warm:
        assert warm.stats().hit_rate is None
        assert warm.run(ECHO).started == "cold: not added"
        warm.add("sh", depth=1)
        assert warm.fill(FILL_S)
        cost = warm.stats().refill_time
        assert cost > 0
        assert warm.stats().time_saved == 0
        assert retry_if_slow(warm, lambda: warm.run(ECHO)).started == "reserve"
        stats = warm.stats()
        assert 0 < stats.time_saved <= stats.refill_time
        assert stats.hit_rate is not None
        assert 0 < stats.hit_rate < 1


@each_mode
def test_an_explanation_is_that_of_the_next_start(mode: Any) -> None:
    with sf.Warm(mode=mode) as warm:
        unknown = warm.explain(ECHO)
        assert unknown.started == "cold: not added"
        assert unknown.saves == 0
        assert unknown.meaning
        assert unknown.remedy
        assert str(unknown) == f"{unknown.started}: {unknown.meaning} {unknown.remedy}"
        warm.add("sh", depth=1)
        assert warm.fill(FILL_S)
        before = warm.stats()
        found = warm.explain(ECHO)
        assert (found.started, found.meaning, found.remedy) == (mode, None, None)
        assert found.saves > 0
        assert warm.explain(ECHO, env={"LD_BIND_NOW": "1"}).started == "cold: variable"
        assert warm.stats() == before
        with pytest.raises(FileNotFoundError):
            warm.explain(["spawnfd-no-such-program"])
    with pytest.raises(ValueError, match="warm: the Warm is closed"):
        warm.explain(ECHO)


def test_wrong_arguments_are_refused() -> None:
    wrong: Any
    for wrong in ("Auto", -1, 1.5j, None):
        with pytest.raises((TypeError, ValueError), match="mode"):
            sf.Warm(mode=wrong)
    with pytest.raises(TypeError, match="trusted"):
        sf.Warm(trusted=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="warm: "):
        sf.install(warm=1)  # type: ignore[arg-type]
    with sf.Warm() as warm, pytest.raises(ValueError, match="argv: must not be empty"):
        warm.explain([])
