# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the cells: a worker process for each method, blocks of the same calls in random order."""

import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field

from common.blocks import interleave
from common.pipe import Worker, environment
from common.progress import Progress
from common.session import Setting

from .definitions import Call, Cell, Memory, Method

# After this many calls, the Warm is full, and every file is in the page cache.
WARM_UP_CALLS = 3
# The calls by which the rate of a load is found, and the method that makes them.
CALIBRATION_CALLS = 40
COLD_METHOD = "cold_async"


@dataclass(frozen=True)
class Task:
    """One cell, with its calls, methods and counts."""

    cell: Cell
    calls: tuple[Call, ...]
    methods: tuple[Method, ...]
    blocks: int
    per_block: int

    @property
    def warm_up(self) -> int:
        """Returns how many calls of a tool are made before the timed calls."""
        return max(WARM_UP_CALLS, 2 * (self.cell.in_flight - 1))

    @property
    def timed(self) -> int:
        """Returns the number of timed calls."""
        return len(self.calls) * len(self.methods) * self.blocks * self.per_block


@dataclass(frozen=True)
class Block:
    """Some calls of one tool by one method."""

    ns: list[int]
    seconds: float
    cpu_seconds: float
    started: Counter[str]


@dataclass(frozen=True)
class Measured:
    """A task's blocks by call and method. Blocks with the same index belong to the same round."""

    task: Task
    blocks: Mapping[tuple[str, str], list[Block]]


@dataclass(frozen=True)
class MemoryUse:
    """The memory of each process that is parked for a call, in KiB."""

    call: str
    mode: str
    kib: list[dict[str, int]] = field(default_factory=list)


def _worker(
    what: str, setting: Setting, method: Method, calls: Sequence[Call], name: str, **terms: int
) -> Worker:
    command = setting.worker_command(
        "warm",
        f"{name}-{method.name}",
        method=asdict(method),
        calls=[asdict(call) for call in calls],
        terms=terms,
    )
    return Worker(what, command, environment("warm"))


@contextmanager
def workers(setting: Setting, task: Task) -> Iterator[dict[str, Worker]]:
    """Yields a worker for each method. Always ends and reaps them."""
    cell = task.cell
    with ExitStack() as stack:
        running: dict[str, Worker] = {}
        for method in task.methods:
            worker = _worker(
                f"{method.name}, {cell.name}",
                setting,
                method,
                task.calls,
                cell.name,
                in_flight=cell.in_flight,
                gap_ms=cell.gap_ms,
                touched_mib=cell.touched_mib,
                uid=cell.uid,
            )
            running[method.name] = stack.enter_context(worker)
            # The workers start one after the other, so that parking in one does not slow down
            # another.
            worker.receive("hello")
        yield running


def run_block(worker: Worker, name: str, count: int, rate: float = 0.0) -> Block:
    """Runs one block on one worker. With a rate, that many calls arrive in a second."""
    worker.send(do="run", call=name, count=count, rate=rate)
    reply = worker.receive("ns")
    return Block(reply["ns"], reply["seconds"], reply["cpu_s"], Counter(reply["started"]))


def rates(task: Task, running: Mapping[str, Worker]) -> dict[str, float]:
    """Returns how many calls in a second put the cell's load on the machine, if they are cold."""
    if not task.cell.load:
        return {}
    cpus = len(os.sched_getaffinity(0))
    found: dict[str, float] = {}
    for call in task.calls:
        block = run_block(running[COLD_METHOD], call.name, CALIBRATION_CALLS)
        found[call.name] = task.cell.load * cpus * CALIBRATION_CALLS / block.cpu_seconds
    return found


def measure(
    tasks: Sequence[Task], setting: Setting, seed: int, progress: Progress
) -> list[Measured]:
    """Runs all tasks."""
    chooser = random.Random(seed)
    found: list[Measured] = []
    for task in tasks:
        names = [call.name for call in task.calls]
        counts = [task.per_block] * task.blocks
        progress.begin(task.cell.name)
        with workers(setting, task) as running:
            rate = rates(task, running)

            def run(
                worker: Worker, name: str, count: int, rate: Mapping[str, float] = rate
            ) -> Block:
                return run_block(worker, name, count, rate.get(name, 0.0))

            blocks = interleave(names, running, run, task.warm_up, counts, chooser, progress)
        progress.end("done")
        found.append(Measured(task, blocks))
    return found


def measure_memory(
    memory: Memory, calls: Mapping[str, Call], setting: Setting, methods: Mapping[str, Method]
) -> list[MemoryUse]:
    """Returns the memory of the parked processes for each call and mode.

    Measures one mode at a time.
    """
    chosen = [calls[name] for name in memory.calls if name in calls]
    found: list[MemoryUse] = []
    cold = methods["cold"]
    with _worker("memory", setting, cold, chosen, "memory", in_flight=1, gap_ms=0) as worker:
        worker.receive("hello")
        for call in chosen:
            for mode, processes in (("reserve", memory.processes), ("fork", 1)):
                worker.send(do="memory", call=call.name, mode=mode, processes=processes)
                found.append(MemoryUse(call.name, mode, worker.receive("kib")["kib"]))
    return found
