# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/node`."""

import hashlib
import io
import os
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common import bars, floor, presets
from common.definitions import load
from common.errors import BenchError
from common.flags import make_tasks
from common.measure import Block, Fleet, Measured, Task, fleets
from common.session import Setting, make_setting
from nodebench import cli, hosts, results

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]
FOUND = load(cli.DEFINITIONS_FILE)
HOSTS = hosts.load(cli.DEFINITIONS_FILE)
NODES = ("node24", "newest", "posix", "path")
EVERYTHING = frozenset({hosts.WARM, hosts.DROP_IN, hosts.EXECA})
Workers = dict[str, Fleet]
Run = Callable[..., tuple[dict[str, Any], str]]


def _options(*arguments: str) -> Any:
    return cli.parse(["--cache", "/nonexistent", "--seed", "1", *arguments])


def _cell(name: str) -> Any:
    return next(cell for cell in FOUND.cells if cell.name == name)


def _task(cell_name: str, *methods: str) -> Task:
    cell = _cell(cell_name)
    chosen = tuple(FOUND.methods[name] for name in methods or cell.methods)
    return Task(cell=cell, calls=cell.calls, methods=chosen, blocks=2, per_block=4)


# ---- data ----


def test_every_bar_has_a_measured_ratio() -> None:
    ids = Counter(
        rule.id.format(call=name) for rule in FOUND.rules for name in rule.calls(_cell(rule.cell))
    )
    barred = {bar["id"] for bar in bars.load() if bar["id"].startswith("node.")}
    assert len(barred) == 16
    assert barred <= ids.keys()
    assert set(ids.values()) == {1}, "each id has one rule"


def test_every_method_has_a_known_host_and_every_archive_a_checksum() -> None:
    used = {method.host for method in FOUND.methods.values()} - {None}
    assert used == HOSTS.keys()
    for host in HOSTS.values():
        assert not host.package or re.fullmatch("[0-9a-f]{64}", host.sha256)


def test_methods_of_a_ratio_have_the_same_host() -> None:
    for rule in FOUND.rules:
        pair = {FOUND.methods[name].host for name in (rule.over, rule.under)} - {None}
        assert len(pair) == 1, rule.id


def test_quick_runs_have_every_cell() -> None:
    full, quick = (make_tasks(_options(*more), FOUND) for more in ([], ["--quick"]))
    assert len(full) == len(quick) == len(FOUND.cells)
    assert sum(task.timed for task in quick) * 3 < sum(task.timed for task in full)


def test_unknown_host_is_refused() -> None:
    with pytest.raises(BenchError, match="nonsense"):
        cli.find_hosts(_options("--host=nonsense=/bin/true"), [])


# ---- what this machine can measure ----


def _on(exports: frozenset[str]) -> cli.Hosts:
    node = hosts.Found("Node", "/bin/node", "24.0.0", "1.52.1", exports)
    return cli.Hosts({"node24": node, "newest": node}, {"posix": "too old"})


def test_methods_that_cannot_be_measured_are_left_out_with_their_reasons() -> None:
    tasks = [_task("16"), _task("warm_1", "spawn", "reserve"), _task("newest_1")]
    kept, left_out = cli.possible(tasks, FOUND, _on(frozenset({hosts.EXECA})), 1 << 20)
    assert left_out == {
        "16, dropin": "the package has no spawnfd/child_process",
        "warm_1, reserve": "the package does not export Warm",
        "newest_1, posix_spawn": "too old",
        "newest_1, posix_ours": "too old",
    }
    assert [[method.name for method in task.methods] for task in kept] == [
        ["spawn", "execa", "ours", "floor", "thread_floor"],
        ["newest_spawn", "newest_execa", "newest_ours", "floor"],
    ]
    assert cli.possible(tasks[:2], FOUND, _on(EVERYTHING), 1 << 20) == (tasks[:2], {})


def test_large_parents_need_free_memory() -> None:
    task = _task("heap1g_1")
    needs = {"heap1g_1": "needs 3072 MiB of free memory"}
    assert cli.possible([task], FOUND, _on(EVERYTHING), 3071) == ([], needs)
    assert cli.possible([task], FOUND, _on(EVERYTHING), 3072) == ([task], {})


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hosts.Host:
    """A host whose archive is in a registry of files."""
    content = b"#!/bin/sh\necho hello\n"
    path = tmp_path / "registry" / "@scope" / "thing" / "-" / "thing-1.2.3.tgz"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as files:
        entry = tarfile.TarInfo("package/bin/thing")
        entry.size = len(content)
        files.addfile(entry, io.BytesIO(content))
    monkeypatch.setenv("npm_config_registry", f"file://{tmp_path}/registry/")
    monkeypatch.setattr(hosts.platform, "machine", lambda: hosts.MACHINE)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return hosts.Host("thing", "Thing", "bin/thing", "@scope/thing", "1.2.3", sha256)


def test_host_is_fetched_once(archive: hosts.Host, tmp_path: Path) -> None:
    program = hosts.fetch(archive, tmp_path / "cache")
    assert os.access(program, os.X_OK)
    assert program.read_text().endswith("echo hello\n")
    shutil.rmtree(tmp_path / "registry")
    assert hosts.fetch(archive, tmp_path / "cache") == program
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["thing-1.2.3"]


def test_host_with_a_wrong_checksum_is_refused(archive: hosts.Host, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="wrong checksum"):
        hosts.fetch(replace(archive, sha256="0" * 64), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_host_that_cannot_be_fetched_is_left_out(archive: hosts.Host, tmp_path: Path) -> None:
    other = replace(archive, version="9.9.9")
    why = hosts.find(other, tmp_path / "cache", cli.PACKAGE, {})
    assert str(why).startswith("@scope/thing 9.9.9 cannot be fetched: ")


# ---- ratios ----


def _measured(cell: str, **blocks: Block) -> Measured:
    task = _task(cell, *blocks)
    found = {(task.calls[0], name): [block] * 2 for name, block in blocks.items()}
    return Measured(replace(task, calls=task.calls[:1]), found)


def test_ratios_and_rows_of_the_time_that_a_call_holds_the_thread() -> None:
    measured = _measured(
        "heap1g_1",
        spawn=Block(3, 6.0, 1.0, ns=[9, 9, 9], held_ns=[2_000, 4_000, 90_000]),
        ours=Block(3, 2.0, 1.0, ns=[9, 9, 9], held_ns=[1_000, 2_000, 3_000]),
    )
    document = results.suite([measured], FOUND.rules, {}, {})
    ratios = {ratio["id"]: ratio["value"] for ratio in document["ratios"]}
    assert ratios == {"node.heap1g.1": 3.0, "node.hold.heap1g": 2.0}
    rows = {row["method"]: row for row in document["rows"]}
    assert (rows["spawn"]["held_us_p50"], rows["spawn"]["us_per_call"]) == (4.0, 2e6)
    assert rows["spawn"]["host"] == "node24"


def test_stall_is_the_longest_gap_of_a_block() -> None:
    measured = _measured(
        "burst",
        spawn=Block(3, 1.0, 1.0, gap_us=[1_000, 90_000, 1_000]),
        ours=Block(3, 1.0, 1.0, gap_us=[3_000, 1_000, 1_000]),
    )
    document = results.suite([measured], FOUND.rules, {}, {})
    assert [(one["id"], one["value"]) for one in document["ratios"]] == [
        ("node.stall.burst200", 30.0)
    ]
    assert [row["gap_ms_max"] for row in document["rows"]] == [90.0, 3.0]


def test_rows_with_pauses_have_no_rate() -> None:
    block = Block(2, 5.0, 1.0, ns=[1_000, 3_000], held_ns=[1, 1])
    row = results.rows_of(_measured("warm_1", spawn=block))[0]
    assert row["us_p50"] == 2.0
    assert "calls_per_s" not in row


# ---- workers ----


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    calls = presets.load()
    floors = (floor.FLOOR, floor.THREAD_FLOOR)
    tools = presets.resolve_tools(calls, {})
    return make_setting(tmp_path_factory.mktemp("node"), calls, tools, floors=floors)


@pytest.fixture(scope="module")
def node() -> str:
    """The Node that the package is tested with."""
    program = shutil.which("node", path=f"{ROOT}/build/node/bin:{os.environ['PATH']}")
    if program is None:
        pytest.skip("there is no node")
    if not (cli.PACKAGE / "dist" / "spawnfd.node").exists():
        pytest.skip("the Node package is not built")
    return program


def _find(name: str, program: str) -> cli.Hosts:
    host = replace(HOSTS[name], libuv="")
    found = hosts.find(host, Path("/nonexistent"), cli.PACKAGE, {name: Path(program)})
    assert isinstance(found, hosts.Found)
    names = NODES if name in NODES else (name,)
    return cli.Hosts(dict.fromkeys(names, found), {})


@contextmanager
def _workers(setting: Setting, on: cli.Hosts, task: Task) -> Iterator[Workers]:
    made = cli.commands(setting, FOUND, on, cli.PACKAGE, task)
    with fleets("node", task.title, made) as running:
        yield running


def _every_answer_is_right(setting: Setting, on: cli.Hosts, cell: str) -> None:
    for task in cli.possible([_task(cell)], FOUND, on, 1 << 20)[0]:
        with _workers(setting, on, task) as workers:
            for method, worker in workers.items():
                for name in task.calls:
                    block = worker.run([name] * 5)
                    assert block.calls == 5
                    if method not in floor.NAMES:
                        assert len(block.ns) == len(block.held_ns) == 5, method
                        assert block.gap_us == []


@pytest.mark.parametrize("cell", ["1", "16", "warm_1", "warm_16", "newest_1", "path_1"])
def test_every_method_of_node_has_the_right_answers(setting: Setting, node: str, cell: str) -> None:
    _every_answer_is_right(setting, _find("node24", node), cell)


@pytest.mark.parametrize("cell", ["bun_1", "bun_16"])
def test_every_method_of_bun_has_the_right_answers(setting: Setting, node: str, cell: str) -> None:
    bun = shutil.which("bun")
    if bun is None:
        pytest.skip("there is no bun in PATH")
    _every_answer_is_right(setting, _find("bun", bun), cell)


@pytest.mark.parametrize("method", ["spawn", "ours"])
@pytest.mark.parametrize(
    ("change", "error"),
    [({"stdout": b"other"}, "cat.*stdout differs"), ({"code": 3}, "cat.*exit code 0, expected 3")],
)
def test_wrong_answer_ends_the_run(
    setting: Setting, node: str, method: str, change: dict[str, Any], error: str
) -> None:
    wrong = replace(setting.references["cat"], **change)
    broken = replace(setting, references={"cat": wrong})
    with (
        pytest.raises(BenchError, match=error),
        _workers(broken, _find("node24", node), _task("1", method)) as workers,
    ):
        workers[method].run(["cat"] * 2)


def test_gaps_of_the_timer_cover_the_burst(setting: Setting, node: str) -> None:
    with _workers(setting, _find("node24", node), _task("burst", "ours")) as workers:
        block = workers["ours"].run(["true"] * 50)
    # Each gap is rounded to 1 us.
    assert sum(block.gap_us) >= block.seconds * 1e6 - len(block.gap_us)


@pytest.mark.parametrize("name", ["fds10000", "fds10000late"])
def test_parent_with_descriptors(setting: Setting, node: str, name: str) -> None:
    with _workers(setting, _find("node24", node), _task(name, "ours")) as workers:
        pid = workers["ours"].workers[0].pid
        assert len(os.listdir(f"/proc/{pid}/fd")) >= 10_000
        assert workers["ours"].run(["true"] * 4).calls == 4


def test_parent_with_memory(setting: Setting, node: str) -> None:
    small = replace(FOUND.parents["heap1g"], touch_mib=128)
    found = replace(FOUND, parents={"heap1g": small})
    on, task = _find("node24", node), _task("heap1g_1", "ours")
    command = cli.commands(setting, found, on, cli.PACKAGE, task)
    with fleets("node", "memory", command) as workers:
        pid = workers["ours"].workers[0].pid
        status = Path(f"/proc/{pid}/status").read_text()
        anonymous = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        assert int(anonymous.split()[1]) >= 128 * 1024


# ---- the whole ----


@pytest.mark.timeout(600)
def test_small_run_end_to_end(run_bench: Run, node: str) -> None:
    cells = [f"--cell={cell}" for cell in ("1", "16", "burst")]
    document, output = run_bench(
        "node",
        "--blocks=2",
        "--per-block=4",
        *cells,
        f"--host=node24={node}",
        "--cache=/nonexistent",
    )
    assert {"node.async.1.true", "node.async.16.floor", "node.stall.burst200"} <= {
        ratio["id"] for ratio in document["ratios"]
    }
    assert document["machine"]["hosts"]["node24"]["program"] == node
    assert "not measured: node.heap1g.1" in output
