# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs cells: worker processes for each method, and blocks of the same calls in turn."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from .definitions import UNFILTERED, Cell, Method
from .errors import BenchError
from .pipe import Worker, environment
from .progress import Progress

# After this many calls, a Warm is full, and every file is in the page cache.
WARM_UP_CALLS = 3
# The calls by which the rate of a load is found, and the method that makes them.
CALIBRATION_CALLS = 40
COLD_METHOD = "cold_async"


@dataclass(frozen=True)
class Block:
    """Some calls by one method.

    Attributes:
        ns: The time of each call, if the method measures single calls.
        late_us: The delay of each event of the method's loop.
        held_ns: The time in which each call holds the caller's thread.
        gap_us: The times between the ticks of the method's loop.
        started: The kinds of start, if the method is ours.
    """

    calls: int
    seconds: float
    cpu_seconds: float
    ns: list[int] = field(default_factory=list)
    late_us: list[int] = field(default_factory=list)
    started: Counter[str] = field(default_factory=Counter)
    held_ns: list[int] = field(default_factory=list)
    gap_us: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """One cell under one filter, with its calls, methods and counts."""

    cell: Cell
    calls: tuple[str, ...]
    methods: tuple[Method, ...]
    blocks: int
    per_block: int
    filter: str = UNFILTERED

    @property
    def timed(self) -> int:
        """The count of timed calls."""
        return len(self.calls) * len(self.methods) * self.blocks * self.per_block

    @property
    def title(self) -> str:
        """The title of the progress line."""
        suffix = "" if self.filter == UNFILTERED else f" under {self.filter}"
        return f"{self.cell.name}{suffix}"

    @property
    def warm_up(self) -> int:
        """The count of calls of each kind that a method makes before the timed ones."""
        return max(WARM_UP_CALLS, 2 * self.cell.in_flight)


# A block's calls: the key of its series, the method, and the calls' names.
Turn = tuple[str, str, Sequence[str]]
Blocks = dict[tuple[str, str], list[Block]]


@dataclass(frozen=True)
class Measured:
    """A task's blocks by call and method. Blocks with the same index belong to the same round."""

    task: Task
    blocks: Mapping[tuple[str, str], list[Block]]


class Fleet:
    """The worker processes of one method."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    def run(self, calls: Sequence[str], rate: float = 0.0) -> Block:
        """Makes the calls on all workers at once. With a rate, that many arrive in a second.

        The time begins with the first worker's first call, and ends with the last worker.
        """
        count = len(self.workers)
        for number, worker in enumerate(self.workers):
            worker.send(do="prepare", calls=calls[number::count])
        for worker in self.workers:
            worker.receive("ready")
        for worker in self.workers:
            worker.send(do="go", rate=rate)
        replies = [worker.receive("end_ns") for worker in self.workers]
        made = sum(reply["calls"] for reply in replies)
        if made != len(calls):
            what = self.workers[0].what
            raise BenchError(f"{what}: {len(calls)} calls requested, {made} made")
        begin = min(reply["begin_ns"] for reply in replies)
        return Block(
            calls=made,
            seconds=(max(reply["end_ns"] for reply in replies) - begin) / 1e9,
            cpu_seconds=sum(reply["cpu_s"] for reply in replies),
            ns=[ns for reply in replies for ns in reply.get("ns", [])],
            late_us=[late for reply in replies for late in reply.get("late_us", [])],
            started=sum((Counter(reply.get("started", {})) for reply in replies), Counter()),
            held_ns=[ns for reply in replies for ns in reply.get("held_ns", [])],
            gap_us=[gap for reply in replies for gap in reply.get("gap_us", [])],
        )


@contextmanager
def fleets(
    suite: str, title: str, commands: Mapping[str, list[str]], workers: int = 1
) -> Iterator[dict[str, Fleet]]:
    """Yields the workers of each method. Always ends and reaps them.

    The fleets start one after the other, so that parking in one does not slow down another.
    """
    with ExitStack() as stack:
        running: dict[str, Fleet] = {}
        for name, command in commands.items():
            fleet = [
                stack.enter_context(Worker(f"{name}, {title}", command, environment(suite)))
                for _ in range(workers)
            ]
            for worker in fleet:
                worker.receive("hello")
            running[name] = Fleet(fleet)
        yield running


def random_order(
    calls: Sequence[str], methods: Sequence[str], chooser: random.Random
) -> list[tuple[str, str]]:
    """Returns one round: every call once in random order, each by all methods in random order."""
    return [
        (call, method)
        for call in chooser.sample(calls, len(calls))
        for method in chooser.sample(methods, len(methods))
    ]


def interleave(
    running: Mapping[str, Fleet],
    rounds: Iterable[Sequence[Turn]],
    progress: Progress,
    rates: Mapping[str, float] | None = None,
) -> Blocks:
    """Runs the rounds, and returns the blocks by series and method.

    The first round is a warm-up, and is not recorded.
    """
    blocks: Blocks = {}
    for number, turns in enumerate(rounds):
        for series, method, calls in turns:
            block = running[method].run(calls, (rates or {}).get(series, 0.0))
            if number:
                blocks.setdefault((series, method), []).append(block)
                progress.advance(block.calls)
    return blocks


def random_rounds(task: Task, chooser: random.Random) -> Iterator[list[Turn]]:
    """Yields the rounds of a task, the warm-up first."""
    methods = [method.name for method in task.methods]
    for count in (task.warm_up, *[task.per_block] * task.blocks):
        order = random_order(task.calls, methods, chooser)
        yield [(call, method, [call] * count) for call, method in order]


def rates(task: Task, running: Mapping[str, Fleet]) -> dict[str, float]:
    """Returns how many calls in a second put the cell's load on the machine, if they are cold."""
    if not task.cell.load:
        return {}
    cpus = len(os.sched_getaffinity(0))
    found: dict[str, float] = {}
    for call in task.calls:
        block = running[COLD_METHOD].run([call] * CALIBRATION_CALLS)
        found[call] = task.cell.load * cpus * CALIBRATION_CALLS / block.cpu_seconds
    return found


def measure(
    suite: str,
    tasks: Sequence[Task],
    commands: Callable[[Task], Mapping[str, list[str]]],
    seed: int,
    progress: Progress,
) -> list[Measured]:
    """Runs all tasks."""
    chooser = random.Random(seed)
    found: list[Measured] = []
    for task in tasks:
        progress.begin(task.title)
        with fleets(suite, task.title, commands(task)) as running:
            rate = rates(task, running)
            blocks = interleave(running, random_rounds(task, chooser), progress, rate)
        progress.end("done")
        found.append(Measured(task, blocks))
    return found
