# SPDX-License-Identifier: MIT OR Apache-2.0
"""The measured cells, and their numbers of calls."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from common.floor import FLOOR

HARNESSES = ("autogen", "asyncio")
SHUFFLE_SEED = 6144

IN_FLIGHT = 16
SPLITS = {"1x16": (1, 16), "2x8": (2, 8), "4x4": (4, 4), "8x2": (8, 2)}
INTERPRETERS = {"python-small", "node-small"}


@dataclass(frozen=True)
class Cell:
    """One comparison: the same calls by every backend, in rounds."""

    harness: str
    split: str
    set_name: str
    calls: int
    rounds: int
    backends: tuple[str, ...]
    per_tool: bool = False

    @property
    def workers(self) -> int:
        return SPLITS[self.split][0]

    @property
    def in_flight(self) -> int:
        return SPLITS[self.split][1]

    @property
    def title(self) -> str:
        return f"{self.harness} {self.split} {self.set_name}"


@dataclass(frozen=True)
class Scale:
    """The size of a run: calls per cell and backend, calls per tool, and rounds."""

    calls: int
    rounds: int
    tool_calls: int
    interpreter_calls: int
    tool_rounds: int


FULL = Scale(calls=6144, rounds=12, tool_calls=384, interpreter_calls=192, tool_rounds=12)
QUICK = Scale(calls=1024, rounds=8, tool_calls=96, interpreter_calls=48, tool_rounds=6)
DEMO = Scale(calls=1280, rounds=8, tool_calls=64, interpreter_calls=32, tool_rounds=4)

# The harness, split and set of each cell: the cells of the RFC's table, the cells with bars, and
# some that explain the differences.
FULL_CELLS = (
    *(("autogen", split, "all") for split in SPLITS),
    ("autogen", "1x16", "nonode"),
    ("autogen", "1x16", "nointerp"),
    ("autogen", "1x16", "printf"),
    *(("asyncio", split, "all") for split in SPLITS),
    *(("asyncio", split, "nointerp") for split in SPLITS),
    ("asyncio", "1x16", "nonode"),
    ("asyncio", "1x16", "printf"),
)
DEMO_CELLS = (
    ("autogen", "1x16", "all"),
    ("asyncio", "1x16", "all"),
    ("asyncio", "1x16", "nointerp"),
    ("asyncio", "1x16", "printf"),
)


def _has_floor(split: str) -> bool:
    """Returns whether the C floor runs.

    It has one process with one loop, like one worker process.
    """
    return split == "1x16"


def make_plan(
    scale: Scale,
    cells: Sequence[tuple[str, str, str]],
    tools: Sequence[str],
    backends: Sequence[str],
    *,
    harnesses: Collection[str] = HARNESSES,
    splits: Collection[str] = tuple(SPLITS),
    sets: Collection[str] | None = None,
    per_tool: bool = True,
) -> list[Cell]:
    """Returns the cells that match the filters.

    They are grouped by harness and split, so that workers are reused.
    """

    def cell(harness: str, split: str, set_name: str, calls: int, rounds: int, alone: bool) -> Cell:
        chosen = tuple(name for name in backends if name != FLOOR or _has_floor(split))
        return Cell(harness, split, set_name, calls, rounds, chosen, alone)

    plan = [
        cell(harness, split, set_name, scale.calls, scale.rounds, False)
        for harness, split, set_name in cells
        if harness in harnesses and split in splits and (sets is None or set_name in sets)
    ]
    if per_tool and "asyncio" in harnesses and "1x16" in splits:
        plan += [
            cell(
                "asyncio",
                "1x16",
                tool,
                scale.interpreter_calls if tool in INTERPRETERS else scale.tool_calls,
                scale.tool_rounds,
                True,
            )
            for tool in tools
        ]
    order = [(harness, split) for harness in HARNESSES for split in SPLITS]
    return sorted(plan, key=lambda one: order.index((one.harness, one.split)))


def make_rounds(members: Sequence[str], calls: int, rounds: int) -> list[list[str]]:
    """Returns `calls` presets in `rounds` shuffled slices, each member equally often.

    The same arguments give the same result.
    """
    if not members or calls < 1 or rounds < 1:
        raise ValueError("a cell needs members, calls and rounds")
    rounds = min(rounds, calls)
    dealer = cycle(members)
    shuffler = random.Random(SHUFFLE_SEED)
    slices: list[list[str]] = []
    for number in range(rounds):
        size = calls * (number + 1) // rounds - calls * number // rounds
        part = list(islice(dealer, size))
        shuffler.shuffle(part)
        slices.append(part)
    return slices
