# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ratios of series of samples, for benchmarks whose rounds have one sample of each series."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .stats import estimate, round_ratios

Row = dict[str, Any]
# Parent, scenario and method.
Cell = tuple[str, str, str]
# The samples of each part of a start, by cell: "first" until the first instruction, and "whole".
Samples = dict[Cell, dict[str, list[float]]]


@dataclass(frozen=True)
class Ratio:
    """The ratio `over` / `under` of two methods for one parent and scenario.

    Attributes:
        part: The part of a start that the ratio compares.
        base: The parent of `under`, if it is another.
    """

    id: str
    parent: str
    scenario: str
    over: str
    under: str
    meaning: str
    part: str = "first"
    base: str = ""

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """The names of the two cells."""
        return (
            (self.parent, self.scenario, self.over),
            (self.base or self.parent, self.scenario, self.under),
        )


def ratio_rows(
    ratios: Iterable[Ratio], samples: Mapping[Cell, Mapping[str, list[float]]]
) -> list[Row]:
    """Returns the ratios for which both methods were measured."""
    rows: list[Row] = []
    for ratio in ratios:
        over, under = (samples.get(cell) for cell in ratio.cells)
        if over and under:
            found = estimate(round_ratios(under[ratio.part], over[ratio.part]))
            count = len(over[ratio.part])
            row = {"id": ratio.id, **found.ratio(), "meaning": ratio.meaning}
            rows.append(row | {"samples": count})
    return rows
