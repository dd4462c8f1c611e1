# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes launch.json and snapshot.json from samples, and prints the tables."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import fmean, median_low

from rich.console import Console
from rich.table import Table

from common import session
from common.session import Row
from common.stats import pooled_ratio, quantile
from common.tables import show_ratios

from .launch import Samples
from .worker import Definitions, Key

UNITS = {"parallel": "spawns/s", "busy_share": "% of all CPUs"}
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"median": median_low, "mean": fmean}
INTERVAL = "95 % bootstrap interval over rounds"


def ratios_of(
    suite: str, definitions: Definitions, samples: Samples
) -> tuple[list[Row], list[str]]:
    """Returns the suite's ratios, and the ids of those without samples of one of their series."""
    ratios: list[Row] = []
    missing: list[str] = []
    for ratio in definitions["ratio"]:
        if not ratio.id.startswith(f"{suite}."):
            continue
        over, under = samples.get(ratio.over), samples.get(ratio.under)
        if over and under:
            found = pooled_ratio(over, under, STATISTICS[ratio.statistic])
            ratios.append({"id": ratio.id, **found.ratio(), "meaning": ratio.meaning})
        else:
            missing.append(ratio.id)
    return ratios, missing


def rows_of(definitions: Definitions, samples: Samples) -> list[Row]:
    """Returns one row for each series, in the order of the definitions."""
    parents = [entry["name"] for entry in definitions["parent"]]
    methods = [entry["name"] for entry in definitions["method"]]

    def order(key: Key) -> tuple[object, ...]:
        parent = parents.index(key.parent) if key.parent in parents else -1
        method = methods.index(key.method) if key.method in methods else -1
        return key.suite, key.filter != "none", parent, key.program, key.search, method

    rows: list[Row] = []
    for key in sorted(samples, key=order):
        every = [sample for one in samples[key] for sample in one]
        rows.append(
            {
                **asdict(key),
                "unit": UNITS.get(key.suite, "us"),
                "n": len(every),
                "min": min(every),
                "median": median_low(every),
                "mean": fmean(every),
                "p99": quantile(every, 0.99),
                "p99.9": quantile(every, 0.999),
            }
        )
    return rows


def suite(name: str, definitions: Definitions, samples: Samples, machine: Row, quick: bool) -> Row:
    """Returns the content of a suite's file."""
    ratios, missing = ratios_of(name, definitions, samples)
    rows = rows_of(definitions, samples)
    return session.suite(name, machine, ratios, rows, INTERVAL, quick=quick, missing=missing)


def _rows_table(title: str, rows: Sequence[Row]) -> Table:
    figures = ("n", "min", "median", "mean", "p99", "p99.9")
    names = ("parent", "program", "search", "method")
    table = Table(*names, *figures, title=title, title_justify="left")
    for row in rows:
        search = "PATH" if row["search"] else "-"
        table.add_row(
            *(search if name == "search" else row[name] for name in names),
            *(f"{row[name]:,.1f}" if name != "n" else str(row[name]) for name in figures),
        )
    return table


def show(console: Console, document: Row) -> None:
    """Prints the tables."""
    titles: dict[str, list[Row]] = {}
    for row in document["rows"]:
        title = f"{row['suite']}, filter {row['filter']}, {row['unit']}"
        titles.setdefault(title, []).append(row)
    for title, rows in titles.items():
        console.print(_rows_table(title, rows))
    show_ratios(console, document)
    for id_ in document["missing"]:
        console.print(f"missing: {id_}", style="yellow", highlight=False)
