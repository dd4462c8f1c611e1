# SPDX-License-Identifier: MIT OR Apache-2.0
"""The definitions.toml of a benchmark whose cells are the same calls by several methods.

Workers import this module, so it imports little.
"""

import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from . import presets
from .errors import BenchError

Scale = Literal["full", "quick"]
UNFILTERED = "none"
PLAIN = "true"
SMALL = "small"


@dataclass(frozen=True)
class Method:
    """A method to make a call.

    Attributes:
        loop: The event loop that the method needs.
        watcher: How asyncio learns that a child has ended: "pidfd", or by default.
        beside: Each ratio with the method of this name exists a second time, with this method.
        tree: The tier that controls the process tree of a call.
        mode: The mode of the method's Warm.
        any: The parked processes can execute any program.
        trusted: A Warm in mode auto may fork.
        timeout: The timeout of a call by spawnfd, in seconds.
        host: The JavaScript runtime of the method's worker.
        place: Where the calls run, if not in this process.
    """

    name: str
    title: str
    way: str
    loop: str | None = None
    watcher: str | None = None
    beside: str | None = None
    tree: str | None = None
    mode: str | None = None
    any: bool = False
    trusted: bool = False
    timeout: float | None = None
    host: str | None = None
    place: str | None = None

    def exists(self) -> bool:
        """Returns whether this Python has the watcher. Python 3.12 always watches by pidfd."""
        return self.beside is None or sys.version_info < (3, 12)


@dataclass(frozen=True)
class Parent:
    """The state of a calling process.

    Attributes:
        library: What the method has done before the memory and descriptors exist: "called", it has
            made a call; "loaded", it has loaded its library; "absent", nothing.
    """

    name: str = SMALL
    touch_mib: int = 0
    descriptors: int = 0
    library: str = "absent"


@dataclass(frozen=True)
class Call:
    """A command line. A prefix is the command of a sandbox.

    Attributes:
        depth: The number of processes that are parked for the call.
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
class Cell:
    """The same calls by several methods.

    Attributes:
        shell: Whether bash runs each call as a command.
        stream: Whether the calls are kinds of streams.
        tick_us: The interval of the events of the method's loop.
        gap_ms: The pause of the caller after each call.
        uid: The program's user id. -1: the caller's.
        load: The share of the machine's CPU time that cold calls would use. Calls then arrive as a
            Poisson process, whether or not earlier ones have ended. 0: calls in lanes.
    """

    name: str
    title: str
    in_flight: int
    methods: tuple[str, ...]
    calls: tuple[str, ...]
    blocks: Mapping[Scale, int]
    per_block: Mapping[Scale, int]
    parent: str = SMALL
    shell: bool = False
    stream: bool = False
    tick_us: int = 0
    gap_ms: int = 0
    uid: int = -1
    load: float = 0.0


@dataclass(frozen=True)
class Rule:
    """The definition of a ratio of two methods of a cell.

    Attributes:
        even_if_cold: A warm method without any warm start has the ratio too.
    """

    id: str
    meaning: str
    cell: str
    over: str
    under: str
    of: str = "time"
    even_if_cold: bool = False

    def calls(self, cell: Cell) -> tuple[str, ...]:
        """Returns the calls that have the ratio: each if the id contains {call}, else the main."""
        if "{call}" in self.id:
            return cell.calls
        return (PLAIN if PLAIN in cell.calls else cell.calls[0],)


@dataclass(frozen=True)
class Memory:
    """The calls whose parked processes are inspected."""

    calls: tuple[str, ...] = ()
    processes: int = 0


@dataclass(frozen=True)
class Definitions:
    """The content of definitions.toml."""

    methods: Mapping[str, Method]
    calls: Mapping[str, Call]
    parents: Mapping[str, Parent]
    filters: Sequence[str]
    cells: Sequence[Cell]
    memory: Memory
    rules: Sequence[Rule]


@dataclass(frozen=True)
class Terms:
    """What a worker process does: its method, its state, and how it makes calls.

    Attributes:
        untimed: The number of calls before the timed ones of each block, which use up what is
            parked.
        parks: The calls whose programs are parked, if the method has a Warm.
        harness: The harness that dispatches the calls.
    """

    method: Method
    in_flight: int
    parent: Parent = field(default_factory=Parent)
    tick_us: int = 0
    gap_ms: int = 0
    untimed: int = 0
    uid: int = -1
    parks: tuple[Call, ...] = ()
    harness: str = ""

    @classmethod
    def from_plain(cls, entry: Mapping[str, Any]) -> "Terms":
        """Creates terms from JSON values, with any others beside them."""
        return cls(
            method=Method(**entry["method"]),
            parent=Parent(**entry["parent"]),
            parks=tuple(map(call_from_plain, entry["parks"])),
            **{
                name: entry[name]
                for name in ("in_flight", "tick_us", "gap_ms", "untimed", "uid", "harness")
            },
        )


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def call_from_plain(entry: Mapping[str, Any]) -> Call:
    """Creates a call from JSON values."""
    return Call(**_tuples(entry))


def _for_each_tier(entry: dict[str, Any], tiers: Sequence[str]) -> list[dict[str, Any]]:
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


def _beside(rule: Rule, methods: Iterable[Method]) -> Iterator[Rule]:
    """Yields the rule, and the same rule with each method beside one of its methods."""
    yield rule
    for method in methods:
        if method.beside in (rule.over, rule.under):
            over, under = (
                method.name if side == method.beside else side for side in (rule.over, rule.under)
            )
            what = rule.id.removesuffix(".{call}")
            yield replace(
                rule,
                id=f"{rule.id}.{method.watcher}_watcher",
                meaning=f"{what} against {method.title}",
                over=over,
                under=under,
            )


def load(path: Path) -> Definitions:
    """Reads the definitions. Raises BenchError for undefined names."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    tiers = data.get("tiers", {}).get("names", [])

    def entries(kind: str) -> Iterator[dict[str, Any]]:
        for entry in data.get(kind, []):
            yield from map(_tuples, _for_each_tier(entry, tiers))

    def cell(entry: dict[str, Any]) -> Cell:
        named = [_for_each_tier({"name": name}, tiers) for name in entry["methods"]]
        methods = tuple(one["name"] for names in named for one in names)
        calls = entry["calls"]
        if isinstance(calls, str):
            calls = presets.load().members(calls)
        return Cell(**{**entry, "methods": methods, "calls": calls})

    methods = {entry["name"]: Method(**entry) for entry in entries("method")}
    rules = (Rule(**entry) for entry in entries("ratio"))
    found = Definitions(
        methods=methods,
        calls={entry["name"]: Call(**entry) for entry in entries("call")},
        parents={SMALL: Parent()} | {entry["name"]: Parent(**entry) for entry in entries("parent")},
        filters=data.get("filters", {}).get("names", [UNFILTERED]),
        cells=[cell(entry) for entry in entries("cell")],
        memory=Memory(**_tuples(data.get("memory", {}))),
        rules=[one for rule in rules for one in _beside(rule, methods.values())],
    )
    _check(path.name, found)
    return found


def _check(file: str, found: Definitions) -> None:
    def known(what: str, names: Iterable[str], known: Collection[str]) -> None:
        if unknown := set(names) - set(known):
            raise BenchError(f"{file}: {what} names unknown {sorted(unknown)}")

    for cell in found.cells:
        known(f"cell {cell.name}", cell.methods, found.methods)
        known(f"cell {cell.name}", [cell.parent], found.parents)
        if found.calls:
            known(f"cell {cell.name}", cell.calls, found.calls)
    known("memory", found.memory.calls, found.calls)
    methods = {cell.name: cell.methods for cell in found.cells}
    for rule in found.rules:
        if not {rule.over, rule.under} <= set(methods.get(rule.cell, ())):
            raise BenchError(f"{file}: ratio {rule.id}: no cell measures both of its methods")
