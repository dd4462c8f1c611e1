# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cells and ratios of a definitions.toml. Workers import this module, so it imports little."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import BenchError

Scale = Literal["full", "quick"]


@dataclass(frozen=True)
class Cell:
    """The same calls by several methods."""

    name: str
    title: str
    in_flight: int
    methods: tuple[str, ...]
    blocks: Mapping[Scale, int]
    per_block: Mapping[Scale, int]


@dataclass(frozen=True)
class Rule:
    """The definition of a ratio of two methods of a cell."""

    id: str
    meaning: str
    cell: str
    over: str
    under: str


def check_known(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raises BenchError if a definition uses an unknown name."""
    unknown = set(names) - set(known)
    if unknown:
        raise BenchError(f"{what} names unknown {sorted(unknown)}")


def check_rules(file: str, rules: Iterable[Rule], cells: Iterable[Cell]) -> None:
    """Raises BenchError if a ratio uses methods that its cell does not measure."""
    methods = {cell.name: cell.methods for cell in cells}
    for rule in rules:
        if not {rule.over, rule.under} <= set(methods.get(rule.cell, ())):
            raise BenchError(f"{file}: ratio {rule.id}: no cell measures both of its methods")
