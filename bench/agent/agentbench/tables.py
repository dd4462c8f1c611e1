# SPDX-License-Identifier: MIT OR Apache-2.0
"""The RFC's table, the printf case and the per-tool table, for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from common.tables import Figure, Grid, Row, ratio_figure

RFC_DELTA = {"1x16": 2.26, "2x8": 3.49, "4x4": 4.99, "8x2": 2.00}
RFC_PRINTF_DELTA = 14.0
SET_NAMES = {
    "all": "all 16 tools",
    "nonode": "15, no node",
    "nointerp": "14, no python/node",
    "printf": "printf alone",
}


def cells(rows: Sequence[Row], kind: str) -> dict[tuple[str, str, str], dict[str, Row]]:
    """Groups rows by (harness, split, set), then by backend, in the measured order."""
    grouped: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        if row["kind"] == kind:
            key = (row["harness"], row["split"], row["set"])
            grouped.setdefault(key, {})[row["backend"]] = row
    return grouped


def better(group: Mapping[str, Row]) -> Row | None:
    """Returns the row of the better platform backend."""
    return next((row for row in group.values() if row["better_platform"]), None)


def ours(group: Mapping[str, Row]) -> list[Row]:
    """Returns the rows of our backends."""
    return [row for row in group.values() if row["role"] == "ours"]


def ratio_id(row: Row) -> str:
    """Returns the id that results.py gives to the ratio of a row of ours."""
    if row["kind"] == "tool":
        return f"agent.tool.{row['set']}.{row['mode']}"
    return f"agent.{row['harness']}.{row['split']}.{row['set']}.{row['mode']}"


def headroom(ratios: Mapping[str, Row], harness: str, split: str, set_name: str) -> str:
    """Returns the C floor's advantage over the platform in this cell, if the floor ran there."""
    ratio = ratios.get(f"agent.headroom.{harness}.{split}.{set_name}")
    return percent(ratio["value"]) if ratio else ""


def percent(ratio: float) -> str:
    """Formats a ratio in the RFC's notation."""
    return f"{(ratio - 1) * 100:+.1f}%"


def _delta(ratio: Row | None) -> Figure:
    if ratio is None:
        return "-", ""
    low, high = percent(ratio["low"]), percent(ratio["high"])
    return percent(ratio["value"]), f"{low} .. {high}"


def _rfc_delta(harness: str, split: str, set_name: str) -> str:
    """Returns the difference that the RFC reported for a cell."""
    if set_name == "printf":
        return f"~+{RFC_PRINTF_DELTA:.0f}%"
    return f"+{RFC_DELTA[split]:.2f}%" if (harness, set_name) == ("autogen", "all") else ""


def workload_grid(document: Row) -> Grid:
    """Returns one line for each cell and backend of ours, in the RFC's columns."""
    ratios = {ratio["id"]: ratio for ratio in document["ratios"]}
    lines: list[list[Figure]] = []
    for (harness, split, set_name), group in cells(document["rows"], "cell").items():
        platform = better(group)
        if platform is None:
            continue
        candidates: list[Row | None] = [*ours(group)] or [None]
        for own in candidates:
            time = f"{own['seconds']:.2f}" if own else "-"
            lines.append(
                [
                    (f"{harness} {split}", SET_NAMES.get(set_name, set_name)),
                    (f"{platform['calls']:,}", ""),
                    (f"{platform['calls_per_s']:,.1f}", platform["backend"]),
                    (f"{own['calls_per_s']:,.1f}", own["mode"]) if own else ("-", ""),
                    (f"{platform['seconds']:.2f}/{time}", ""),
                    _delta(ratios.get(ratio_id(own)) if own else None),
                    (headroom(ratios, harness, split, set_name), ""),
                    (_rfc_delta(harness, split, set_name), ""),
                ]
            )
    headings = ["Workload", "Calls", "platform /s", "spawnfd /s", "time_s a/b", "Delta (95 %)"]
    title = "Agent tools: calls per second, 16 in flight"
    return Grid(title, [*headings, "C floor", "RFC"], lines)


def tool_grid(document: Row) -> Grid | None:
    """Returns milliseconds per call and ratios, tool by tool, 16 in flight under plain asyncio."""
    groups = cells(document["rows"], "tool")
    if not groups:
        return None
    ratios = {ratio["id"]: ratio for ratio in document["ratios"]}
    backends = list(dict.fromkeys(name for group in groups.values() for name in group))
    modes = list(dict.fromkeys(own["mode"] for group in groups.values() for own in ours(group)))
    lines: list[list[Figure]] = []
    for (_, _, tool), group in groups.items():
        times = (f"{group[name]['ms_per_call']:.3f}" if name in group else "" for name in backends)
        of_tool = (ratios.get(f"agent.tool.{tool}.{mode}") for mode in modes)
        lines.append([(tool, ""), *((time, "") for time in times), *map(ratio_figure, of_tool)])
    headings = [*(f"{name} ms" for name in backends), *(f"ratio {mode}" for mode in modes)]
    title = "Each tool alone: wall milliseconds per call, asyncio 1x16"
    return Grid(title, ["Tool", *headings], lines)


def show(console: Console, document: Row) -> None:
    """Prints the tables."""
    console.print(workload_grid(document).for_terminal())
    tools = tool_grid(document)
    if tools is not None:
        console.print(tools.for_terminal(small=False))
    floors = [ratio for ratio in document["ratios"] if ratio["id"].startswith("agent.floor.")]
    for ratio in floors:
        console.print(f"{ratio['id']}: {' '.join(ratio_figure(ratio))}", highlight=False)
    console.print(
        "platform is the better platform backend in that cell; Delta is the median over "
        "interleaved rounds with its 95 % bootstrap interval; C floor is the advantage of a C "
        "loop without a harness over the platform, about the most that a cold launcher can reach.",
        highlight=False,
    )
