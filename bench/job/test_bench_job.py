# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/job`."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common import bars, floor, presets, streams
from common.definitions import load
from common.errors import BenchError
from common.flags import make_tasks
from common.measure import Block, Fleet, Measured, Task, fleets
from common.session import Setting, make_setting
from jobbench import cli, results, tables, worker

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).resolve().parent
FOUND = load(cli.DEFINITIONS_FILE)
Workers = dict[str, Fleet]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    scratch = tmp_path_factory.mktemp("job")
    calls = presets.load()
    return make_setting(scratch, calls, presets.resolve_tools(calls, {}), floors=floor.NAMES)


def _task(cell_name: str, *methods: str, calls: tuple[str, ...] = ("true",)) -> Task:
    cell = next(cell for cell in FOUND.cells if cell.name == cell_name)
    return Task(
        cell=cell,
        calls=calls,
        methods=tuple(
            FOUND.methods[name] for name in methods or cell.methods if FOUND.methods[name].exists()
        ),
        blocks=2,
        per_block=4,
    )


@contextmanager
def _workers(setting: Setting, task: Task) -> Iterator[Workers]:
    with fleets("job", task.title, cli.commands(setting, FOUND, task)) as running:
        yield running


# ---- data ----


def test_every_bar_has_a_measured_ratio() -> None:
    cells = {cell.name: cell for cell in FOUND.cells}
    ids = {
        rule.id.format(call=name) for rule in FOUND.rules for name in rule.calls(cells[rule.cell])
    }
    ids |= {f"{name}.docker" for name in ids}
    barred = {bar["id"] for bar in bars.load() if bar["id"].startswith("job.")}
    assert len(barred) == 23
    assert barred <= ids


def test_full_and_quick_runs_have_every_cell_under_both_filters() -> None:
    full = make_tasks(cli.parse(["--seed", "1"]), FOUND)
    quick = make_tasks(cli.parse(["--seed", "1", "--quick"]), FOUND)
    assert len(full) == len(quick) == 2 * len(FOUND.cells)
    assert {task.filter for task in full} == {"none", "docker"}
    assert sum(task.timed for task in quick) * 3 < sum(task.timed for task in full)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(BenchError, match="nonsense"):
        make_tasks(cli.parse(["--cell", "nonsense"]), FOUND)


def test_reason_for_a_skipped_task() -> None:
    docker = replace(_task("1"), filter="docker")
    assert cli.why_not(docker, 0, 1 << 20, None, None) == "no --confine program"
    large = _task("rss2g", "asyncio", "ours_asyncio")
    assert "5120 MiB" in str(cli.why_not(large, 2048, 4096, None, None))
    assert cli.why_not(large, 2048, 8192, None, None) is None
    assert cli.why_not(_task("tree"), 0, 8192, None, None) == "no --native program"
    assert cli.why_not(_task("tree"), 0, 8192, None, Path("/bin/true")) is None
    assert cli.why_not(_task("session", "pexpect"), 0, 8192, None, None) is None


def test_ratios_to_asyncio_also_exist_for_its_pidfd_watcher() -> None:
    rules = {rule.id: rule for rule in FOUND.rules}
    against = [rule for rule in FOUND.rules if rule.over == "asyncio"]
    assert len(against) == 10
    for rule in against:
        beside = rules[rule.id + tables.BESIDE]
        assert beside == replace(rule, id=beside.id, meaning=beside.meaning, over="asyncio_pidfd")
    assert "pidfd watcher" in rules["job.rss2g.pidfd_watcher"].meaning
    assert FOUND.methods["asyncio"].watcher is None


def test_another_tier_is_one_more_name(tmp_path: Path) -> None:
    text = cli.DEFINITIONS_FILE.read_text()
    longer = tmp_path / "definitions.toml"
    longer.write_text(text.replace('"subreaper"]', '"subreaper", "x"]'))
    found = load(longer)
    rules = {rule.id: rule for rule in found.rules}
    assert "job.tree.group" not in rules
    assert (rules["job.tree.guard"].over, rules["job.tree.guard"].under) == (
        "tree_guard",
        "tree_group",
    )
    assert (rules["job.tree.x"].over, rules["job.tree.x"].under) == ("tree_x", "tree_subreaper")
    assert "tier x / tier subreaper" in rules["job.tree.x"].meaning
    assert found.methods["tree_x"].tree == "x"
    tree = next(cell for cell in found.cells if cell.name == "tree")
    assert tree.methods[:4] == ("tree_group", "tree_guard", "tree_subreaper", "tree_x")


def _measured() -> Measured:
    task = _task("loop_stall")
    seconds = {"asyncio": 2.0, "uvloop": 3.0, "ours_asyncio": 1.0, "ours_uvloop": 1.0}
    return Measured(
        task,
        {
            ("true", name): [Block(4, value, value / 2, late_us=[int(100 * value)] * 10)] * 3
            for name, value in seconds.items()
        },
    )


def test_ratios_and_rows_of_a_cell() -> None:
    found = {ratio["id"]: ratio for ratio in results.ratios_of(_measured(), FOUND.rules)}
    assert set(found) == {"job.loop_stall", "job.loop_stall.uvloop"}
    assert found["job.loop_stall"]["value"] == 2.0
    assert found["job.loop_stall.uvloop"]["value"] == 3.0
    docker = replace(_measured(), task=replace(_measured().task, filter="docker"))
    assert {ratio["id"] for ratio in results.ratios_of(docker, FOUND.rules)} == {
        "job.loop_stall.docker",
        "job.loop_stall.uvloop.docker",
    }
    rows = {row["method"]: row for row in results.rows_of(_measured())}
    assert rows["asyncio"]["us_per_call"] == 500_000
    assert rows["asyncio"]["late_us_p99.9"] == 200
    assert rows["asyncio"]["ticks"] == 30


def test_time_ratio_is_over_by_under() -> None:
    task = _task("1", "asyncio", "ours_asyncio")
    blocks = {
        ("true", "asyncio"): [Block(4, 3.0, 1.0)] * 2,
        ("true", "ours_asyncio"): [Block(4, 2.0, 1.0)] * 2,
    }
    found = results.ratios_of(Measured(task, blocks), FOUND.rules)
    assert [(ratio["id"], ratio["value"]) for ratio in found] == [("job.async.1.true", 1.5)]


def test_p50_ratio_is_of_the_median_times_of_a_call() -> None:
    task = _task("session", "pexpect", "session")
    blocks = {
        ("true", "pexpect"): [Block(3, 9.0, 1.0, [4_000, 6_000, 90_000])] * 2,
        ("true", "session"): [Block(3, 1.0, 1.0, [1_000, 2_000, 3_000])] * 2,
    }
    found = results.ratios_of(Measured(task, blocks), FOUND.rules)
    assert [(ratio["id"], ratio["value"]) for ratio in found] == [("job.session.pexpect", 3.0)]
    rows = {row["method"]: row for row in results.rows_of(Measured(task, blocks))}
    assert rows["pexpect"]["us_p50"] == 6.0


# ---- workers ----


SESSIONS = [method.name for method in _task("session").methods]
STREAMS = [(cell.name, name) for cell in FOUND.cells if cell.stream for name in cell.methods]


def test_every_method_has_the_right_answers(setting: Setting) -> None:
    with _workers(setting, _task("16")) as workers:
        for name in presets.load().members("job"):
            for fleet in workers.values():
                block = fleet.run([name] * 20)
                assert block.calls == 20
                assert 0 < block.seconds < 60
                assert block.late_us == []


@pytest.mark.parametrize(("cell", "name"), STREAMS)
def test_every_stream_arrives_whole(setting: Setting, cell: str, name: str) -> None:
    task = _task(cell, name)
    with _workers(setting, task) as workers:
        block = workers[name].run(task.cell.calls)
    assert block.calls == 1
    assert 0 < block.seconds < 60


@pytest.mark.parametrize("way", worker.STREAMS)
@pytest.mark.parametrize("kind", ["bulk", "lines"])
def test_changed_stream_ends_the_run(way: str, kind: str, tmp_path: Path) -> None:
    data = streams.Data(kind)
    made = worker.STREAMS[way](data, str(tmp_path), dict(os.environ))
    os.pwrite(data.file.fileno(), b"?", streams.LINE * 1000)
    with data.file, pytest.raises(BenchError, match=f"stream {kind}"):
        asyncio.run(made[kind]())


@pytest.fixture
def native_setting(setting: Setting, bench_launch: Path) -> Setting:
    """The setting with bench-launch."""
    return replace(setting, native=bench_launch)


@pytest.mark.parametrize("cell", ["session", "tree"])
def test_commands_and_tiers_have_the_right_answers_and_times(
    native_setting: Setting, cell: str
) -> None:
    task = _task(cell)
    with _workers(native_setting, task) as workers:
        for method, worker in workers.items():
            for name in task.cell.calls:
                block = worker.run([name] * 5)
                if method in ("floor", "subreaper_floor"):
                    assert not block.ns, "these floors do not measure single calls"
                    continue
                assert len(block.ns) == 5, method
                assert 0 < sum(block.ns) <= block.seconds * 1e9, method


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("git-status", {"stdout": b"something else"}, r"preset git-status.*stdout differs"),
    ("true", {"text": "false"}, r"preset true.*exit code (Some\()?1"),
    ("true", {"text": "cd /"}, "the shell is in"),
]


@pytest.mark.parametrize(
    ("name", "preset", "change", "error"),
    [
        (name, *one)
        for name in SESSIONS
        for one in WRONG
        # Only a session has a directory.
        if name.startswith("session") or "cd /" not in one[1].values()
    ],
)
def test_wrong_command_ends_the_run(
    native_setting: Setting, name: str, preset: str, change: dict[str, Any], error: str
) -> None:
    wrong = replace(native_setting.references[preset], **change)
    broken = replace(native_setting, references={preset: wrong})
    with (
        pytest.raises(BenchError, match=error),
        _workers(broken, _task("session", name)) as workers,
    ):
        workers[name].run([preset] * 2)


def test_ticks_are_counted_while_calls_run(setting: Setting) -> None:
    with _workers(setting, _task("loop_stall", "ours_asyncio")) as workers:
        block = workers["ours_asyncio"].run(["true"] * 200)
    assert len(block.late_us) >= block.seconds / 0.0005 / 2


@pytest.mark.parametrize("name", ["fds10000", "fds10000late", "fds10000unloaded"])
def test_parent_with_descriptors(setting: Setting, name: str) -> None:
    task = _task(name, "ours")
    with _workers(setting, task) as workers:
        pid = workers["ours"].workers[0].pid
        assert len(os.listdir(f"/proc/{pid}/fd")) >= 10_000
        assert workers["ours"].run(["true"] * 4).calls == 4


def test_parent_with_memory(setting: Setting) -> None:
    task = _task("rss2g", "ours_asyncio")
    small = replace(FOUND.parents["rss2g"], touch_mib=64)
    found = replace(FOUND, parents={"rss2g": small})
    with fleets("job", "memory", cli.commands(setting, found, task)) as workers:
        pid = workers["ours_asyncio"].workers[0].pid
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) >= 64 * 1024


def test_filtered_workers_are_started_by_the_confining_program(
    setting: Setting, tmp_path: Path
) -> None:
    confine = tmp_path / "confine"
    confine.write_text(f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/seen\nshift 2\nexec "$@"\n')
    confine.chmod(0o755)
    task = replace(_task("1", "ours", "floor"), filter="docker")
    with _workers(replace(setting, confine=confine), task) as workers:
        assert all(one.run(["true"] * 2).calls == 2 for one in workers.values())
    assert (tmp_path / "seen").read_text() == "--docker --\n" * 2


# ---- the whole ----


@pytest.mark.timeout(600)
def test_small_run_end_to_end(run_bench: Callable[..., tuple[dict[str, Any], str]]) -> None:
    cells = ("1", "16", "loop_stall")
    only = [f"--cell={cell}" for cell in cells]
    document, output = run_bench("job", "--blocks=2", "--per-block=4", *only)
    assert {"job.async.1.true", "job.async.16.floor", "job.loop_stall"} <= {
        ratio["id"] for ratio in document["ratios"]
    }
    assert set(document["left_out"]) == {f"{cell} under docker" for cell in cells}
    assert "job.sync.1.true" in output
