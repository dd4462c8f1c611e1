# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads definitions.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common import cells

DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
Mode = Literal["reserve", "fork", "auto"]


@dataclass(frozen=True)
class Method:
    """A method to make a call, and the mode of its Warm, if it has one.

    Attributes:
        any: The parked processes can execute any program.
    """

    name: str
    title: str
    way: str
    mode: Mode | None = None
    any: bool = False


@dataclass(frozen=True)
class Call:
    """A command line. A prefix is the command of a sandbox.

    Attributes:
        entry: The entry point of a Python program.
        preimport: The modules that the parked process imports.
        in_directory: The process parks in the working directory of the call.
    """

    name: str
    argv: tuple[str, ...]
    prefix: tuple[str, ...] = ()
    depth: int = 2
    entry: str = ""
    in_directory: bool = False
    preimport: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell(cells.Cell):
    """The same calls by several methods.

    Attributes:
        touched_mib: Private memory that the caller has written to.
        uid: The program's user id. -1: the caller's.
        load: The share of the machine's CPU time that cold calls would use. Calls then arrive as a
            Poisson process, whether or not earlier ones have ended. 0: calls in lanes.
    """

    gap_ms: int
    calls: tuple[str, ...]
    touched_mib: int = 0
    uid: int = -1
    load: float = 0.0


@dataclass(frozen=True)
class Memory:
    """The calls whose parked processes are inspected."""

    calls: tuple[str, ...]
    processes: int


@dataclass(frozen=True)
class Rule(cells.Rule):
    """A ratio for each of the cell's calls.

    Attributes:
        even_if_cold: A warm method without any warm start has the ratio too.
    """

    of: Literal["p50", "p99", "p99_block", "time", "cpu"]
    even_if_cold: bool = False


@dataclass(frozen=True)
class Definitions:
    """The content of definitions.toml."""

    methods: Mapping[str, Method]
    calls: Mapping[str, Call]
    cells: Sequence[Cell]
    memory: Memory
    rules: Sequence[Rule]


def tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry with tuples instead of lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def load(path: Path = DEFINITIONS_FILE) -> Definitions:
    """Reads the definitions. Raises BenchError for undefined names."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    found = Definitions(
        methods={entry["name"]: Method(**entry) for entry in data["method"]},
        calls={entry["name"]: Call(**tuples(entry)) for entry in data["call"]},
        cells=[Cell(**tuples(entry)) for entry in data["cell"]],
        memory=Memory(**tuples(data["memory"])),
        rules=[Rule(**entry) for entry in data["ratio"]],
    )
    for cell in found.cells:
        cells.check_known(f"{path.name}: cell {cell.name}", cell.methods, found.methods)
        cells.check_known(f"{path.name}: cell {cell.name}", cell.calls, found.calls)
    cells.check_known(f"{path.name}: memory", found.memory.calls, found.calls)
    cells.check_rules(path.name, found.rules, found.cells)
    return found
