# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables for the terminal."""

from collections.abc import Mapping

from rich.console import Console

from common.tables import Row, call_grid, show_ratios, warm_figure


def show(titles: Mapping[str, str], console: Console, document: Row) -> None:
    """Prints the tables."""
    for name, title in titles.items():
        rows = [row for row in document["rows"] if row["cell"] == name]
        if rows:
            unit = "calls per second" if "calls_per_s" in rows[0] else "us a call, p50"
            console.print(call_grid(f"{unit}: {title}", rows, warm_figure).for_terminal())
    show_ratios(console, document)
