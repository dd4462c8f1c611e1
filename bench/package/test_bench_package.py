# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/package`. They measure no times."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from common import bars
from common.errors import BenchError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("run", Path(__file__).with_name("run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ratio_is_above_one_if_spawnfd_is_slower(bench: Any) -> None:
    times = {"subprocess": 20.0, "spawnfd": 30.0, "asyncio": 50.0, "nothing": 10.0}
    ratios = bench.ratios_of({name: [time] * 3 for name, time in times.items()})
    assert [(ratio["id"], ratio["value"]) for ratio in ratios] == [
        ("package.import", 1.5),
        ("package.import.asyncio", 2.5),
        ("package.import.nothing", 0.5),
    ]
    bar = next(bar for bar in bars.load() if bar["id"] == "package.import")
    assert bars.judge([bar], ratios)[0].status == "met"


def test_wheel_has_a_size_in_mib(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="0 wheels"):
        bench.wheel_size(tmp_path)
    with (tmp_path / "spawnfd-1-cp310-abi3-linux_x86_64.whl").open("wb") as file:
        file.truncate(5 << 20)
    ratio = bench.wheel_size(tmp_path)
    assert (ratio["id"], ratio["value"]) == ("package.wheel_mib", 5.0)
    bar = next(bar for bar in bars.load() if bar["id"] == "package.wheel_mib")
    assert bars.judge([bar], [ratio])[0].status == "missed"


def test_program_that_fails_is_an_error(bench: Any) -> None:
    with pytest.raises(BenchError, match="ended with status"):
        bench.run("raise SystemExit(3)", {"PATH": os.environ["PATH"]})
