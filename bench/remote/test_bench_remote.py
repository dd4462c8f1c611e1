# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/remote`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from common import bars, presets
from common.definitions import load
from common.errors import BenchError
from common.flags import make_tasks
from common.measure import Fleet, Task, fleets
from common.session import Setting, make_setting
from remotebench import cli, ray_rows
from remotebench.places import Places, open_places

pytestmark = pytest.mark.timeout(300)
FOUND = load(cli.DEFINITIONS_FILE)
SERVER = f"#!{sys.executable}\nfrom spawnfd import _spawnfd\n_spawnfd.serve()\n"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    scratch = tmp_path_factory.mktemp("remote")
    server = scratch / "server"
    server.write_text(SERVER)
    server.chmod(0o755)
    with open_places(scratch, server) as found:
        yield found


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    calls = presets.load()
    scratch = tmp_path_factory.mktemp("setting")
    return make_setting(scratch, calls, presets.resolve_tools(calls, {}), floors=())


def _task(cell_name: str, *methods: str) -> Task:
    cell = next(cell for cell in FOUND.cells if cell.name == cell_name)
    return Task(
        cell=cell,
        calls=cell.calls,
        methods=tuple(FOUND.methods[name] for name in methods),
        blocks=2,
        per_block=4,
    )


@contextmanager
def _workers(setting: Setting, places: Places, task: Task) -> Iterator[dict[str, Fleet]]:
    commands = cli.commands(setting, FOUND, places, task)
    with fleets("remote", task.title, commands) as running:
        yield running


def test_every_bar_has_a_measured_ratio() -> None:
    ids = {rule.id for rule in FOUND.rules} | set(ray_rows.IDS)
    barred = {bar["id"] for bar in bars.load() if bar["id"].startswith("remote.")}
    assert len(barred) == 14
    assert barred <= ids


def test_full_and_quick_runs_have_every_cell() -> None:
    full = make_tasks(cli.parse(["--server", "x", "--seed", "1"]), FOUND)
    quick = make_tasks(cli.parse(["--server", "x", "--seed", "1", "--quick"]), FOUND)
    assert len(full) == len(quick) == len(FOUND.cells)
    assert sum(task.timed for task in quick) * 3 < sum(task.timed for task in full)


# One method for each way and place. SWE-ReX is installed for the benchmark only.
METHODS = {
    "1": ("ping", "pipe", "ssh", "ssh_master", "container", "container_exec", "execnet"),
    "16": ("pipe_async",),
    "session": ("session", "session_pipe"),
    "bulk": ("bulk_pipe", "bulk_ssh_cat"),
    "flood": ("trips", "trips_flood"),
}


@pytest.mark.parametrize(
    ("cell", "method"), [(cell, method) for cell in METHODS for method in METHODS[cell]]
)
def test_a_block_of_each_method(setting: Setting, places: Places, cell: str, method: str) -> None:
    if why := places.missing.get(FOUND.methods[method].place or ""):
        pytest.skip(why)
    task = _task(cell, method)
    with _workers(setting, places, task) as running:
        (call,) = task.calls
        block = running[method].run([call] * 2)
    assert block.calls == 2
    assert block.seconds > 0
    assert len(block.ns) == 2


def test_methods_without_their_place_are_left_out() -> None:
    task, lacks = cli.without_missing(
        _task("1", "local", "pipe", "ssh"), Places({}, {"ssh": "needs sshd"})
    )
    assert [method.name for method in task.methods] == ["local", "pipe"]
    assert list(lacks.values()) == ["needs sshd"]


def test_a_place_that_does_not_answer_is_an_error(setting: Setting, places: Places) -> None:
    broken = Places({"pipe": type(places.found["pipe"])(["/bin/false"], [])}, {})
    with (
        pytest.raises(BenchError, match="false exited with status 1"),
        _workers(setting, broken, _task("1", "pipe")),
    ):
        pass
