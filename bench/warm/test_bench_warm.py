# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/warm`."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common import bars
from common.definitions import Call, load
from common.errors import BenchError
from common.flags import make_tasks
from common.measure import Block, Measured, Task, fleets
from common.session import Setting
from warmbench import cli, results
from warmbench.memory import MemoryUse

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).resolve().parent
FOUND = load(cli.DEFINITIONS_FILE)


def _task(cell_name: str) -> Task:
    cell = next(cell for cell in FOUND.cells if cell.name == cell_name)
    methods = tuple(FOUND.methods[name] for name in cell.methods)
    return Task(cell=cell, calls=("true",), methods=methods, blocks=2, per_block=3)


def _blocks(us: float, started: str | None) -> list[Block]:
    counted: Counter[str] = Counter({started: 3} if started else {})
    ns = [int(us * 1e3)] * 3
    return [Block(3, 3 * us / 1e6, us / 1e6, ns, started=counted) for _ in range(4)]


def _measured(cell: str, us: dict[str, float], started: dict[str, str]) -> Measured:
    task = _task(cell)
    blocks = {("true", name): _blocks(time, started.get(name)) for name, time in us.items()}
    return Measured(task, blocks)


# ---- data ----


def test_every_bar_has_a_measured_ratio() -> None:
    calls = {cell.name: cell.calls for cell in FOUND.cells}
    ids = {rule.id.format(call=name) for rule in FOUND.rules for name in calls[rule.cell]}
    barred = {bar["id"]: bar["bar"] for bar in bars.load() if bar["id"].startswith("warm.")}
    throughput = next(cell for cell in FOUND.cells if cell.name == "throughput")
    never_slower = {
        f"warm.throughput.{call}.{mode}": 0.97
        for call in throughput.calls
        for mode in ("reserve", "auto")
    }
    assert barred == never_slower | {
        "warm.latency.bash": 1.6,
        "warm.latency.sed": 1.6,
        "warm.latency.git-status": 1.25,
        "warm.latency.python": 6.0,
        "warm.latency.node": 7.8,
        "warm.entry.pytest": 3.0,
        "warm.entry.mypy": 3.0,
        "warm.entry.black": 3.0,
        "warm.throughput.bash": 1.15,
        "warm.throughput.python": 5.0,
        "warm.throughput.node": 6.3,
        "warm.p99.load30.true": 0.95,
        "warm.p99.load30.bash": 0.95,
        "warm.p99.load30.git-status": 0.95,
        "warm.p99.load30.rg": 0.95,
        "warm.p99.load30.python": 0.95,
    }
    assert barred.keys() <= ids


def test_no_meaning_of_a_bar_says_no_bar() -> None:
    barred = {bar["id"] for bar in bars.load()}
    for rule in FOUND.rules:
        cell = next(cell for cell in FOUND.cells if cell.name == rule.cell)
        of_bars = {rule.id.format(call=name) for name in cell.calls} & barred
        assert rule.meaning.endswith("; no bar") == (not of_bars), rule.id


def test_unknown_options_are_refused() -> None:
    with pytest.raises(BenchError, match="nonsense"):
        make_tasks(cli.parse(["--cell", "nonsense"]), FOUND)
    assert make_tasks(cli.parse(["--cell", "memory"]), FOUND, others=("memory",)) == []


# ---- arithmetic ----


def test_ratios_divide_the_right_methods() -> None:
    us = {"subprocess": 900.0, "cold": 600.0, "reserve": 200.0, "fork": 300.0}
    measured = _measured("latency", us, {"cold": "clone", "reserve": "reserve", "fork": "fork"})
    ratios = {ratio["id"]: ratio for ratio in results.ratios_of(measured, FOUND.rules)}
    assert ratios["warm.latency.true"]["value"] == 3.0
    assert ratios["warm.latency.true.fork"]["value"] == 2.0
    assert ratios["warm.latency.true.platform"]["value"] == 4.5
    assert ratios["warm.p99.true"]["value"] == 3.0
    assert ratios["warm.cpu.true"]["value"] == pytest.approx(1 / 3, abs=1e-4)
    assert ratios["warm.latency.true"]["warm_share"] == 1.0
    rates = _measured(
        "throughput",
        {"cold_async": 600.0, "fork_async": 200.0},
        {"cold_async": "clone", "fork_async": "fork"},
    )
    found = {ratio["id"]: ratio["value"] for ratio in results.ratios_of(rates, FOUND.rules)}
    assert found == {"warm.throughput.true": 3.0}


def test_method_that_was_never_warm_has_no_ratio() -> None:
    us = {"cold": 600.0, "reserve": 200.0, "fork": 300.0}
    measured = _measured("latency", us, {"cold": "clone", "reserve": "cold: off", "fork": "fork"})
    ids = {ratio["id"] for ratio in results.ratios_of(measured, FOUND.rules)}
    assert "warm.latency.true.fork" in ids
    assert "warm.latency.true" not in ids
    assert results.cold_ones(measured, FOUND.rules) == {
        "latency, true, reserve": "never warm: {'cold: off': 12}"
    }


def test_cost_of_a_warm_is_measured_even_if_all_starts_are_cold() -> None:
    us = {"cold_async": 600.0, "reserve_async": 800.0, "fork_async": 300.0}
    cold = {"cold_async": "clone", "reserve_async": "cold: empty", "fork_async": "cold: empty"}
    measured = _measured("throughput", us, cold)
    found = results.ratios_of(measured, FOUND.rules)
    assert {ratio["id"]: (ratio["value"], ratio["warm_share"]) for ratio in found} == {
        "warm.throughput.true.reserve": (0.75, 0.0)
    }
    assert results.cold_ones(measured, FOUND.rules).keys() == {"throughput, true, fork_async"}


def test_memory_counts_private_pages() -> None:
    kib = [{"private": size, "pss": 9_999, "rss": 99_999} for size in (1024, 2048, 4096)]
    assert results.memory_of(MemoryUse("true", "reserve", kib)) | {"meaning": ""} == {
        "id": "warm.private_mib.true",
        "value": 2.0,
        "low": 1.0,
        "high": 4.0,
        "meaning": "",
        "rule": "warm.private_mib.{call}",
        "call": "true",
        "processes": 3,
    }
    assert results.memory_of(MemoryUse("true", "fork", kib))["id"] == "warm.private_mib.true.fork"


# ---- runs ----


def test_sandboxed_call_is_parked_and_checked(tmp_path: Path) -> None:
    call = Call("x", ("/bin/echo", "right"), prefix=("/usr/bin/env", "A=1"))
    env = {"PATH": "/usr/bin:/bin"}
    references = {"x": cli.make_reference(call, tmp_path, env)}
    assert references["x"].argv == ("/usr/bin/env", "A=1", "/bin/echo", "right")
    setting = Setting(references=references, env=env, cwd=tmp_path, scratch=tmp_path)
    task = replace(_task("latency"), calls=("x",), methods=(FOUND.methods["reserve"],))
    with fleets("warm", "test", cli.commands(setting, FOUND, {"x": call}, task)) as running:
        assert running["reserve"].run(["x"] * 2).started == {"reserve": 2}


def test_call_that_writes_to_stderr_is_no_reference(tmp_path: Path) -> None:
    call = Call("x", ("/bin/sh", "-c", "echo oh >&2"))
    with pytest.raises(BenchError, match="cannot be a reference"):
        cli.make_reference(call, tmp_path, {})


@pytest.mark.timeout(600)
def test_small_run_end_to_end(
    run_bench: Callable[..., tuple[dict[str, Any], str]], tmp_path: Path
) -> None:
    only = [f"--call={name}" for name in ("true", "sed", "ansible")]
    found, _ = run_bench("warm", *only, "--blocks=1", "--per-block=2")
    ids = {ratio["id"] for ratio in found["ratios"]}
    wanted = {"warm.latency.true", "warm.latency.sed", "warm.throughput.true"}
    wanted |= {"warm.entry.ansible", "warm.p99.load30.true"}
    assert wanted | {"warm.private_mib.true"} <= ids
    for row in found["rows"]:
        if row["cell"] == "memory":
            assert all(0 < kib["private"] <= kib["rss"] for kib in row["kib"])
        elif row["method"].startswith("fork"):
            assert row["started"]["fork"] > 0
    page = subprocess.run(
        [
            sys.executable,
            str(HERE.parent / "agent" / "run.py"),
            "--report-only",
            f"--out={tmp_path}",
        ],
        capture_output=True,
        text=True,
    )
    assert page.returncode == 0, page.stderr
    html = (tmp_path / "agent.html").read_text()
    assert "Warm starts" in html
    assert "warm.latency.sed" in html
