# SPDX-License-Identifier: MIT OR Apache-2.0
"""The page's part about parked programs, from warm.json."""

from collections.abc import Mapping, Sequence
from html import escape

from common.bars import Verdict
from common.tables import Row, by_call

from . import page, plots

TITLES = {
    "latency": "One in flight, 50 ms between calls: microseconds, p50 and p99",
    "latency_async": "The same under asyncio",
    "entry": "Python programs with their imports made ahead, 200 ms between calls",
    "throughput": "16 in flight: calls per second",
    "load30": "Poisson arrivals, 30 % of the machine: microseconds, p50, p99 and p99.9",
    "load70": "The same with 70 % of the machine",
}
NOT_MEASURED = (
    "Cold calls: the first call after a pause longer than `idle`, after an upgrade, or with other "
    "values of variables that the program has read. No measured call is of this kind.",
    "Load by other programs: the timed calls themselves put the load on the machine. With 16 calls "
    "in flight the machine has no CPU time to spare, and the starts of a reserve are cold.",
    "The reserve uses CPU time between the calls. The tables show this time.",
    "Private memory is measured while a process is parked. Shared memory (libraries, and in mode "
    "fork the unmodified pages) is not counted.",
    "Programs that load much after main(): a Python program that imports for a second still does, "
    "unless its modules are preimported.",
)


def _cell(row: Row) -> str:
    share = row["warm_share"]
    small = []
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
    return f"{big}<small>{escape(', '.join(small))}</small>"


def _times(rows: Sequence[Row]) -> str:
    titles, calls = by_call(rows)
    lines = [[escape(call), *map(_cell, by_method)] for call, by_method in calls.items()]
    headings = ("", *titles)
    return page.table(headings, lines, numbers=range(1, len(headings)), tight=True)


def _memory(rows: Sequence[Row]) -> str:
    lines = [
        [
            escape(row["call"]),
            escape(row["mode"]),
            *(
                f"{max(kib[kind] for kib in row['kib']) / 1024:,.2f}"
                for kind in ("private", "pss", "rss")
            ),
        ]
        for row in rows
        if row["kib"]
    ]
    headings = ("Parked for", "mode", "private MiB", "proportional", "resident")
    return page.table(headings, lines, numbers=(2, 3, 4))


def _figure(suite: Row, verdicts: Mapping[str, Verdict], kind: str, caption: str) -> str:
    chosen = [
        ratio
        for ratio in suite["ratios"]
        if ratio["id"].startswith(f"warm.{kind}.") and ratio["id"].count(".") == 2
    ]
    if not chosen:
        return ""
    with_bars = {name: {"bar": verdict.bar} for name, verdict in verdicts.items()}
    svg = plots.ratio_dots(chosen, with_bars, [r["call"] for r in chosen], f"warm-{kind}")
    return page.figure(svg, caption)


def render(suite: Row, verdicts: Mapping[str, Verdict], ratio_table: str) -> str:
    """The part about warm starts, with `ratio_table` collapsed at its end."""
    parts = [
        "<h2>Warm starts</h2>",
        '<p class="note">The same call started cold, from a process parked for it (reserve), and '
        "from a parked process that forks (fork). Every answer was checked.</p>",
        _figure(suite, verdicts, "latency", "Cold over reserve, p50, one in flight with gaps."),
        _figure(suite, verdicts, "throughput", "Calls per second, fork over cold, 16 in flight."),
    ]
    for cell, title in TITLES.items():
        rows = [row for row in suite["rows"] if row["cell"] == cell]
        if rows:
            parts += [f"<h3>{escape(title)}</h3>", _times(rows)]
    memory = [row for row in suite["rows"] if row["cell"] == "memory"]
    if memory:
        parts += ["<h3>Memory of a parked process, the largest seen</h3>", _memory(memory)]
    left_out = [f"{what}: {why}" for what, why in suite.get("left_out", {}).items()]
    if left_out:
        parts += ["<h3>Left out</h3>", page.bullets(left_out)]
    parts += [
        page.details("What this does not measure", page.bullets(NOT_MEASURED)),
        page.details("All ratios of warm starts", ratio_table),
        page.details("machine", page.facts(suite.get("machine", {}))),
    ]
    return "".join(parts)
