# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/warm`."""

import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from common import bars, presets, worker
from common.errors import BenchError
from common.pipe import Worker
from common.session import Setting
from common.worker import check_leftovers
from warmbench import cli, definitions, measure, results
from warmbench.definitions import Call
from warmbench.measure import Block, Measured, MemoryUse, Task

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).resolve().parent
FOUND = definitions.load()


def _task(cell_name: str, calls: tuple[str, ...] = ("true",)) -> Task:
    cell = next(cell for cell in FOUND.cells if cell.name == cell_name)
    return Task(
        cell=cell,
        calls=tuple(FOUND.calls[name] for name in calls),
        methods=tuple(FOUND.methods[name] for name in cell.methods),
        blocks=2,
        per_block=3,
    )


def _blocks(us: float, started: str | None) -> list[Block]:
    counted: Counter[str] = Counter({started: 3} if started else {})
    ns = [int(us * 1e3)] * 3
    return [Block(ns, 3 * us / 1e6, us / 1e6, counted) for _ in range(4)]


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


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nonsense"):
        cli.make_tasks(cli.parse(["--cell", "nonsense"]), FOUND, FOUND.calls)
    broken = tmp_path / "definitions.toml"
    text = definitions.DEFINITIONS_FILE.read_text()
    broken.write_text(text.replace('under = "reserve"', 'under = "theirs"'))
    with pytest.raises(BenchError, match="no cell measures both"):
        definitions.load(broken)


def test_argv_placeholders_become_tool_paths() -> None:
    found = presets.resolve_argv(("bash", "-c", "{rg} x"), {"bash": "/bin/bash", "rg": "/bin/rg"})
    assert found == ("/bin/bash", "-c", "/bin/rg x")
    assert presets.resolve_argv(("{venv}",), {"venv": "/v/python"}) == ("/v/python",)


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


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    env = {"PATH": "/usr/bin:/bin"}
    call = replace(FOUND.calls["true"], argv=("/bin/echo", "right"))
    return Setting(
        references={"true": cli.make_reference(call, tmp_path, env)},
        env=env,
        cwd=tmp_path,
        scratch=tmp_path,
    )


@pytest.mark.parametrize("method", ["subprocess", "cold", "reserve", "asyncio", "fork_async"])
def test_wrong_answer_ends_the_run(method: str, setting: Setting) -> None:
    wrong = replace(FOUND.calls["true"], argv=("/bin/echo", "wrong"))
    cell = next(cell for cell in FOUND.cells if cell.name == "latency")
    task = Task(cell, (wrong,), (FOUND.methods[method],), 1, 1)
    with (
        pytest.raises(BenchError, match=rf"call true, method {method}: stdout differs"),
        measure.workers(setting, task) as running,
    ):
        measure.run_block(running[method], "true", 1)


def test_call_that_writes_to_stderr_is_no_reference(tmp_path: Path) -> None:
    call = Call("x", ("/bin/sh", "-c", "echo oh >&2"))
    with pytest.raises(BenchError, match="cannot be a reference"):
        cli.make_reference(call, tmp_path, {})


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
    worker = Worker("w", [sys.executable, "-c", "pass"], {})
    with pytest.raises(BenchError, match="ended early"):
        worker.receive("hello")
    worker.abandon()


@pytest.mark.timeout(600)
def test_small_run_end_to_end(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "run.py"), "--out", str(tmp_path)]
    command += [f"--call={name}" for name in ("true", "sed", "ansible")]
    command += ["--blocks", "1", "--per-block", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "warm.json").read_text())
    assert found["suite"] == "warm"
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
