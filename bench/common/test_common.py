# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of what the benchmarks share: `python -m pytest bench/common`."""

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median_low

import pytest

from common import bars, floor, presets, reference, worker, workspace
from common.definitions import Method, Terms, load
from common.errors import BenchError
from common.heartbeat import Heartbeat
from common.measure import fleets, random_order
from common.pipe import Worker
from common.session import Setting, make_setting
from common.stats import (
    estimate,
    pooled_ratio,
    quantile,
    round_order,
    round_ratios,
    tail_ratio,
)
from common.worker import check_leftovers

pytestmark = pytest.mark.timeout(300)
CALLS = presets.load()
BENCH = Path(__file__).resolve().parents[1]
FILES = [BENCH / suite / "definitions.toml" for suite in ("job", "warm")]
METHODS = [
    Method("subprocess", "", "subprocess.run"),
    Method("threads", "", "subprocess.threads"),
    Method("asyncio", "", "create_subprocess_exec", watcher="pidfd"),
    Method("cold", "", "spawnfd.run"),
    Method("cold_async", "", "spawnfd.run_async"),
    Method("reserve", "", "spawnfd.run", mode="reserve"),
    Method("fork_async", "", "spawnfd.run_async", mode="fork"),
    Method("floor", "", floor.FLOOR),
    Method("subreaper_floor", "", floor.SUBREAPER_FLOOR),
    Method("thread_floor", "", floor.THREAD_FLOOR),
]


@pytest.fixture(scope="module")
def tools() -> dict[str, str]:
    return presets.resolve_tools(CALLS, {})


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory, tools: dict[str, str]) -> Setting:
    floors = (floor.FLOOR, floor.SUBREAPER_FLOOR, floor.THREAD_FLOOR)
    return make_setting(tmp_path_factory.mktemp("common"), CALLS, tools, floors=floors)


# ---- definitions, presets and workspace ----


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('\nunder = "', '\nunder = "x', "no cell measures both"),
        ('\nmethods = ["', '\nmethods = ["x', "names unknown"),
        ('\nparent = "', '\nparent = "x', "names unknown"),
    ],
)
def test_undefined_names_are_refused(
    file: Path, old: str, new: str, error: str, tmp_path: Path
) -> None:
    load(file)
    broken = tmp_path / "definitions.toml"
    broken.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(BenchError, match=error):
        load(broken)


def test_tools_are_elf_programs(tools: dict[str, str], tmp_path: Path) -> None:
    assert all(presets.is_elf(Path(path)) for path in tools.values())
    shim = tmp_path / "python3"
    shim.write_text("#!/bin/sh\nexec python3\n")
    shim.chmod(0o755)
    found = presets.find_tool(["python3"], [str(tmp_path), "/usr/bin:/usr/local/bin"])
    assert found is not None
    assert found != shim


def test_argv_placeholders_become_tool_paths() -> None:
    found = presets.resolve_argv(("bash", "-c", "{rg} x"), {"bash": "/bin/bash", "rg": "/bin/rg"})
    assert found == ("/bin/bash", "-c", "/bin/rg x")
    assert presets.resolve_argv(("{venv}",), {"venv": "/v/python"}) == ("/v/python",)


def test_workspace_matches_its_pins_under_any_umask(tmp_path: Path, tools: dict[str, str]) -> None:
    found = []
    before = os.umask(0o022)
    try:
        for number, mask in enumerate((0o022, 0o077)):
            os.umask(mask)
            found.append(workspace.generate(tmp_path / f"w{number}", CALLS.workspace, tools["git"]))
    finally:
        os.umask(before)
    assert found[0] == found[1]
    workspace.check(found[0], CALLS.workspace)


def test_changed_workspace_is_refused(tmp_path: Path, tools: dict[str, str]) -> None:
    root = tmp_path / "w"
    workspace.generate(root, CALLS.workspace, tools["git"])
    (root / "samples" / "notes.md").write_text("other\n")
    with pytest.raises(BenchError, match="differs"):
        workspace.check(workspace.describe(root, tools["git"]), CALLS.workspace)


# ---- order and arithmetic ----


def test_round_has_each_pair_once_grouped_by_call() -> None:
    order = random_order(["a", "b"], ["x", "y", "z"], random.Random(1))
    assert sorted(order) == [(name, method) for name in "ab" for method in "xyz"]
    assert len({name for name, _ in order[:3]}) == 1
    orders = {
        tuple(random_order(["a"], ["x", "y", "z"], random.Random(seed))) for seed in range(50)
    }
    assert len(orders) == 6


def test_every_method_runs_in_every_position_of_a_round() -> None:
    names = ["a", "b", "c"]
    orders = [round_order(names, number) for number in range(6)]
    for place in range(3):
        assert sorted(order[place] for order in orders) == ["a", "a", "b", "b", "c", "c"]


def test_estimate_is_a_median_with_an_interval_around_it() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.value == 3.0
    assert 1.0 <= found.low <= 3.0 <= found.high <= 100.0
    assert found == estimate([1.0, 2.0, 3.0, 4.0, 100.0])
    assert estimate([2.0]).low == estimate([2.0]).high == 2.0


def test_round_ratios_compare_the_same_slice() -> None:
    assert round_ratios([1.0, 2.0], [2.0, 3.0]) == [2.0, 1.5]
    with pytest.raises(ValueError, match="rounds"):
        round_ratios([1.0], [1.0, 2.0])


def test_quantile_is_a_sample() -> None:
    samples = list(range(1, 1001))
    assert quantile(samples, 0.999) == 999
    assert quantile(samples, 0.5) == 500
    assert quantile([7], 0.999) == 7


def test_tail_ratio_uses_all_samples() -> None:
    chooser = random.Random(3)
    over = [[chooser.expovariate(0.1) for _ in range(400 + block)] for block in range(8)]
    under = [[chooser.expovariate(1.0) for _ in range(300)] for _ in range(8)]
    found = tail_ratio(over, under, 0.999)
    plain = quantile([*chain(*over)], 0.999) / quantile([*chain(*under)], 0.999)
    assert found.value == plain
    assert found.low <= found.value <= found.high
    with pytest.raises(ValueError, match="blocks"):
        tail_ratio(over, under[1:], 0.999)


def test_drift_of_both_series_does_not_widen_the_interval() -> None:
    under = [[float(number)] * 5 for number in range(1, 21)]
    over = [[2 * sample for sample in block] for block in under]
    found = pooled_ratio(over, under, median_low)
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


# ---- bars ----


@pytest.mark.parametrize(
    ("low", "value", "high", "status"),
    [(1.2, 1.3, 1.4, "met"), (1.1, 1.2, 1.4, "met narrowly"), (1.0, 1.1, 1.2, "missed")],
)
def test_bar_status(low: float, value: float, high: float, status: str) -> None:
    bar = {"id": "x", "op": ">=", "bar": 1.15, "text": ""}
    ratio = {"id": "x", "value": value, "low": low, "high": high}
    assert bars.judge([bar], [ratio])[0].status == status
    assert bars.judge([bar], [])[0].status == "not measured"


def test_unknown_part_of_a_ratio_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "bars.toml"
    file.write_text('[[bar]]\nid = "x"\nop = ">="\nbar = 1.0\ntext = "x"\njudged = "middle"\n')
    with pytest.raises(BenchError, match="judged = 'middle'"):
        bars.load(file)


# ---- heartbeat ----


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_heartbeat_sees_every_tick_of_a_stall(loop_name: str) -> None:
    if loop_name == "uvloop":
        loop = pytest.importorskip("uvloop").new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    heart = Heartbeat(loop, 1_000)

    async def stall() -> None:
        heart.start()
        await asyncio.sleep(0.005)
        time.sleep(0.05)
        await asyncio.sleep(0.005)
        heart.stop()

    try:
        loop.run_until_complete(stall())
        assert max(heart.late_us) >= 45_000
        assert sum(late >= 25_000 for late in heart.late_us) >= 20
        assert min(heart.late_us) >= 0
    finally:
        heart.close()
        loop.close()


# ---- workers ----


def test_difference_names_the_stream_and_the_place() -> None:
    right = reference.Reference("cat", ("/bin/cat",), 0, b"abcdef", b"")
    assert right.difference(0, b"abcdef", b"") is None
    assert "exit code 1" in str(right.difference(1, b"abcdef", b""))
    assert "byte 3" in str(right.difference(0, b"abcXef", b""))
    assert "stderr" in str(right.difference(0, b"abcdef", b"!"))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_wrong_answer_ends_the_run(setting: Setting, method: Method) -> None:
    wrong = replace(setting.references["cat"], stdout=b"something else")
    broken = replace(setting, references={"cat": wrong})
    commands = {"m": broken.command("common", "wrong", Terms(method, 1))}
    with (
        pytest.raises(BenchError, match=r"preset cat, .*stdout differs"),
        fleets("common", "wrong", commands) as running,
    ):
        running["m"].run(["cat"] * 2)


def test_several_workers_share_the_calls_of_a_block(setting: Setting) -> None:
    terms = Terms(Method("asyncio", "", "create_subprocess_exec"), 2)
    commands = {"m": setting.command("common", "shared", terms)}
    with fleets("common", "shared", commands, workers=3) as running:
        block = running["m"].run(["true", "cat"] * 5)
        assert (block.calls, len(block.ns)) == (10, 10)
        assert 0 < max(block.ns) <= block.seconds * 1e9


def test_untimed_calls_precede_the_timed_ones(setting: Setting) -> None:
    terms = Terms(Method("cold", "", "spawnfd.run_async"), 2, untimed=4)
    commands = {"m": setting.command("common", "untimed", terms)}
    with fleets("common", "untimed", commands) as running:
        block = running["m"].run(["true"] * 3)
    assert (block.calls, len(block.ns), block.started.total()) == (3, 3, 3)


def test_calls_arrive_at_a_rate(setting: Setting) -> None:
    terms = Terms(Method("cold", "", "spawnfd.run_async"), 1)
    commands = {"m": setting.command("common", "rate", terms)}
    with fleets("common", "rate", commands) as running:
        block = running["m"].run(["true"] * 20, rate=1000.0)
    assert (block.calls, len(block.ns)) == (20, 20)


def test_leftover_children_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that end soon, such as a guard process, are no error."""
    with subprocess.Popen(["sleep", "0.2"]) as ending:
        reaper = threading.Thread(target=ending.wait)
        reaper.start()
        check_leftovers("here")
        reaper.join()
    monkeypatch.setattr(worker, "LINGER", 0.1)
    with subprocess.Popen(["sleep", "1000"]) as staying:
        try:
            with pytest.raises(BenchError, match=f"leftover children: .*{staying.pid}"):
                check_leftovers("here")
        finally:
            staying.kill()


def test_worker_that_dies_is_an_error() -> None:
    dying = Worker("w", [sys.executable, "-c", "pass"], {})
    with pytest.raises(BenchError, match="ended early"):
        dying.receive("hello")
    dying.abandon()
