# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from common import bars
from common.definitions import UNFILTERED
from common.tables import Figure, Grid, Row, call_grid, ratio_figure, show_ratios

# The end of the ids of ratios that the table shows next to a ratio with a bar.
BESIDE = ".pidfd_watcher"


def _figure(row: Row) -> Figure:
    """Returns the us of a call; beside it the p50 and the stall, where they were measured."""
    small = []
    if "us_p50" in row:
        small.append(f"p50 {row['us_p50']:,.0f}")
    if "late_us_p99.9" in row:
        small.append(f"late by {row['late_us_p99.9']:,.0f}, p99.9")
    return f"{row['us_per_call']:,.0f}", ", ".join(small)


def tool_grid(ratios: Sequence[Row]) -> Grid:
    """Returns the ratios that exist for every tool."""
    found = {(ratio["rule"], ratio["filter"], ratio["call"]): ratio for ratio in ratios}
    calls = list(dict.fromkeys(ratio["call"] for ratio in ratios))
    lines: list[list[Figure]] = []
    for rule, filter_name in dict.fromkeys((rule, name) for rule, name, _ in found):
        suffix = "" if filter_name == UNFILTERED else f".{filter_name}"
        cells = (found.get((rule, filter_name, call)) for call in calls)
        lines.append([(rule + suffix, ""), *map(ratio_figure, cells)])
    return Grid("Ratios by tool, with 95 % intervals", ["Ratio", *calls], lines)


def show(titles: Mapping[str, str], console: Console, document: Row) -> None:
    """Prints the tables, those of cells below their titles."""
    for filter_name in dict.fromkeys(row["filter"] for row in document["rows"]):
        suffix = "" if filter_name == UNFILTERED else f", under {filter_name}'s profile"
        for name, title in titles.items():
            of_cell = (name, filter_name)
            rows = [row for row in document["rows"] if (row["cell"], row["filter"]) == of_cell]
            if rows:
                what = f"us per captured call, {title}{suffix}"
                console.print(call_grid(what, rows, _figure).for_terminal())
    ratios = document["ratios"]
    verdicts = bars.verdicts(ratios)
    by_tool = [ratio for ratio in ratios if "{call}" in ratio["rule"]]
    if by_tool:
        console.print(tool_grid(by_tool).for_terminal())
    barred = [
        ratio
        for ratio in ratios
        if "{call}" not in ratio["rule"]
        or ratio["rule"].format(call=ratio["call"]).removesuffix(BESIDE) in verdicts
    ]
    show_ratios(console, document, barred)
