# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

from common.tables import Row, by_call, show_ratios


def figures(row: Row) -> str:
    """Returns the text of a table's cell for a call by a method."""
    share = row["warm_share"]
    cold = (
        f" ({1 - share:.0%} cold)"
        if share is not None and row["mode"] != "cold" and share < 1
        else ""
    )
    if "calls_per_s" in row:
        return f"{row['calls_per_s']:,.0f}{cold}"
    return f"{row['us_p50']:,.0f} / {row['us_p99']:,.0f}{cold}"


def cell_table(rows: Sequence[Row], title: str) -> Table:
    """Returns a table of p50 and p99 in us, or calls per second, and CPU time."""
    titles, calls = by_call(rows)
    columns = (Column(method, justify="right") for method in titles)
    table = Table("", *columns, title=title, title_justify="left")
    for call, by_method in calls.items():
        table.add_row(call, *map(figures, by_method))
        cpu = (f"{row['cpu_us_per_call']:,.0f}" for row in by_method)
        table.add_row("  CPU us", *cpu, style="dim")
    return table


def show(titles: Mapping[str, str], console: Console, document: Row) -> None:
    """Prints the tables."""
    for name, title in titles.items():
        rows = [row for row in document["rows"] if row["cell"] == name]
        if rows:
            unit = "calls per second" if "calls_per_s" in rows[0] else "us a call, p50 / p99"
            console.print(cell_table(rows, f"{unit}: {title}"))
    show_ratios(console, document)
