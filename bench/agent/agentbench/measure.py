# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the cells of a plan, with backends interleaved in each round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from common.definitions import Call, Terms
from common.measure import Block, Turn, fleets, interleave
from common.presets import Definitions
from common.progress import Progress
from common.session import Setting
from common.stats import round_order

from .backends import BACKENDS, DEPTHS
from .plan import Cell, make_rounds

WARM_UP_CALLS = 32


@dataclass(frozen=True)
class CellResult:
    """A measured cell, with the rounds of each backend."""

    cell: Cell
    series: dict[str, list[Block]]


def rounds_of(cell: Cell, members: Sequence[str]) -> Iterator[list[Turn]]:
    """Yields the rounds, the warm-up first. In each, all backends run the same slice."""
    warm_up = make_rounds(members, max(WARM_UP_CALLS, len(members), cell.workers), 1)
    for number, part in enumerate([*warm_up, *make_rounds(members, cell.calls, cell.rounds)]):
        order = round_order(cell.backends, number)
        yield [(cell.set_name, backend, part) for backend in order]


def command(setting: Setting, cell: Cell, backend: str) -> list[str]:
    """Returns the command of a backend's worker."""
    programs = {one.argv[0]: one.argv for one in setting.references.values()}
    depth = DEPTHS.get(backend, 0)
    parks = tuple(Call(name, argv, depth=depth) for name, argv in programs.items())
    terms = Terms(BACKENDS[backend], cell.in_flight, parks=parks, harness=cell.harness)
    return setting.command("agentbench", f"{cell.harness}-{cell.in_flight}", terms)


def measure(
    plan: Sequence[Cell], definitions: Definitions, setting: Setting, progress: Progress
) -> list[CellResult]:
    """Runs the whole plan. Cells of the same harness and split have the same workers."""
    results: list[CellResult] = []
    for (harness, split), group in groupby(plan, key=lambda cell: (cell.harness, cell.split)):
        cells = list(group)
        first = cells[0]
        commands = {backend: command(setting, first, backend) for backend in first.backends}
        with fleets("agent", f"{harness} {split}", commands, first.workers) as running:
            for cell in cells:
                progress.begin(cell.title)
                rounds = rounds_of(cell, definitions.members(cell.set_name))
                blocks = interleave(running, rounds, progress)
                series = {name: blocks[cell.set_name, name] for name in cell.backends}
                results.append(CellResult(cell, series))
                progress.end("done")
    return results
