# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tables that several suites print."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from .bars import Verdict, verdicts

Row = Mapping[str, Any]


# A figure, and what is printed smaller beside it.
Figure = tuple[str, str]


@dataclass(frozen=True)
class Grid:
    """A table for the terminal and for the page. The first column has names."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Figure]]

    def for_terminal(self, *, small: bool = True) -> Table:
        """Returns the table for the terminal, if requested without what is printed smaller."""
        names, *figures = self.headings
        columns = (Column(heading, justify="right") for heading in figures)
        table = Table(names, *columns, title=self.title, title_justify="left")
        for row in self.rows:
            shown = (figure if small else figure[:1] for figure in row)
            table.add_row(*(" ".join(filter(None, figure)) for figure in shown))
        return table


def call_grid(title: str, rows: Sequence[Row], figure: Callable[[Row], Figure]) -> Grid:
    """Returns a grid with a line for each call, and a column for each method."""
    titles = {row["method"]: row["title"] for row in rows}
    found = {(row["call"], row["method"]): figure(row) for row in rows}
    calls = dict.fromkeys(row["call"] for row in rows)
    lines = [[(call, ""), *(found[call, name] for name in titles)] for call in calls]
    return Grid(title, ["", *titles.values()], lines)


def warm_figure(row: Row) -> Figure:
    """Returns calls per second or the p50 of a row of bench-warm; beside it, its other figures."""
    share, small = row["warm_share"], []
    if "calls_per_s" in row:
        big = f"{row['calls_per_s']:,.0f}"
    else:
        big = f"{row['us_p50']:,.0f}"
        small.append(f"p99 {row['us_p99']:,.0f}")
    if row.get("load"):
        small.append(f"p99.9 {row['us_p999']:,.0f}")
    small.append(f"CPU {row['cpu_us_per_call']:,.0f} us")
    if row["mode"] != "cold" and share is not None and share < 1:
        small.append(f"{1 - share:.0%} cold")
    return big, ", ".join(small)


def ratio_figure(ratio: Row | None) -> Figure:
    """Returns a ratio, and beside it its interval."""
    if ratio is None:
        return "", ""
    return f"{ratio['value']:.3f}", f"{ratio['low']:.3f} .. {ratio['high']:.3f}"


def bar_table(ratios: Sequence[Row], verdicts: Mapping[str, Verdict]) -> Table:
    """Returns a table of the ratios and their bars."""
    headings = ("Ratio", "Value", "95 %", "Bar", "Verdict")
    table = Table(*headings, title="Ratios and bars", title_justify="left")
    for ratio in ratios:
        verdict = verdicts.get(ratio["id"])
        table.add_row(
            ratio["id"],
            *ratio_figure(ratio),
            f"{verdict.op} {verdict.bar:.2f}" if verdict else "",
            verdict.status if verdict else "",
        )
    return table


def show_ratios(console: Console, document: Row, shown: Sequence[Row] | None = None) -> None:
    """Prints the ratios (by default all) with their bars, and the parts that a suite left out."""
    found = verdicts(document["ratios"])
    console.print(bar_table(document["ratios"] if shown is None else shown, found))
    for id_, verdict in found.items():
        if verdict.ratio is None and id_.startswith(f"{document['suite']}."):
            console.print(f"not measured: {id_}", style="yellow", highlight=False)
    show_left_out(console, document)


def show_left_out(console: Console, document: Row) -> None:
    """Prints the parts that a suite left out, and the reasons."""
    for what, why in document.get("left_out", {}).items():
        console.print(f"left out: {what}: {why}", style="yellow", highlight=False)
