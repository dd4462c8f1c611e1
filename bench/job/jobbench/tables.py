# SPDX-License-Identifier: MIT OR Apache-2.0
"""The figures for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from common import bars

from .definitions import UNFILTERED, Cell

Row = Mapping[str, Any]

# Ends the ids of ratios that stand beside one with a bar.
BESIDE = ".pidfd_watcher"


def time_table(rows: Sequence[Row]) -> Table:
    """Wall microseconds per call by tool and method; the stall's tail beside it where measured."""
    table = Table()
    table.add_column("")
    methods = {row["method"]: row["title"] for row in rows}
    for method_title in methods.values():
        table.add_column(method_title, justify="right")
    found = {(row["call"], row["method"]): row for row in rows}
    for call in dict.fromkeys(row["call"] for row in rows):
        for figure in ("us_per_call", "late_us_p99.9"):
            values = [found[call, method].get(figure) for method in methods]
            if any(value is not None for value in values):
                label = call if figure == "us_per_call" else "late by, p99.9"
                table.add_row(label, *("" if v is None else f"{v:,.0f}" for v in values))
    return table


def tool_table(ratios: Sequence[Row]) -> Table:
    """The ratios that are taken for every tool."""
    found = {(ratio["rule"], ratio["filter"], ratio["call"]): ratio for ratio in ratios}
    calls = list(dict.fromkeys(ratio["call"] for ratio in ratios))
    table = Table(title="Ratios by tool, with 95 % intervals", title_justify="left")
    for name in ("Ratio", *calls):
        table.add_column(name)
    for rule, filter_name in dict.fromkeys((rule, name) for rule, name, _ in found):
        cells = (found.get((rule, filter_name, call)) for call in calls)
        suffix = "" if filter_name == UNFILTERED else f".{filter_name}"
        table.add_row(
            rule + suffix,
            *(f"{c['value']:.2f} ({c['low']:.2f}-{c['high']:.2f})" if c else "" for c in cells),
        )
    return table


def bar_table(ratios: Sequence[Row], verdicts: Mapping[str, bars.Verdict]) -> Table:
    """The ratios that have a bar, or are taken once."""
    table = Table(title="Ratios and bars", title_justify="left")
    for name in ("Ratio", "Value", "95 %", "Bar", "Verdict"):
        table.add_column(name)
    for ratio in ratios:
        verdict = verdicts.get(ratio["id"])
        table.add_row(
            ratio["id"],
            f"{ratio['value']:.3f}",
            f"{ratio['low']:.3f} .. {ratio['high']:.3f}",
            f"{verdict.op} {verdict.bar:.2f}" if verdict else "",
            verdict.status if verdict else "",
        )
    return table


def show(console: Console, document: Row, cells: Sequence[Cell]) -> None:
    """Prints what was found."""
    for filter_name in dict.fromkeys(row["filter"] for row in document["rows"]):
        for cell in cells:
            rows = [
                row
                for row in document["rows"]
                if (row["cell"], row["filter"]) == (cell.name, filter_name)
            ]
            if rows:
                suffix = "" if filter_name == UNFILTERED else f", under {filter_name}'s profile"
                console.print(f"us per captured call, {cell.title}{suffix}", highlight=False)
                console.print(time_table(rows))
    ratios = document["ratios"]
    verdicts = {verdict.id: verdict for verdict in bars.judge(bars.load(), ratios)}
    by_tool = [ratio for ratio in ratios if "{call}" in ratio["rule"]]
    if by_tool:
        console.print(tool_table(by_tool))
    barred = [
        ratio
        for ratio in ratios
        if "{call}" not in ratio["rule"]
        or ratio["rule"].format(call=ratio["call"]).removesuffix(BESIDE) in verdicts
    ]
    console.print(bar_table(barred, verdicts))
    for what, why in document["left_out"].items():
        console.print(f"left out: {what}: {why}", style="yellow", highlight=False)
