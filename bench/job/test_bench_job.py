# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/job`."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from common import bars, presets
from common.blocks import random_order
from common.errors import BenchError
from common.pipe import Worker
from common.session import Setting, make_setting
from common.stats import quantile, tail_ratio
from jobbench import cli, definitions, measure, results, streams, tables
from jobbench.heartbeat import Heartbeat
from jobbench.measure import Block, Measured, Task
from jobbench.methods import FLOORS

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).resolve().parent
FOUND = definitions.load()


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    scratch = tmp_path_factory.mktemp("job")
    calls = presets.load()
    return make_setting(scratch, calls, presets.resolve_tools(calls, {}), floors=FLOORS)


def _task(cell_name: str, *methods: str, members: tuple[str, ...] = ("true",)) -> Task:
    cell = next(cell for cell in FOUND.cells if cell.name == cell_name)
    return Task(
        cell=cell,
        filter=definitions.UNFILTERED,
        members=members,
        methods=tuple(
            FOUND.methods[name] for name in methods or cell.methods if FOUND.methods[name].exists()
        ),
        parent=FOUND.parents[cell.parent],
        blocks=2,
        per_block=4,
    )


# ---- data ----


def test_every_bar_has_a_measured_ratio() -> None:
    calls = presets.load()
    members = {cell.name: cell.members(calls) for cell in FOUND.cells}
    ids = {rule.id.format(call=name) for rule in FOUND.rules for name in members[rule.cell]}
    barred = {bar["id"] for bar in bars.load() if bar["id"].startswith("job.")}
    assert len(barred) == 17
    assert barred <= ids


def test_full_and_quick_runs_have_every_cell_under_both_filters() -> None:
    calls = presets.load()
    full = cli.make_tasks(cli.parse(["--seed", "1"]), FOUND, calls)
    quick = cli.make_tasks(cli.parse(["--seed", "1", "--quick"]), FOUND, calls)
    assert len(full) == len(quick) == 2 * len(FOUND.cells)
    assert {task.filter for task in full} == {"none", "docker"}
    assert sum(task.calls for task in quick) * 3 < sum(task.calls for task in full)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nonsense"):
        cli.make_tasks(cli.parse(["--cell", "nonsense"]), FOUND, presets.load())
    text = definitions.DEFINITIONS_FILE.read_text()
    broken = tmp_path / "definitions.toml"
    broken.write_text(text.replace('under = "ours_uvloop"', 'under = "theirs"'))
    with pytest.raises(BenchError, match="no cell measures both"):
        definitions.load(broken)


def test_reason_for_a_skipped_task() -> None:
    docker = replace(_task("1"), filter="docker")
    assert measure.why_not(docker, None, 1 << 20) == "no --confine program"
    large = _task("rss2g", "asyncio", "ours_asyncio")
    assert "5120 MiB" in str(measure.why_not(large, None, 4096))
    assert measure.why_not(large, None, 8192) is None
    assert measure.why_not(_task("tree"), None, 8192) == "no --native program"
    assert measure.why_not(_task("tree"), None, 8192, Path("/bin/true")) is None
    assert measure.why_not(_task("session", "pexpect"), None, 8192) is None


def test_ratios_to_asyncio_also_exist_for_its_pidfd_watcher() -> None:
    rules = {rule.id: rule for rule in FOUND.rules}
    against = [rule for rule in FOUND.rules if "asyncio" in (rule.over, rule.under)]
    assert len(against) >= 4
    for rule in against:
        beside = rules[rule.id + tables.BESIDE]
        sides = {side.replace("asyncio_pidfd", "asyncio") for side in (beside.over, beside.under)}
        assert sides | {"ours_asyncio"} == {rule.over, rule.under, "ours_asyncio"}
        assert (beside.cell, beside.of) == (rule.cell, rule.of)
    assert FOUND.methods["asyncio"].watcher is None


def test_another_tier_is_one_more_name(tmp_path: Path) -> None:
    text = definitions.DEFINITIONS_FILE.read_text()
    longer = tmp_path / "definitions.toml"
    longer.write_text(text.replace('"subreaper"]', '"subreaper", "x"]'))
    found = definitions.load(longer)
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


# ---- order and arithmetic ----


def test_round_has_each_pair_once_grouped_by_call() -> None:
    order = random_order(["a", "b"], ["x", "y", "z"], random.Random(1))
    assert sorted(order) == [(name, method) for name in "ab" for method in "xyz"]
    assert len({name for name, _ in order[:3]}) == 1
    orders = {
        tuple(random_order(["a"], ["x", "y", "z"], random.Random(seed))) for seed in range(50)
    }
    assert len(orders) == 6


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


def _measured() -> Measured:
    task = _task("loop_stall")
    seconds = {"asyncio": 2.0, "uvloop": 3.0, "ours_asyncio": 1.0, "ours_uvloop": 1.0}
    return Measured(
        task,
        {
            ("true", name): [Block(4, value, value / 2, [int(100 * value)] * 10)] * 3
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
        ("true", "asyncio"): [Block(4, 3.0, 1.0, [])] * 2,
        ("true", "ours_asyncio"): [Block(4, 2.0, 1.0, [])] * 2,
    }
    found = results.ratios_of(Measured(task, blocks), FOUND.rules)
    assert [(ratio["id"], ratio["value"]) for ratio in found] == [("job.async.1.true", 1.5)]


def test_p50_ratio_is_of_the_median_times_of_a_call() -> None:
    task = _task("session", "pexpect", "session")
    blocks = {
        ("true", "pexpect"): [Block(3, 9.0, 1.0, [], [4_000, 6_000, 90_000])] * 2,
        ("true", "session"): [Block(3, 1.0, 1.0, [], [1_000, 2_000, 3_000])] * 2,
    }
    found = results.ratios_of(Measured(task, blocks), FOUND.rules)
    assert [(ratio["id"], ratio["value"]) for ratio in found] == [("job.session.pexpect", 3.0)]
    rows = {row["method"]: row for row in results.rows_of(Measured(task, blocks))}
    assert rows["pexpect"]["us_p50"] == 6.0


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


@pytest.fixture
def worker(setting: Setting, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """Yields a worker for the task in the test's parameter."""
    task: Task = request.param
    with measure.workers(setting, task) as workers:
        yield workers[task.methods[0].name]


def _exist(cell_name: str) -> list[str]:
    return [method.name for method in _task(cell_name).methods]


ALL = _exist("16")
STREAMS = [(cell.name, name) for cell in FOUND.cells if cell.stream for name in cell.methods]


@pytest.mark.parametrize("worker", [_task("16", name) for name in ALL], indirect=True, ids=ALL)
def test_every_method_has_the_right_answers(worker: Worker) -> None:
    for name in presets.load().members("job"):
        block = measure.run_block(worker, name, 20)
        assert block.calls == 20
        assert 0 < block.seconds < 60
        assert block.late_us == []


@pytest.mark.parametrize(("cell", "name"), STREAMS)
def test_every_stream_arrives_whole(setting: Setting, cell: str, name: str) -> None:
    task = _task(cell, name)
    with measure.workers(setting, task) as workers:
        block = measure.run_block(workers[name], task.cell.stream, 1)
    assert block.calls == 1
    assert 0 < block.seconds < 60


@pytest.mark.parametrize("way", streams.WAYS)
@pytest.mark.parametrize("kind", ["bulk", "lines"])
def test_changed_stream_ends_the_run(way: str, kind: str, tmp_path: Path) -> None:
    runner = streams.Streams(way, kind, str(tmp_path), dict(os.environ))
    try:
        os.pwrite(runner.data.file.fileno(), b"?", streams.LINE * 1000)
        with pytest.raises(BenchError, match=f"stream {kind}"):
            runner.run([kind])
    finally:
        runner.close()


def _with_native(setting: Setting) -> Setting:
    """The setting with bench-launch, which cargo builds. Skips the test without the program."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
    programs = [target / profile / "bench-launch" for profile in ("release", "debug")]
    built = [program for program in programs if program.exists()]
    if not built:
        pytest.skip("bench-launch is not built")
    newest = max(built, key=lambda program: program.stat().st_mtime)
    return replace(setting, native=newest)


@pytest.mark.parametrize("cell", ["session", "tree"])
def test_commands_and_tiers_have_the_right_answers_and_times(setting: Setting, cell: str) -> None:
    task = _task(cell)
    with measure.workers(_with_native(setting), task) as workers:
        for method, worker in workers.items():
            for name in task.cell.members(presets.load()):
                block = measure.run_block(worker, name, 5)
                if method in ("floor", "subreaper_floor"):
                    assert not block.ns, "these floors do not measure single calls"
                    continue
                assert len(block.ns) == 5, method
                assert 0 < sum(block.ns) <= block.seconds * 1e9, method


@pytest.mark.parametrize("name", _exist("session"))
def test_wrong_output_of_a_command_ends_the_run(setting: Setting, name: str) -> None:
    wrong = replace(setting.references["git-status"], stdout=b"something else")
    broken = replace(_with_native(setting), references={"git-status": wrong})
    with (
        pytest.raises(BenchError, match=r"preset git-status.*stdout differs"),
        measure.workers(broken, _task("session", name)) as workers,
    ):
        measure.run_block(workers[name], "git-status", 2)


@pytest.mark.parametrize("name", _exist("session"))
def test_wrong_status_of_a_command_ends_the_run(setting: Setting, name: str) -> None:
    failing = replace(setting.references["true"], text="false")
    broken = replace(_with_native(setting), references={"true": failing})
    with (
        pytest.raises(BenchError, match=r"preset true.*exit code (Some\()?1"),
        measure.workers(broken, _task("session", name)) as workers,
    ):
        measure.run_block(workers[name], "true", 2)


@pytest.mark.parametrize("name", ["session", "session_floor", "session_pipe_floor"])
def test_shell_in_another_directory_ends_the_run(setting: Setting, name: str) -> None:
    leaving = replace(setting.references["true"], text="cd /")
    broken = replace(_with_native(setting), references={"true": leaving})
    with (
        pytest.raises(BenchError, match="the shell is in"),
        measure.workers(broken, _task("session", name)) as workers,
    ):
        measure.run_block(workers[name], "true", 1)


@pytest.mark.parametrize("worker", [_task("loop_stall", "ours_asyncio")], indirect=True)
def test_ticks_are_counted_while_calls_run(worker: Worker) -> None:
    block = measure.run_block(worker, "true", 200)
    assert len(block.late_us) >= block.seconds / 0.0005 / 2


@pytest.mark.parametrize("name", ["fds10000", "fds10000late"])
def test_parent_with_descriptors(setting: Setting, name: str) -> None:
    task = _task(name, "ours")
    with measure.workers(setting, task) as workers:
        pid = workers["ours"].pid
        assert len(os.listdir(f"/proc/{pid}/fd")) >= task.parent.descriptors
        assert measure.run_block(workers["ours"], "true", 4).calls == 4


def test_parent_with_memory(setting: Setting) -> None:
    task = _task("rss2g", "ours_asyncio")
    task = replace(task, parent=replace(task.parent, touch_mib=64))
    with measure.workers(setting, task) as workers:
        status = Path(f"/proc/{workers['ours_asyncio'].pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) >= 64 * 1024


@pytest.mark.parametrize(
    "name", ["subprocess", "asyncio", "ours", "ours_asyncio", "floor", "subreaper_floor"]
)
def test_wrong_answer_ends_the_run(setting: Setting, name: str) -> None:
    wrong = replace(setting.references["cat"], stdout=b"something else")
    broken = replace(setting, references={"cat": wrong, "true": setting.references["true"]})
    with (
        pytest.raises(BenchError, match=r"preset cat.*stdout differs"),
        measure.workers(broken, _task("1", name)) as workers,
    ):
        measure.run_block(workers[name], "cat", 2)


def test_filtered_workers_are_started_by_the_confining_program(
    setting: Setting, tmp_path: Path
) -> None:
    confine = tmp_path / "confine"
    confine.write_text(f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/seen\nshift 2\nexec "$@"\n')
    confine.chmod(0o755)
    task = replace(_task("1", "ours", "floor"), filter="docker")
    with measure.workers(replace(setting, confine=confine), task) as workers:
        assert all(measure.run_block(one, "true", 2).calls == 2 for one in workers.values())
    assert (tmp_path / "seen").read_text() == "--docker --\n" * 2


# ---- the whole ----


@pytest.mark.timeout(600)
def test_small_run_end_to_end(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "run.py"),
            *("--blocks", "2", "--per-block", "4", "--out", str(tmp_path)),
            *("--cell", "1", "--cell", "16", "--cell", "loop_stall"),
        ],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "job.json").read_text())
    assert document["suite"] == "job"
    assert {"job.async.1.true", "job.async.16.floor", "job.loop_stall"} <= {
        ratio["id"] for ratio in document["ratios"]
    }
    assert all({"value", "low", "high", "meaning"} <= ratio.keys() for ratio in document["ratios"])
    assert set(document["left_out"]) == {
        f"{cell} under docker" for cell in ("1", "16", "loop_stall")
    }
    assert "job.sync.1.true" in done.stdout
    assert list(scratch.iterdir()) == []
