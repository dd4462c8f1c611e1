# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of bench-launch and bench-snapshot. They run the benchmarks, and assert no times."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common import bars
from common.errors import BenchError
from nativebench import cli, results
from nativebench.launch import SUITES
from nativebench.worker import Key, Native, load, program_path

pytestmark = pytest.mark.timeout(300)
FOUND = load()


def _keys() -> set[Key]:
    return {key for ratio in FOUND["ratio"] for key in (ratio.over, ratio.under)}


def test_every_bar_has_a_measured_ratio() -> None:
    barred = {bar["id"] for bar in bars.load() if bar["id"].startswith(("launch.", "snapshot."))}
    assert len(barred) == 13
    assert barred <= {ratio.id for ratio in FOUND["ratio"]}


def test_definitions_are_consistent() -> None:
    methods = {one["name"] for one in FOUND["method"]}
    parents = {one["name"] for one in FOUND["parent"]}
    for key in _keys():
        if key.suite == "snapshot":
            assert (key.program, key.parent) == ("library", "none")
        else:
            assert key.suite in SUITES
            assert (key.parent in parents, key.method in methods) == (True, True), key
            assert program_path(FOUND, key.program, Path("/")).startswith("/")
    assert {FOUND["lifecycle"]["parent"], FOUND["parallel"]["parent"]} <= parents
    assert set(FOUND["parallel"]["methods"]) <= methods


def test_ratio_needs_both_series() -> None:
    over = Key("first_insn", "ours", parent="small")
    under = Key("first_insn", "vfork", parent="small")
    ratios, missing = results.ratios_of("launch", FOUND, {over: [[3.0, 4.0]], under: [[2.0, 2.0]]})
    assert [(ratio["id"], ratio["value"]) for ratio in ratios] == [
        ("launch.first_insn.ours_vs_vfork", 1.5)
    ]
    assert "launch.first_insn.ours_vs_same_calls" in missing


def test_wrong_restriction_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.parse(["launch", "--program=/x", "--only=color=red"])
    assert "must be suite=NAME" in capsys.readouterr().err


def test_failure_of_a_worker_is_an_error(bench_launch: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match="worker small under filter none: unknown method nonsense"),
        Native(FOUND, bench_launch, tmp_path, "small", "none", []) as worker,
    ):
        worker.rate("/bin/true", "nonsense", 1, 1)


RunBench = Callable[..., tuple[dict[str, Any], str]]


def _count(document: dict[str, Any], suite: str, method: str) -> int:
    rows = (row for row in document["rows"] if (row["suite"], row["method"]) == (suite, method))
    return sum(row["n"] for row in rows)


def test_launch_runs_under_the_docker_filter(run_bench: RunBench, bench_launch: Path) -> None:
    only = ["--only=filter=docker", "--only=parent=small"]
    run = ("native", "launch", f"--program={bench_launch}", "--quick", *only)
    document, output = run_bench(*run, name="launch")
    for method in ("vfork", "posix_spawn", "fork_exec", "std"):
        # The suite first_insn runs with and without a PATH search. The suite lifecycle runs three
        # programs.
        assert _count(document, "first_insn", method) == 400, method
        assert _count(document, "lifecycle", method) == 300, method
    assert _count(document, "parallel", "vfork") == 10
    assert "missing: launch.first_insn.ours_vs_vfork" in output


def test_busy_threads_run_in_the_parent_and_in_another_process(
    run_bench: RunBench, bench_launch: Path
) -> None:
    only = ("suite=first_insn", "filter=none", "parent=threads64", "parent=outside64")
    run = ("native", "launch", f"--program={bench_launch}", "--quick")
    document, _ = run_bench(*run, *(f"--only={one}" for one in only), name="launch")
    assert "launch.check.vfork_threads64_vs_small" in {ratio["id"] for ratio in document["ratios"]}
    shares = [row["median"] for row in document["rows"] if row["suite"] == "busy_share"]
    # The share depends on the machine's load, so the test only requires that the threads ran.
    assert len(shares) == 2
    assert min(shares) > 0.1


def test_snapshot_measures_each_method(
    run_bench: RunBench, bench_launch: Path, tmp_path: Path
) -> None:
    run = ("native", "snapshot", f"--program={bench_launch}", "--quick")
    document, _ = run_bench(*run, name="snapshot")
    methods = ("open", "sendfile", "cold", "hit", "hit_by_path")
    assert [_count(document, "snapshot", method) for method in methods] == [100] * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "snapshot.json"]
