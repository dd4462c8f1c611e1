# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the cells of a plan, with backends interleaved in each round."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from common.presets import Definitions
from common.progress import Progress
from common.session import Setting
from common.stats import round_order

from .calls import make_rounds
from .fleet import Fleet, Timing
from .plan import Cell

WARM_UP_CALLS = 32


@dataclass
class Series:
    """One backend's rounds in a cell."""

    timings: list[Timing] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(timing.calls for timing in self.timings)

    @property
    def seconds(self) -> list[float]:
        return [timing.seconds for timing in self.timings]

    @property
    def calls_per_s(self) -> float:
        return self.calls / sum(self.seconds)

    @property
    def cpu_ms_per_call(self) -> float:
        return 1e3 * sum(timing.cpu_seconds for timing in self.timings) / self.calls

    @property
    def started(self) -> Counter[str]:
        return sum((timing.started for timing in self.timings), Counter[str]())


@dataclass
class CellResult:
    """A measured cell."""

    cell: Cell
    series: dict[str, Series]


@contextmanager
def fleets(setting: Setting, cell: Cell) -> Iterator[dict[str, Fleet]]:
    """Yields workers for every backend of a harness and split. Always ends and reaps them."""
    running: dict[str, Fleet] = {}
    try:
        for backend in cell.backends:
            running[backend] = Fleet(setting, cell.harness, backend, cell.workers, cell.in_flight)
        for fleet in running.values():
            fleet.wait_ready()
        yield running
        for fleet in running.values():
            fleet.finish()
    finally:
        for fleet in running.values():
            fleet.abandon()


def measure_cell(
    cell: Cell, members: Sequence[str], running: dict[str, Fleet], progress: Progress
) -> CellResult:
    """Runs the same slice on every backend in each round, in a rotating order."""
    warm_up = make_rounds(members, max(WARM_UP_CALLS, len(members), cell.workers), 1)[0]
    for fleet in running.values():
        fleet.run(warm_up)
    result = CellResult(cell, {backend: Series() for backend in cell.backends})
    for number, part in enumerate(make_rounds(members, cell.calls, cell.rounds)):
        for backend in round_order(cell.backends, number):
            timing = running[backend].run(part)
            result.series[backend].timings.append(timing)
            progress.advance(timing.calls)
    return result


def measure(
    plan: Sequence[Cell], definitions: Definitions, setting: Setting, progress: Progress
) -> list[CellResult]:
    """Runs the whole plan."""
    results: list[CellResult] = []
    for _, group in groupby(plan, key=lambda cell: (cell.harness, cell.split)):
        cells = list(group)
        with fleets(setting, cells[0]) as running:
            for cell in cells:
                progress.begin(cell.title)
                result = measure_cell(cell, definitions.members(cell.set_name), running, progress)
                results.append(result)
                progress.end(
                    "  ".join(
                        f"{name} {series.calls_per_s:,.0f}/s"
                        for name, series in result.series.items()
                    )
                )
    return results
