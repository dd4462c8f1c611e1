# SPDX-License-Identifier: MIT OR Apache-2.0
"""The figures for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from common import bars

Row = Mapping[str, Any]


def figures(row: Row) -> str:
    """What a table says of a call by a method."""
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
    """p50 and p99 in microseconds, or calls per second, by call and method; CPU time below."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    methods = {row["method"]: row["title"] for row in rows}
    for method_title in methods.values():
        table.add_column(method_title, justify="right")
    found = {(row["call"], row["method"]): row for row in rows}
    for call in dict.fromkeys(row["call"] for row in rows):
        table.add_row(call, *(figures(found[call, method]) for method in methods))
        cpu = (f"{found[call, method]['cpu_us_per_call']:,.0f}" for method in methods)
        table.add_row("  CPU us", *cpu, style="dim")
    return table


def ratio_table(ratios: Sequence[Row]) -> Table:
    """The ratios, with their bars."""
    verdicts = {verdict.id: verdict for verdict in bars.judge(bars.load(), ratios)}
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


def show(console: Console, document: Row, titles: Mapping[str, str]) -> None:
    """Prints what was found."""
    for name, title in titles.items():
        rows = [row for row in document["rows"] if row["cell"] == name]
        if rows:
            unit = "calls per second" if "calls_per_s" in rows[0] else "us a call, p50 / p99"
            console.print(cell_table(rows, f"{unit}: {title}"))
    console.print(ratio_table(document["ratios"]))
    for what, why in document["left_out"].items():
        console.print(f"left out: {what}: {why}", style="yellow", highlight=False)
