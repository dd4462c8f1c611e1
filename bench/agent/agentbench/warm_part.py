# SPDX-License-Identifier: MIT OR Apache-2.0
"""The page's part about parked programs, from warm.json."""

from collections.abc import Mapping, Sequence
from html import escape

from common.bars import Verdict
from common.tables import Row, call_grid, warm_figure

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
            times = call_grid(title, rows, warm_figure)
            parts += [f"<h3>{escape(title)}</h3>", page.grid(times, tight=True)]
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
