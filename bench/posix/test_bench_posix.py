# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/posix`. They measure no times."""

import os
import shutil
from pathlib import Path

import pytest

from common import bars
from common.command import output
from common.errors import BenchError
from common.samples import Samples, ratio_rows
from posixbench import cli

pytestmark = pytest.mark.timeout(120)


def _cells(methods: tuple[str, ...]) -> Samples:
    time = {"glibc": 400.0, "glibc241": 300.0, "linked": 200.0, "preload": 100.0}
    return {
        (parent.name, scenario, method): {part: [time[method]] * 3 for part in ("first", "whole")}
        for parent in cli.PARENTS
        for scenario in parent.scenarios
        for method in methods
    }


def test_every_bar_has_a_measured_ratio() -> None:
    barred = {bar["id"] for bar in bars.load() if bar["id"].startswith("posix.")}
    assert "posix.make.preload" in barred
    assert barred <= {cli.MAKE, *(ratio.id for ratio in cli.RATIOS)}


@pytest.mark.parametrize(("low", "status"), [(0.98, "met"), (0.97, "met"), (0.96, "missed")])
def test_make_is_judged_by_the_lower_end_of_the_interval(low: float, status: str) -> None:
    bar = next(bar for bar in bars.load() if bar["id"] == cli.MAKE)
    ratio = {"id": cli.MAKE, "value": 0.99, "low": low, "high": 1.01}
    assert bars.judge([bar], [ratio])[0].status == status


def test_ratios_name_measured_scenarios() -> None:
    measured = {(parent.name, scenario) for parent in cli.PARENTS for scenario in parent.scenarios}
    assert {(ratio.parent, ratio.scenario) for ratio in cli.RATIOS} == measured
    assert len({ratio.id for ratio in cli.RATIOS}) == len(cli.RATIOS)


def test_ratio_is_their_time_over_ours() -> None:
    rows = ratio_rows(cli.RATIOS, _cells(("glibc", "glibc241", "linked", "preload")))
    found = {row["id"]: row["value"] for row in rows}
    assert found["posix.first_insn.glibc_vs_ours"] == 2.0
    assert found["posix.first_insn.glibc_vs_preload"] == 4.0
    assert found["posix.fds10000.glibc241_vs_ours"] == 1.5
    made = {"plain": [2.0] * 3, "preload": [1.0] * 3}
    assert cli.make_ratio(made)["value"] == 2.0


def test_missing_glibc_leaves_out_its_ratios() -> None:
    rows = ratio_rows(cli.RATIOS, _cells(("glibc", "linked", "preload")))
    assert rows
    assert not any("glibc241" in row["id"] for row in rows)


def test_worker_measures_each_scenario(tmp_path: Path) -> None:
    program, plain = tmp_path / "program", tmp_path / "worker"
    output("cc", "-static", "-nostdlib", "-o", program, cli.FIRST_INSTRUCTION)
    output("cc", "-O2", "-Wall", "-Werror", "-pthread", "-o", plain, cli.HERE / "worker.c")
    state = ("touch=1", "fds=20", "threads=1")
    with cli.PosixWorker([plain, program], cli.Parent("test", (), state), None) as worker:
        for scenario in ("dup2", "closefrom", "above"):
            samples = worker.sample(scenario, 2)
            assert [len(sample) for sample in samples] == [2, 2]
            assert all(0 < first < whole for first, whole in samples)
        assert len(worker.sample("parallel", 1)) == 1
    with (
        pytest.raises(BenchError, match="exit code 1"),
        cli.PosixWorker([plain, program], cli.Parent("test", (), state), None) as worker,
    ):
        worker.sample("unknown", 1)


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_changed_output_of_make_is_an_error(tmp_path: Path) -> None:
    text = cli.MAKEFILE.replace("seq 1000", "seq 3")
    (tmp_path / "Makefile").write_text(text)
    (tmp_path / "input").write_text("input\n")
    with pytest.raises(OSError, match=r"out/4\.txt"):
        cli.make_seconds(tmp_path, None)
    assert sorted(os.listdir(tmp_path / "out")) == ["1.txt", "2.txt", "3.txt"]
