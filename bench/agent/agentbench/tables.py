# SPDX-License-Identifier: MIT OR Apache-2.0
"""The RFC's table, the printf case and the per-tool table, for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from common.floor import FLOOR

Row = Mapping[str, Any]
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


def _delta(ratios: Mapping[str, Row], row: Row) -> str:
    ratio = ratios.get(ratio_id(row))
    if ratio is None:
        return "-"
    return f"{percent(ratio['value'])} ({percent(ratio['low'])} .. {percent(ratio['high'])})"


def workload_table(document: Mapping[str, Any]) -> Table:
    """One line for each cell and backend of ours, in the RFC's columns."""
    ratios = {ratio["id"]: ratio for ratio in document["ratios"]}
    table = Table(title="Agent tools: calls per second, 16 in flight", title_justify="left")
    for name in ("Harness", "Workload"):
        table.add_column(name)
    for name in ("Calls", "platform", "spawnfd", "time_s a/b", "Delta (95 %)", "C floor", "RFC"):
        table.add_column(name, justify="right")
    last = ""
    for (harness, split, set_name), group in cells(document["rows"], "cell").items():
        platform = better(group)
        if platform is None:
            continue
        if last and harness != last:
            table.add_section()
        last = harness
        way = platform["backend"]
        rfc = f"+{RFC_DELTA[split]:.2f}%" if (harness, set_name) == ("autogen", "all") else ""
        if set_name == "printf":
            rfc = f"~+{RFC_PRINTF_DELTA:.0f}%"
        floor = headroom(ratios, harness, split, set_name)
        name = f"{split} {SET_NAMES.get(set_name, set_name)}"
        rate = f"{platform['calls_per_s']:,.1f} {way}"
        if not ours(group):
            calls, seconds = f"{platform['calls']:,}", f"{platform['seconds']:.2f}/-"
            table.add_row(harness, name, calls, rate, "-", seconds, "-", floor, rfc)
        for row in ours(group):
            table.add_row(
                harness,
                name,
                f"{row['calls']:,}",
                rate,
                f"{row['calls_per_s']:,.1f}",
                f"{platform['seconds']:.2f}/{row['seconds']:.2f}",
                _delta(ratios, row),
                floor,
                rfc,
            )
    return table


def tool_table(document: Mapping[str, Any]) -> Table | None:
    """Returns a table of milliseconds per call, tool by tool, 16 in flight under plain asyncio."""
    groups = cells(document["rows"], "tool")
    if not groups:
        return None
    ratios = {ratio["id"]: ratio for ratio in document["ratios"]}
    backends = list(dict.fromkeys(name for group in groups.values() for name in group))
    table = Table(
        title="Each tool alone: wall milliseconds per call, asyncio 1x16", title_justify="left"
    )
    table.add_column("Tool")
    for name in backends:
        table.add_column("C floor" if name == FLOOR else name, justify="right")
    table.add_column("Delta (95 %)", justify="right")
    for (_, _, tool), group in groups.items():
        delta = " ".join(_delta(ratios, row) for row in ours(group))
        values = [f"{group[name]['ms_per_call']:.3f}" if name in group else "" for name in backends]
        table.add_row(tool, *values, delta or "-")
    return table


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Prints the tables."""
    console.print(workload_table(document))
    tools = tool_table(document)
    if tools is not None:
        console.print(tools)
    floors = [ratio for ratio in document["ratios"] if ratio["id"].startswith("agent.floor.")]
    for ratio in floors:
        console.print(
            f"{ratio['id']}: {ratio['value']:.3f} ({ratio['low']:.3f} .. {ratio['high']:.3f})",
            highlight=False,
        )
    console.print(
        "platform is the better platform backend in that cell; Delta is the median over "
        "interleaved rounds with its 95 % bootstrap interval; C floor is the advantage of a C "
        "loop without a harness over the platform, about the most that a cold launcher can reach.",
        highlight=False,
    )
