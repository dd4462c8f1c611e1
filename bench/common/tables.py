# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tables that several suites print."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .bars import Verdict

Row = Mapping[str, Any]


def by_call(rows: Sequence[Row]) -> tuple[list[str], dict[str, list[Row]]]:
    """Returns the methods' titles, and the rows of each call in the methods' order."""
    titles = {row["method"]: row["title"] for row in rows}
    found = {(row["call"], row["method"]): row for row in rows}
    calls = dict.fromkeys(row["call"] for row in rows)
    return list(titles.values()), {call: [found[call, name] for name in titles] for call in calls}


def bar_table(ratios: Sequence[Row], verdicts: Mapping[str, Verdict]) -> Table:
    """Returns a table of the ratios and their bars."""
    headings = ("Ratio", "Value", "95 %", "Bar", "Verdict")
    table = Table(*headings, title="Ratios and bars", title_justify="left")
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


def show_left_out(console: Console, document: Row) -> None:
    """Prints the parts that a suite left out, and the reasons."""
    for what, why in document["left_out"].items():
        console.print(f"left out: {what}: {why}", style="yellow", highlight=False)
