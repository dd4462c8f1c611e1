# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads definitions.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common import cells

DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
Mode = Literal["reserve", "fork"]


@dataclass(frozen=True)
class Method:
    """A way to make a call, and the mode of the Warm that it is made with, if any.

    Attributes:
        any: What is parked executes any program.
    """

    name: str
    title: str
    way: str
    mode: Mode | None = None
    any: bool = False


@dataclass(frozen=True)
class Call:
    """A command line; inside a sandbox, if it has a prefix."""

    name: str
    argv: tuple[str, ...]
    prefix: tuple[str, ...] = ()
    depth: int = 2


@dataclass(frozen=True)
class Cell(cells.Cell):
    """The same calls by several methods.

    Attributes:
        touched_mib: What the caller has written to, in memory of its own.
        uid: Whom the program runs as; -1: as its caller does.
    """

    gap_ms: int
    calls: tuple[str, ...]
    touched_mib: int = 0
    uid: int = -1


@dataclass(frozen=True)
class Memory:
    """Whose parked processes are looked at."""

    calls: tuple[str, ...]
    processes: int


@dataclass(frozen=True)
class Rule(cells.Rule):
    """One for each of the cell's calls."""

    of: Literal["p50", "p99", "time", "cpu"]


@dataclass(frozen=True)
class Definitions:
    """definitions.toml, as read."""

    methods: Mapping[str, Method]
    calls: Mapping[str, Call]
    cells: Sequence[Cell]
    memory: Memory
    rules: Sequence[Rule]


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def load(path: Path = DEFINITIONS_FILE) -> Definitions:
    """Reads the definitions; every name in them must be defined."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    found = Definitions(
        methods={entry["name"]: Method(**entry) for entry in data["method"]},
        calls={entry["name"]: Call(**_tuples(entry)) for entry in data["call"]},
        cells=[Cell(**_tuples(entry)) for entry in data["cell"]],
        memory=Memory(**_tuples(data["memory"])),
        rules=[Rule(**entry) for entry in data["ratio"]],
    )
    for cell in found.cells:
        cells.check_known(f"{path.name}: cell {cell.name}", cell.methods, found.methods)
        cells.check_known(f"{path.name}: cell {cell.name}", cell.calls, found.calls)
    cells.check_known(f"{path.name}: memory", found.memory.calls, found.calls)
    cells.check_rules(path.name, found.rules, found.cells)
    return found
