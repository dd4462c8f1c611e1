# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

from common import bars
from common.definitions import UNFILTERED
from common.tables import Row, by_call, show_ratios

# The end of the ids of ratios that the table shows next to a ratio with a bar.
BESIDE = ".pidfd_watcher"


def time_table(rows: Sequence[Row]) -> Table:
    """Wall microseconds per call by tool and method; also p50 and stall where measured."""
    titles, calls = by_call(rows)
    table = Table("", *(Column(title, justify="right") for title in titles))
    for call, by_method in calls.items():
        labels = {"us_per_call": call, "us_p50": "p50", "late_us_p99.9": "late by, p99.9"}
        for figure, label in labels.items():
            values = [row.get(figure) for row in by_method]
            if any(value is not None for value in values):
                table.add_row(label, *("" if v is None else f"{v:,.0f}" for v in values))
    return table


def tool_table(ratios: Sequence[Row]) -> Table:
    """The ratios that exist for every tool."""
    found = {(ratio["rule"], ratio["filter"], ratio["call"]): ratio for ratio in ratios}
    calls = list(dict.fromkeys(ratio["call"] for ratio in ratios))
    title = "Ratios by tool, with 95 % intervals"
    table = Table("Ratio", *calls, title=title, title_justify="left")
    for rule, filter_name in dict.fromkeys((rule, name) for rule, name, _ in found):
        cells = (found.get((rule, filter_name, call)) for call in calls)
        suffix = "" if filter_name == UNFILTERED else f".{filter_name}"
        table.add_row(
            rule + suffix,
            *(f"{c['value']:.2f} ({c['low']:.2f}-{c['high']:.2f})" if c else "" for c in cells),
        )
    return table


def show(titles: Mapping[str, str], console: Console, document: Row) -> None:
    """Prints the tables, those of cells below their titles."""
    for filter_name in dict.fromkeys(row["filter"] for row in document["rows"]):
        suffix = "" if filter_name == UNFILTERED else f", under {filter_name}'s profile"
        for name, title in titles.items():
            of_cell = (name, filter_name)
            rows = [row for row in document["rows"] if (row["cell"], row["filter"]) == of_cell]
            if rows:
                console.print(f"us per captured call, {title}{suffix}", highlight=False)
                console.print(time_table(rows))
    ratios = document["ratios"]
    verdicts = bars.verdicts(ratios)
    by_tool = [ratio for ratio in ratios if "{call}" in ratio["rule"]]
    if by_tool:
        console.print(tool_table(by_tool))
    barred = [
        ratio
        for ratio in ratios
        if "{call}" not in ratio["rule"]
        or ratio["rule"].format(call=ratio["call"]).removesuffix(BESIDE) in verdicts
    ]
    show_ratios(console, document, barred)
