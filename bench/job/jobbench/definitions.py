# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads definitions.toml."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common.errors import BenchError

DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
UNFILTERED = "none"
PLAIN = "true"
Scale = Literal["full", "quick"]


@dataclass(frozen=True)
class Method:
    """A way to make a call, and the event loop it needs, if any."""

    name: str
    title: str
    way: str
    loop: str | None = None
    watcher: str | None = None

    def exists(self) -> bool:
        """Whether this Python has it: 3.12 ended the choice of a watcher, and has pidfds."""
        return self.watcher is None or sys.version_info < (3, 12)


@dataclass(frozen=True)
class Parent:
    """What a calling process carries."""

    name: str
    touch_mib: int = 0
    descriptors: int = 0
    library_first: bool = False


@dataclass(frozen=True)
class Cell:
    """The same calls by several methods."""

    name: str
    title: str
    calls: str
    in_flight: int
    methods: tuple[str, ...]
    blocks: Mapping[Scale, int]
    per_block: Mapping[Scale, int]
    parent: str = "small"
    tick_us: int = 0


@dataclass(frozen=True)
class Rule:
    """How a ratio is made of a cell; one for each call if the id has {call}, else for PLAIN."""

    id: str
    meaning: str
    cell: str
    over: str
    under: str
    of: Literal["time", "stall"] = "time"


@dataclass(frozen=True)
class Definitions:
    """definitions.toml, as read."""

    methods: Mapping[str, Method]
    parents: Mapping[str, Parent]
    filters: Sequence[str]
    cells: Sequence[Cell]
    rules: Sequence[Rule]


def load(path: Path = DEFINITIONS_FILE) -> Definitions:
    """Reads the definitions; every name in them must be defined."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    found = Definitions(
        methods={entry["name"]: Method(**entry) for entry in data["method"]},
        parents={entry["name"]: Parent(**entry) for entry in data["parent"]},
        filters=data["filters"]["names"],
        cells=[Cell(**{**entry, "methods": tuple(entry["methods"])}) for entry in data["cell"]],
        rules=[Rule(**entry) for entry in data["ratio"]],
    )
    cells = {cell.name: cell for cell in found.cells}
    for cell in found.cells:
        unknown = set(cell.methods) - found.methods.keys() | {cell.parent} - found.parents.keys()
        if unknown:
            raise BenchError(f"{path.name}: cell {cell.name} names unknown {sorted(unknown)}")
    for rule in found.rules:
        if rule.cell not in cells or not {rule.over, rule.under} <= set(cells[rule.cell].methods):
            raise BenchError(f"{path.name}: ratio {rule.id} is of what no cell measures")
    return found
