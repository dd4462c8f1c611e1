# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of the benchmark's own code: `python -m pytest bench/agent`."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agentbench import cli, plan, report, results
from agentbench.backends import BACKENDS
from agentbench.measure import CellResult, command
from common import bars, document, presets
from common.errors import BenchError
from common.measure import Block, fleets
from common.session import make_setting

pytestmark = pytest.mark.timeout(300)
WITHOUT_OURS = [f"--without={name}" for name in ("spawnfd", "reserve", "fork", "auto")]
RunBench = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def definitions() -> presets.Definitions:
    return presets.load()


# ---- data ----


def test_sets_have_the_sixteen_presets(definitions: presets.Definitions) -> None:
    everything = definitions.members("all")
    assert len(everything) == 16
    assert set(everything) - set(definitions.members("nointerp")) == plan.INTERPRETERS
    assert set(everything) - set(definitions.members("nonode")) == {"node-small"}
    assert definitions.members("printf") == ("printf",)


# ---- arithmetic ----


def test_rounds_distribute_calls_evenly(definitions: presets.Definitions) -> None:
    members = definitions.members("nointerp")
    rounds = plan.make_rounds(members, 6144, 12)
    assert [len(part) for part in rounds] == [512] * 12
    dealt = [sum(part.count(name) for part in rounds) for name in members]
    assert max(dealt) - min(dealt) <= 1
    assert rounds == plan.make_rounds(members, 6144, 12)


def _cell_result() -> CellResult:
    cell = plan.Cell(
        "asyncio", "1x16", "nointerp", 40, 4, ("asyncio", "threads", "spawnfd", "floor")
    )
    seconds = {"asyncio": 2.0, "threads": 1.5, "spawnfd": 1.0, "floor": 0.5}
    return CellResult(
        cell,
        {
            name: [Block(10, value * (1 + number / 100), 0.1) for number in range(4)]
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
            **{name: [Block(10, value, 0.1) for _ in range(4)] for name, value in seconds.items()},
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


# ---- workers ----


@pytest.mark.parametrize("harness", plan.HARNESSES)
def test_wrong_answer_under_a_harness_ends_the_run(
    tmp_path: Path, definitions: presets.Definitions, harness: str
) -> None:
    tools = presets.resolve_tools(definitions, {})
    setting = make_setting(tmp_path, definitions, tools, floors=())
    wrong = replace(setting.references["cat"], stdout=b"something else")
    broken = replace(setting, references={**setting.references, "cat": wrong})
    cell = plan.Cell(harness, "8x2", "all", 4, 1, ("threads",))
    commands = {"threads": command(broken, cell, "threads")}
    with (
        pytest.raises(BenchError, match=rf"cat, method threads \({harness}\).*stdout differs"),
        fleets("agent", "test", commands) as running,
    ):
        running["threads"].run(["cat"] * 4)


def test_missing_spawnfd_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spawnfd", None)
    with pytest.raises(BenchError, match="by --without"):
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


def test_headline_says_what_it_means_and_how_much_of_the_floor_it_is() -> None:
    document = _document()
    ratio = next(one for one in document["ratios"] if one["id"].endswith(".cold"))
    _, harness, split, set_name, _ = ratio["id"].split(".")
    headroom = f"agent.headroom.{harness}.{split}.{set_name}"
    floor = {headroom: {"id": headroom, "value": ratio["value"] * 1.25}}
    meaning = report._meaning(document, ratio, floor)
    assert re.search(r"1,000 calls take [0-9.]+ s instead of [0-9.]+ s\.", meaning)
    assert "That is 80 % of a C loop that starts each program cold" in meaning
    assert "bar" not in meaning
    floor[headroom]["value"] = ratio["value"] / 2
    assert "That is 2.0 times a C loop" in report._meaning(document, ratio, floor)


def test_report_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no results"):
        report.write(tmp_path)


def test_bars_file_has_the_agent_bars() -> None:
    found = {bar["id"]: bar["bar"] for bar in bars.load()}
    assert found["agent.asyncio.1x16.nointerp.cold"] == 1.25
    assert found["agent.autogen.1x16.all.cold"] == 1.12
    assert found["agent.autogen.1x16.all.auto_vs_fork"] == 0.95


# ---- the whole ----


@pytest.mark.timeout(600)
def test_small_run_end_to_end(tmp_path: Path, run_bench: RunBench) -> None:
    small = ("--calls=32", "--rounds=2", "--no-tools", *WITHOUT_OURS)
    document, _ = run_bench("agent", *small, "--split=1x16", "--split=8x2", QUICK="1")
    assert all(ratio["id"].startswith("agent.headroom.") for ratio in document["ratios"])
    rows = {
        (row["harness"], row["split"], row["set"], row["backend"]): row for row in document["rows"]
    }
    assert rows["autogen", "8x2", "all", "threads"]["calls"] == 32
    assert rows["asyncio", "1x16", "nointerp", "floor"]["calls"] == 32
    assert all(row["calls_per_s"] > 0 for row in document["rows"])
    assert (tmp_path / "agent.html").stat().st_size > 10_000


FAKE_SPAWNFD = """
import asyncio, subprocess, types

class Env:
    def __init__(self, names):
        self.names = names
    @classmethod
    def empty(cls):
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
def test_our_backends_have_ratios_with_a_fake_spawnfd(tmp_path: Path, run_bench: RunBench) -> None:
    (tmp_path / "spawnfd.py").write_text(FAKE_SPAWNFD)
    small = ("--calls=32", "--rounds=2", "--set=nointerp", "--harness=asyncio", "--split=1x16")
    document, _ = run_bench("agent", *small, PYTHONPATH=str(tmp_path))
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
