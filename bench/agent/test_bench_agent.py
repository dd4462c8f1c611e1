# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/agent`."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agentbench import calls, cli, plan, report, results
from agentbench.backends import BACKENDS, import_spawnfd
from agentbench.fleet import Fleet, Timing
from agentbench.measure import CellResult, Series
from common import bars, document, presets, reference, workspace
from common.errors import BenchError
from common.session import Setting, make_setting
from common.stats import estimate, round_order, round_ratios

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).resolve().parent
WITHOUT_OURS = [f"--without={name}" for name in ("spawnfd", "reserve", "fork", "auto")]


@pytest.fixture(scope="module")
def definitions() -> presets.Definitions:
    return presets.load()


@pytest.fixture(scope="module")
def tools(definitions: presets.Definitions) -> dict[str, str]:
    return presets.resolve_tools(definitions, {})


@pytest.fixture
def setting(tmp_path: Path, definitions: presets.Definitions, tools: dict[str, str]) -> Setting:
    return make_setting(tmp_path, definitions, tools)


# ---- data ----


def test_sets_have_the_sixteen_presets(definitions: presets.Definitions) -> None:
    everything = definitions.members("all")
    assert len(everything) == 16
    assert set(everything) - set(definitions.members("nointerp")) == plan.INTERPRETERS
    assert set(everything) - set(definitions.members("nonode")) == {"node-small"}
    assert definitions.members("printf") == ("printf",)


def test_tools_are_elf_programs(tools: dict[str, str], tmp_path: Path) -> None:
    assert all(presets.is_elf(Path(path)) for path in tools.values())
    shim = tmp_path / "python3"
    shim.write_text("#!/bin/sh\nexec python3\n")
    shim.chmod(0o755)
    found = presets.find_tool(["python3"], [str(tmp_path), "/usr/bin:/usr/local/bin"])
    assert found is not None
    assert found != shim


def test_presets_read_files_that_exist(setting: Setting, definitions: presets.Definitions) -> None:
    for preset in definitions.presets.values():
        for name in preset.reads:
            assert (setting.cwd / name).exists(), (preset.name, name)


# ---- workspace ----


def test_workspace_matches_its_pins_under_any_umask(
    tmp_path: Path, definitions: presets.Definitions, tools: dict[str, str]
) -> None:
    found = []
    before = os.umask(0o022)
    try:
        for number, mask in enumerate((0o022, 0o077)):
            os.umask(mask)
            root = tmp_path / f"w{number}"
            found.append(workspace.generate(root, definitions.workspace, tools["git"]))
    finally:
        os.umask(before)
    assert found[0] == found[1]
    workspace.check(found[0], definitions.workspace)


def test_changed_workspace_is_refused(
    tmp_path: Path, definitions: presets.Definitions, tools: dict[str, str]
) -> None:
    root = tmp_path / "w"
    workspace.generate(root, definitions.workspace, tools["git"])
    (root / "samples" / "notes.md").write_text("other\n")
    with pytest.raises(BenchError, match="differs"):
        workspace.check(workspace.describe(root, tools["git"]), definitions.workspace)


# ---- arithmetic ----


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


def test_every_backend_runs_in_every_position() -> None:
    names = ["a", "b", "c"]
    orders = [round_order(names, number) for number in range(6)]
    for place in range(3):
        assert sorted(order[place] for order in orders) == ["a", "a", "b", "b", "c", "c"]


def test_rounds_distribute_calls_evenly(definitions: presets.Definitions) -> None:
    members = definitions.members("nointerp")
    rounds = calls.make_rounds(members, 6144, 12)
    assert [len(part) for part in rounds] == [512] * 12
    dealt = [sum(part.count(name) for part in rounds) for name in members]
    assert max(dealt) - min(dealt) <= 1
    assert rounds == calls.make_rounds(members, 6144, 12)
    shares = [calls.share(rounds[0], worker, 8) for worker in range(8)]
    assert sorted(name for part in shares for name in part) == sorted(rounds[0])


def _cell_result() -> CellResult:
    cell = plan.Cell(
        "asyncio", "1x16", "nointerp", 40, 4, ("asyncio", "threads", "spawnfd", "floor")
    )
    seconds = {"asyncio": 2.0, "threads": 1.5, "spawnfd": 1.0, "floor": 0.5}
    return CellResult(
        cell,
        {
            name: Series([Timing(10, value * (1 + number / 100), 0.1) for number in range(4)])
            for name, value in seconds.items()
        },
    )


def test_ratio_uses_the_better_platform_backend() -> None:
    ratios = {ratio["id"]: ratio for ratio in results.ratios_of(_cell_result())}
    assert ratios["agent.asyncio.1x16.nointerp.cold"]["value"] == pytest.approx(1.5)
    assert "subprocess in threads" in ratios["agent.asyncio.1x16.nointerp.cold"]["meaning"]
    assert ratios["agent.floor.1x16.nointerp.cold"]["value"] == pytest.approx(0.5)


def test_auto_is_compared_with_fork() -> None:
    plain = _cell_result()
    seconds = {"fork": 1.0, "auto": 1.25}
    result = replace(
        plain,
        series={
            **plain.series,
            **{
                name: Series([Timing(10, value, 0.1) for _ in range(4)])
                for name, value in seconds.items()
            },
        },
    )
    ratios = {ratio["id"]: ratio["value"] for ratio in results.ratios_of(result)}
    assert ratios["agent.asyncio.1x16.nointerp.auto_vs_fork"] == pytest.approx(0.8)
    tool = replace(result, cell=replace(result.cell, set_name="cat", per_tool=True))
    of_tool = {ratio["id"] for ratio in results.ratios_of(tool)}
    assert {"agent.tool.cat.auto", "agent.tool.cat.fork"} <= of_tool
    assert not any("auto_vs_fork" in name for name in of_tool)


def test_full_plan_has_the_promised_ids(definitions: presets.Definitions) -> None:
    cells = plan.make_plan(
        plan.FULL, plan.FULL_CELLS, definitions.members("all"), ("asyncio", "spawnfd", "floor")
    )
    found = {(cell.harness, cell.split, cell.set_name) for cell in cells if not cell.per_tool}
    assert {("autogen", split, "all") for split in plan.SPLITS} <= found
    assert ("asyncio", "1x16", "nointerp") in found
    assert ("asyncio", "1x16", "printf") in found
    assert all(cell.calls == 6144 for cell in cells if not cell.per_tool)
    assert all(workers * each == plan.IN_FLIGHT for workers, each in plan.SPLITS.values())


# ---- wrong answers ----


def test_difference_names_the_stream_and_the_place() -> None:
    right = reference.Reference("cat", ("/bin/cat",), 0, b"abcdef", b"")
    assert right.difference(0, b"abcdef", b"") is None
    assert "exit code 1" in str(right.difference(1, b"abcdef", b""))
    assert "byte 3" in str(right.difference(0, b"abcXef", b""))
    assert "stderr" in str(right.difference(0, b"abcdef", b"!"))


@pytest.mark.parametrize("backend", ["asyncio", "threads", "floor"])
def test_wrong_answer_ends_the_run(setting: Setting, backend: str) -> None:
    wrong = replace(setting.references["cat"], stdout=b"something else")
    broken = replace(setting, references={"cat": wrong})
    fleet = Fleet(broken, "asyncio", backend, 1, 2)
    try:
        fleet.wait_ready()
        with pytest.raises(BenchError, match=rf"preset cat, backend {backend}.*stdout differs"):
            fleet.run(["cat"] * 4)
    finally:
        fleet.abandon()


def test_missing_spawnfd_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spawnfd", None)
    with pytest.raises(BenchError, match="--without spawnfd"):
        import_spawnfd()
    with pytest.raises(BenchError, match="--without spawnfd"):
        cli.chosen_backends(cli.parse([]))
    assert cli.chosen_backends(cli.parse(WITHOUT_OURS)) == (
        "asyncio",
        "threads",
        "floor",
    )


# ---- report ----


class _Page(HTMLParser):
    """Collects a page's external resources and ids, and checks that tags are closed."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and not str(value).startswith("#"):
                self.loads.append(str(value))
            if name == "id":
                self.ids.append(str(value))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _document() -> dict[str, Any]:
    machine = {"cpu": "<fast & odd>", "cores": 2, "load_before": 0.1, "command": "run.py"}
    document = results.suite([_cell_result()], machine)
    tool = replace(_cell_result().cell, set_name="cat", per_tool=True)
    document["rows"] += results.rows_of(replace(_cell_result(), cell=tool))
    document["ratios"] += results.ratios_of(replace(_cell_result(), cell=tool))
    return document


def test_report_has_no_external_resources(tmp_path: Path) -> None:
    document.write(_document(), tmp_path / "agent.json")
    launch = {
        "suite": "launch",
        "machine": {"cpu": "x"},
        "ratios": [
            {
                "id": "launch.parallel8_vs_vfork",
                "value": 0.95,
                "low": 0.93,
                "high": 0.97,
                "meaning": "m",
            }
        ],
        "rows": [{"method": "vfork", "us": 44.5}],
    }
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    text = report.write(tmp_path).read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert len(page.ids) == len(set(page.ids))
    assert "@import" not in text
    assert "url(http" not in text
    assert "&lt;fast &amp; odd&gt;" in text
    assert "launch.parallel8_vs_vfork" in text
    assert "prefers-color-scheme: dark" in text
    assert "#0a0b" not in text, "a placeholder colour was left in a plot"


def test_report_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no results"):
        report.write(tmp_path)


@pytest.mark.parametrize(
    ("low", "value", "high", "status"),
    [(1.2, 1.3, 1.4, "met"), (1.1, 1.2, 1.4, "met narrowly"), (1.0, 1.1, 1.2, "missed")],
)
def test_bar_status(low: float, value: float, high: float, status: str) -> None:
    bar = {"id": "x", "op": ">=", "bar": 1.15, "text": ""}
    ratio = {"id": "x", "value": value, "low": low, "high": high}
    assert bars.judge([bar], [ratio])[0].status == status
    assert bars.judge([bar], [])[0].status == "not measured"


def test_bars_file_has_the_agent_bars() -> None:
    found = {bar["id"]: bar["bar"] for bar in bars.load()}
    assert found["agent.asyncio.1x16.nointerp.cold"] == 1.25
    assert found["agent.autogen.1x16.all.cold"] == 1.12
    assert found["agent.autogen.1x16.all.auto_vs_fork"] == 0.95


# ---- the whole ----


@pytest.mark.timeout(600)
def test_small_run_end_to_end(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "run.py"),
            *("--calls", "32", "--rounds", "2", "--no-tools", *WITHOUT_OURS),
            *("--split", "1x16", "--split", "8x2", "--out", str(tmp_path)),
        ],
        env={**os.environ, "QUICK": "1", "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "agent.json").read_text())
    assert document["suite"] == "agent"
    assert all(ratio["id"].startswith("agent.headroom.") for ratio in document["ratios"])
    rows = {
        (row["harness"], row["split"], row["set"], row["backend"]): row for row in document["rows"]
    }
    assert rows["autogen", "8x2", "all", "threads"]["calls"] == 32
    assert rows["asyncio", "1x16", "nointerp", "floor"]["calls"] == 32
    assert all(row["calls_per_s"] > 0 for row in document["rows"])
    assert (tmp_path / "agent.html").stat().st_size > 10_000
    assert list(scratch.iterdir()) == []


FAKE_SPAWNFD = """
import asyncio, subprocess, types

class Env:
    def __init__(self, names):
        self.names = names
    @classmethod
    def only(cls, names):
        return cls({})
    def set(self, name, value):
        return Env({**self.names, name: value})

async def run_async(argv, *, cwd, env, timeout, started="clone"):
    def run():
        null = subprocess.DEVNULL
        return subprocess.run(argv, cwd=cwd, env=env.names, stdin=null, capture_output=True)
    done = await asyncio.to_thread(run)
    return types.SimpleNamespace(
        code=done.returncode, stdout=done.stdout, stderr=done.stderr, started=started
    )

class Warm:
    def __init__(self, mode, trusted=False, **bounds):
        assert trusted == (mode == "auto")
        self.mode, self.added = mode, set()
    def add(self, program, *, depth, env, args):
        self.added.add(program)
    def fill(self, timeout):
        return True
    async def run_async(self, argv, **options):
        assert argv[0] in self.added
        return await run_async(argv, started=self.mode, **options)
    def close(self):
        pass
"""


@pytest.mark.timeout(600)
def test_our_backends_have_ratios_with_a_fake_spawnfd(tmp_path: Path) -> None:
    (tmp_path / "spawnfd.py").write_text(FAKE_SPAWNFD)
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "run.py"),
            *("--calls", "32", "--rounds", "2", "--set", "nointerp", "--harness", "asyncio"),
            *("--split", "1x16", "--out", str(tmp_path)),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "agent.json").read_text())
    ids = [ratio["id"] for ratio in document["ratios"]]
    assert ids == [
        "agent.headroom.asyncio.1x16.nointerp",
        *(
            f"agent.{of}1x16.nointerp.{mode}"
            for mode in ("cold", "reserve", "fork", "auto")
            for of in ("asyncio.", "floor.")
        ),
        "agent.asyncio.1x16.nointerp.auto_vs_fork",
    ]
    started = {row["mode"]: row["started"] for row in document["rows"] if row["role"] == "ours"}
    assert started == {
        "cold": {"clone": 32},
        "reserve": {"reserve": 32},
        "fork": {"fork": 32},
        "auto": {"auto": 32},
    }
    assert set(BACKENDS) >= {row["backend"] for row in document["rows"]} - {"floor"}
