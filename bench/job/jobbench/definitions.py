# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads definitions.toml."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from common import cells
from common.presets import Definitions as Presets

DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
UNFILTERED = "none"
PLAIN = "true"


@dataclass(frozen=True)
class Method:
    """A method to make a call.

    Attributes:
        loop: The event loop that the method needs.
        watcher: How asyncio learns that a child has ended.
        tree: The tier that controls the process tree of a call.
    """

    name: str
    title: str
    way: str
    loop: str | None = None
    watcher: str | None = None
    tree: str | None = None

    def exists(self) -> bool:
        """Returns whether this Python has the watcher. Python 3.12 always watches by pidfd."""
        return self.watcher is None or sys.version_info < (3, 12)


@dataclass(frozen=True)
class Parent:
    """The state of a calling process."""

    name: str
    touch_mib: int = 0
    descriptors: int = 0
    library_first: bool = False


@dataclass(frozen=True)
class Cell(cells.Cell):
    """The same set of presets, or the same kind of stream, by several methods.

    Attributes:
        shell: Whether bash runs each call as a command.
    """

    calls: str = PLAIN
    shell: bool = False
    parent: str = "small"
    tick_us: int = 0
    stream: str = ""

    def members(self, presets: Presets) -> tuple[str, ...]:
        """The names of the calls."""
        return (self.stream,) if self.stream else presets.members(self.calls)

    @property
    def main_call(self) -> str:
        """The call of ratios that are not defined for each call."""
        return self.stream or PLAIN


@dataclass(frozen=True)
class Rule(cells.Rule):
    """A ratio for each call if the id contains {call}, else for the cell's main call."""

    of: Literal["time", "stall", "p50"] = "time"


@dataclass(frozen=True)
class Definitions:
    """The content of definitions.toml."""

    methods: Mapping[str, Method]
    parents: Mapping[str, Parent]
    filters: Sequence[str]
    cells: Sequence[Cell]
    rules: Sequence[Rule]


def for_each_tier(entry: dict[str, Any], tiers: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the entry once for each tier if its name or id contains {tier}.

    An entry that also contains {before} compares a tier with the one before it in the list.
    """
    if "{tier}" not in entry.get("id", entry.get("name", "")):
        return [entry]
    compares = any("{before}" in value for value in entry.values())
    pairs = list(pairwise(tiers)) if compares else [("", tier) for tier in tiers]
    return [
        {
            key: value.replace("{before}", before).replace("{tier}", tier)
            for key, value in entry.items()
        }
        for before, tier in pairs
    ]


def load(path: Path = DEFINITIONS_FILE) -> Definitions:
    """Reads the definitions. Raises BenchError for undefined names."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    tiers = data["tiers"]["names"]

    def entries(kind: str) -> list[dict[str, Any]]:
        return [one for entry in data[kind] for one in for_each_tier(entry, tiers)]

    def methods_of(cell: dict[str, Any]) -> tuple[str, ...]:
        named = [for_each_tier({"name": name}, tiers) for name in cell["methods"]]
        return tuple(one["name"] for names in named for one in names)

    found = Definitions(
        methods={entry["name"]: Method(**entry) for entry in entries("method")},
        parents={entry["name"]: Parent(**entry) for entry in data["parent"]},
        filters=data["filters"]["names"],
        cells=[Cell(**{**entry, "methods": methods_of(entry)}) for entry in data["cell"]],
        rules=[Rule(**entry) for entry in entries("ratio")],
    )
    for cell in found.cells:
        what = f"{path.name}: cell {cell.name}"
        cells.check_known(what, cell.methods, found.methods)
        cells.check_known(what, [cell.parent], found.parents)
    cells.check_rules(path.name, found.rules, found.cells)
    return found
