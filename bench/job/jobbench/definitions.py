# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads definitions.toml."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common import cells
from common.presets import Definitions as Presets

DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
UNFILTERED = "none"
PLAIN = "true"


@dataclass(frozen=True)
class Method:
    """A method to make a call, and the event loop that it needs, if any."""

    name: str
    title: str
    way: str
    loop: str | None = None
    watcher: str | None = None

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
    """The same set of presets, or the same kind of stream, by several methods."""

    calls: str = PLAIN
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

    of: Literal["time", "stall"] = "time"


@dataclass(frozen=True)
class Definitions:
    """The content of definitions.toml."""

    methods: Mapping[str, Method]
    parents: Mapping[str, Parent]
    filters: Sequence[str]
    cells: Sequence[Cell]
    rules: Sequence[Rule]


def load(path: Path = DEFINITIONS_FILE) -> Definitions:
    """Reads the definitions. Raises BenchError for undefined names."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    found = Definitions(
        methods={entry["name"]: Method(**entry) for entry in data["method"]},
        parents={entry["name"]: Parent(**entry) for entry in data["parent"]},
        filters=data["filters"]["names"],
        cells=[Cell(**{**entry, "methods": tuple(entry["methods"])}) for entry in data["cell"]],
        rules=[Rule(**entry) for entry in data["ratio"]],
    )
    for cell in found.cells:
        what = f"{path.name}: cell {cell.name}"
        cells.check_known(what, cell.methods, found.methods)
        cells.check_known(what, [cell.parent], found.parents)
    cells.check_rules(path.name, found.rules, found.cells)
    return found
