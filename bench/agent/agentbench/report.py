# SPDX-License-Identifier: MIT OR Apache-2.0
"""Renders agent.html from agent.json and the other suites' files in the same folder."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from common import bars
from common.errors import BenchError
from common.machine import machine_is_busy
from common.tables import Row, ratio_figure

from . import page, plots, tables, warm_part
from .results import AUTO_VS_FORK

Document = Row

HEADLINES = {
    "agent.autogen.1x16.all.cold": "AutoGen Core, all 16 tools",
    "agent.asyncio.1x16.nointerp.cold": "asyncio, the 14 without python and node",
    "agent.autogen.1x16.all.fork": "AutoGen Core, all 16, forked from parked processes",
    "agent.autogen.1x16.all.reserve": "AutoGen Core, all 16, from a reserve",
    "agent.autogen.1x16.all.auto_vs_fork": "AutoGen Core, all 16, mode auto over mode fork",
    "agent.autogen.1x16.nonode.fork": "the same forked, without node",
    "agent.asyncio.1x16.nointerp.fork": "asyncio, the 14 without python and node, forked",
}
CAPTIONS = {"agent": "Calls per second of spawnfd over the better platform backend."}
FLOOR_CAPTION = (
    "floor: spawnfd under asyncio over a C loop of system calls. headroom: the C loop over the "
    "platform."
)
SHORT_RUN = (
    "This was a short run: the intervals are wide, and verdicts on bars mean little. The full run "
    "is make bench-agent."
)
BUSY = "Other processes used {share:.0%} of the CPUs when this run began."
NOT_MEASURED = (
    "No model is involved. An interactive agent waits much longer for its model than for a launch; "
    "these figures measure throughput, as in evaluation farms, builds and test runs.",
    "All tools run only for a short time. A tool that runs for a second gains nothing.",
    "Sixteen calls are always in flight. Another benchmark measures the latency of a single call.",
    "All files are in the page cache, in one small workspace: no cold disk, no network disk.",
    "A cold row includes the tool's own start-up (ld.so, libc, an interpreter), which is nearly "
    "all of the time of python and node. reserve, fork and auto do the start-up in advance: each "
    "round begins with a few parked processes for each tool, and their replacement after the round "
    "is not in its time, but in its CPU time.",
    "Python, the harness and the tools share this machine's cores. With few cores, the children's "
    "own work limits every backend equally.",
    "No sandbox around the calls, and no seccomp profile on the host process.",
)


def read_suites(folder: Path) -> list[Document]:
    """Returns every *.json of the folder that has the form of a suite, the agent suite first."""
    suites: list[Document] = []
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BenchError(f"{path} is not JSON: {error}") from None
        if isinstance(document, dict) and {"suite", "ratios"} <= document.keys():
            suites.append(document)
    return sorted(suites, key=lambda suite: suite["suite"] != "agent")


def _headlines(agent: Document) -> str:
    ratios = {ratio["id"]: ratio for ratio in agent["ratios"]}
    cards = [
        page.card(title, f"{ratio['value']:.3f}×", _meaning(agent, ratio, ratios))
        for identifier, title in HEADLINES.items()
        if (ratio := ratios.get(identifier))
    ]
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _meaning(agent: Document, ratio: Row, ratios: Mapping[str, Row]) -> str:
    """What a headline ratio means for a user, and the C floor of the same cell."""
    _, harness, split, set_name, mode = ratio["id"].split(".")
    interval = f"95 %: {ratio_figure(ratio)[1]}."
    if mode == AUTO_VS_FORK:
        return f"Calls per second of mode auto, divided by those of mode fork. {interval}"
    cell = [
        row
        for row in agent["rows"]
        if (row["kind"], row["harness"], row["split"], row["set"])
        == ("cell", harness, split, set_name)
    ]
    platform = next((row for row in cell if row["better_platform"]), None)
    ours = next((row for row in cell if row["role"] == "ours" and row["mode"] == mode), None)
    parts = [f"Calls per second, divided by those of the better platform backend. {interval}"]
    if platform and ours:
        parts.append(
            f"1,000 calls take {ours['ms_per_call']:.2f} s instead of "
            f"{platform['ms_per_call']:.2f} s."
        )
    if headroom := ratios.get(f"agent.headroom.{harness}.{split}.{set_name}"):
        share = ratio["value"] / headroom["value"]
        floor = f"a C loop that starts each program cold ({headroom['value']:.3f}×)"
        if share < 1:
            parts.append(f"That is {100 * share:.0f} % of {floor}.")
        else:
            parts.append(f"That is {share:.1f} times {floor}.")
    return " ".join(parts)


def _bar_figures(agent: Document) -> str:
    """The cells of each harness and set by split, and of each harness in one worker by set."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Row]]] = {}
    single: dict[str, dict[str, Mapping[str, Row]]] = {}
    for (harness, split, set_name), group in tables.cells(agent["rows"], "cell").items():
        without_floor = {name: row for name, row in group.items() if row["role"] != "floor"}
        found.setdefault((harness, set_name), {})[split] = without_floor
        if split == "1x16":
            single.setdefault(harness, {})[set_name] = group
    figures: list[str] = []
    for (harness, set_name), by_split in found.items():
        if len(by_split) > 1:
            caption = (
                f"{harness}, {tables.SET_NAMES.get(set_name, set_name)}: worker processes × calls "
                "in flight each; median of rounds, whiskers its 95 % interval."
            )
            name = f"split-{harness}-{set_name}"
            figures.append(page.figure(plots.split_bars(by_split, name), caption))
    for harness, by_set in single.items():
        caption = f"{harness}, one worker process, 16 in flight, by set of tools."
        figures.append(page.figure(plots.split_bars(by_set, f"single-{harness}"), caption))
    return "".join(figures)


def _tools(agent: Document) -> str:
    grid = tables.tool_grid(agent)
    if grid is None:
        return ""
    groups = {key[2]: group for key, group in tables.cells(agent["rows"], "tool").items()}
    dots = plots.tool_dots(groups, "tools")
    return (
        "<h2>Tool by tool</h2>"
        '<p class="note">Each tool alone, 16 in flight under plain asyncio: wall time divided by '
        "calls.</p>"
        + page.figure(dots, "Lower is better; lines are 95 % intervals.")
        + page.grid(grid)
    )


def _short(identifier: str) -> str:
    return identifier.removeprefix("agent.").removesuffix(".cold").replace(".", " ")


def _ratio_figure(suite: Document, verdicts: Mapping[str, bars.Verdict]) -> str:
    with_bars = {name: {"bar": verdict.bar} for name, verdict in verdicts.items()}
    of_cells = [
        ratio
        for ratio in suite["ratios"]
        if not ratio["id"].startswith("agent.tool.") and not ratio["id"].endswith(AUTO_VS_FORK)
    ]
    of_floor = [
        ratio for ratio in of_cells if ratio["id"].startswith(("agent.floor.", "agent.headroom."))
    ]
    figures: list[str] = []
    for part, caption in (
        ([ratio for ratio in of_cells if ratio not in of_floor], CAPTIONS.get(suite["suite"], "")),
        (of_floor, FLOOR_CAPTION),
    ):
        if part:
            labels = [_short(ratio["id"]) for ratio in part]
            name = f"ratios-{suite['suite']}-{len(figures)}"
            svg = plots.ratio_dots(part, with_bars, labels, name)
            figures.append(
                page.figure(svg, f"{caption} Dots are medians, bands intervals.".strip())
            )
    return "".join(figures)


def _ratio_table(suite: Document) -> str:
    lines = [
        [
            f"<code>{escape(ratio['id'])}</code>",
            *ratio_figure(ratio),
            escape(ratio.get("meaning", "")),
        ]
        for ratio in suite["ratios"]
    ]
    return page.table(("Ratio", "value", "low – high", "meaning"), lines, numbers=(1, 2))


def _bars_table(verdicts: Sequence[bars.Verdict]) -> str:
    lines: list[list[str]] = []
    missing = [verdict.id for verdict in verdicts if verdict.ratio is None]
    for verdict in verdicts:
        ratio = verdict.ratio
        if ratio is None:
            continue
        sign = {"<=": "≤", ">=": "≥"}[verdict.op]
        state = verdict.status
        lines.append(
            [
                f"<code>{escape(verdict.id)}</code><br>{escape(verdict.text)}",
                f"{sign} {verdict.bar:g}",
                *ratio_figure(ratio),
                f'<span class="{state.replace(" ", "-")}">{state}</span>',
            ]
        )
    content = ""
    if lines:
        content = page.table(("What", "bar", "found", "low – high", ""), lines, numbers=(1, 2, 3))
    if missing:
        content += page.details(f"{len(missing)} bars not measured here", page.bullets(missing))
    return content


def _plain_rows(rows: Sequence[Row]) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [[escape(str(row.get(key, ""))) for key in keys] for row in rows]
    return page.table(keys, lines)


def _other_suite(suite: Document, verdicts: Mapping[str, bars.Verdict]) -> str:
    if suite["suite"] == "warm":
        return warm_part.render(suite, verdicts, _ratio_table(suite))
    parts = [
        f"<h2>Suite: {escape(suite['suite'])}</h2>",
        _ratio_figure(suite, verdicts),
        _ratio_table(suite),
    ]
    if suite.get("rows"):
        parts.append(page.details(f"{len(suite['rows'])} rows", _plain_rows(suite["rows"])))
    parts.append(page.details("machine", page.facts(suite.get("machine", {}))))
    return "".join(parts)


def _cautions(machine: Mapping[str, Any]) -> list[str]:
    cautions: list[str] = []
    if machine.get("scale") != "full":
        cautions.append(SHORT_RUN)
    if machine_is_busy(machine):
        cautions.append(BUSY.format(share=machine["busy_before"]))
    return cautions


def _agent_parts(agent: Document, verdicts: Mapping[str, bars.Verdict]) -> list[str]:
    machine = agent["machine"]
    calls = sum(row["calls"] for row in agent["rows"])
    return [
        "<h1>Real tools, started thousands of times</h1>",
        f'<p class="lead">{calls:,} timed calls of rg, git, sed, python, node, bash and others, by '
        "AutoGen Core and by plain asyncio. Every exit code and every byte of output was compared "
        f"with a reference. {escape(str(machine.get('date', '')))}</p>",
        *(f'<p class="note notice">{escape(text)}</p>' for text in _cautions(machine)),
        _headlines(agent),
        "<h2>The RFC’s table</h2>",
        '<p class="note">Platform is the better platform backend in that cell (asyncio exec with '
        "pidfd watching, or subprocess.run in threads), chosen by calls per second over the whole "
        "cell. Backends alternate on the same slices; Delta is the median over rounds. C floor is "
        "the advantage of a C loop without a harness over the platform, about the most that a cold "
        "launcher can reach. The last column is the figure that the kernel RFC reported for its "
        "own system call, on another machine.</p>",
        page.grid(tables.workload_grid(agent), tight=True),
        _bar_figures(agent),
        "<h2>Ratios with intervals</h2>" if agent["ratios"] else "",
        _ratio_figure(agent, verdicts),
        _tools(agent),
    ]


def render(suites: Sequence[Document], bar_rows: Sequence[Row]) -> str:
    """Returns the page for these suites."""
    found = bars.judge(bar_rows, [ratio for suite in suites for ratio in suite["ratios"]])
    verdicts = {verdict.id: verdict for verdict in found}
    agent = next((suite for suite in suites if suite["suite"] == "agent"), None)
    parts = _agent_parts(agent, verdicts) if agent else ["<h1>spawnfd benchmarks</h1>"]
    parts += [_other_suite(suite, verdicts) for suite in suites if suite is not agent]
    parts.append(
        page.details("The figures against the targets of this project", _bars_table(found))
    )
    if agent:
        machine = agent["machine"]
        parts += [
            "<h2>What this does not measure</h2>",
            page.bullets(NOT_MEASURED),
            "<h2>Machine and command</h2>",
            f"<p><code>{escape(str(machine.get('command', '')))}</code></p>",
            page.facts({key: value for key, value in machine.items() if key != "command"}),
            page.details("All ratios", _ratio_table(agent)),
            page.details(
                "All rows",
                _plain_rows(
                    [
                        {k: v for k, v in row.items() if k != "round_seconds"}
                        for row in agent["rows"]
                    ]
                ),
            ),
        ]
    return page.document("spawnfd: agent tools", "\n".join(parts))


def write(folder: Path) -> Path:
    """Reads the suites of a folder, and writes agent.html there."""
    suites = read_suites(folder)
    if not suites:
        raise BenchError(f"no results in {folder}; run the benchmark first")
    path = folder / "agent.html"
    path.write_text(render(suites, bars.load()), encoding="utf-8")
    return path
