# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables for the terminal."""

from collections.abc import Mapping

from rich.console import Console

from common.tables import Figure, Row, call_grid, show_ratios


def _figure(row: Row) -> Figure:
    """Returns the us of a call; beside it the time that the call holds the thread, and the gap."""
    small = []
    if "held_us_p50" in row:
        small.append(f"holds {row['held_us_p50']:,.0f}")
    if "gap_ms_max" in row:
        small.append(f"longest gap {row['gap_ms_max']:,.1f} ms")
    return f"{row.get('us_per_call', row.get('us_p50')):,.0f}", ", ".join(small)


def show(titles: Mapping[str, str], console: Console, document: Row) -> None:
    """Prints the tables, those of cells below their titles."""
    for name, title in titles.items():
        if rows := [row for row in document["rows"] if row["cell"] == name]:
            console.print(call_grid(f"us per captured call, {title}", rows, _figure).for_terminal())
    show_ratios(console, document)
