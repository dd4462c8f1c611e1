# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tables that several suites print."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .bars import Verdict, verdicts

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


def show_ratios(console: Console, document: Row, shown: Sequence[Row] | None = None) -> None:
    """Prints the ratios (by default all) with their bars, and the parts that a suite left out."""
    found = verdicts(document["ratios"])
    console.print(bar_table(document["ratios"] if shown is None else shown, found))
    for id_, verdict in found.items():
        if verdict.ratio is None and id_.startswith(f"{document['suite']}."):
            console.print(f"not measured: {id_}", style="yellow", highlight=False)
    for what, why in document.get("left_out", {}).items():
        console.print(f"left out: {what}: {why}", style="yellow", highlight=False)
