# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the cells: a worker process for each method, blocks of the same calls in random order."""

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.pipe import Worker
from common.progress import Progress
from common.session import Setting

from .definitions import Call, Cell, Memory, Method

BENCH = Path(__file__).resolve().parents[2]
# Turns two things into one: what is parked is as full as it will be, and every file is in memory.
WARM_UP_CALLS = 3


@dataclass(frozen=True)
class Task:
    """One cell, with what is to be done in it."""

    cell: Cell
    calls: tuple[Call, ...]
    methods: tuple[Method, ...]
    blocks: int
    per_block: int

    @property
    def timed(self) -> int:
        """How many calls are timed."""
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
    """A task's blocks by call and method; those with the same index stood beside each other."""

    task: Task
    blocks: Mapping[tuple[str, str], list[Block]]


@dataclass(frozen=True)
class Held:
    """KiB of each process that is parked for a call."""

    call: str
    mode: str
    kib: list[dict[str, int]] = field(default_factory=list)


def _command(
    setting: Setting, method: Method, calls: Sequence[Call], name: str, **terms: int
) -> list[str]:
    job = setting.scratch / f"job-{name}-{method.name}.json"
    description = {
        "method": asdict(method),
        "calls": [asdict(call) for call in calls],
        "terms": terms,
        "cwd": str(setting.cwd),
        "env": dict(setting.env),
        "references": [reference.plain() for reference in setting.references.values()],
    }
    job.write_text(json.dumps(description), encoding="utf-8")
    return [sys.executable, "-m", "warmbench.worker", str(job)]


def _environment() -> dict[str, str]:
    paths = [str(BENCH), str(BENCH / "warm"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


@contextmanager
def workers(setting: Setting, task: Task) -> Iterator[dict[str, Worker]]:
    """A worker for each method; ended and reaped on any way out."""
    cell = task.cell
    with ExitStack() as stack:
        running: dict[str, Worker] = {}
        for method in task.methods:
            command = _command(
                setting,
                method,
                task.calls,
                cell.name,
                in_flight=cell.in_flight,
                gap_ms=cell.gap_ms,
                touched_mib=cell.touched_mib,
                uid=cell.uid,
            )
            worker = Worker(f"{method.name}, {cell.name}", command, _environment())
            stack.callback(worker.abandon)
            running[method.name] = worker
            # One after another: what they park is not to be in each other's way.
            worker.hear("hello")
        yield running
        for worker in running.values():
            worker.finish()


def run_block(worker: Worker, name: str, count: int) -> Block:
    """One block on one worker."""
    worker.tell(do="run", call=name, count=count)
    reply = worker.hear("ns")
    return Block(reply["ns"], reply["seconds"], reply["cpu_s"], Counter(reply["started"]))


def random_order(
    calls: Sequence[str], methods: Sequence[str], chooser: random.Random
) -> list[tuple[str, str]]:
    """One round: every call once, and for each all methods one after another."""
    return [
        (call, method)
        for call in chooser.sample(calls, len(calls))
        for method in chooser.sample(methods, len(methods))
    ]


def measure(
    tasks: Sequence[Task], setting: Setting, seed: int, progress: Progress
) -> list[Measured]:
    """Runs all tasks."""
    chooser = random.Random(seed)
    return [_measure(task, setting, chooser, progress) for task in tasks]


def _measure(task: Task, setting: Setting, chooser: random.Random, progress: Progress) -> Measured:
    calls = [call.name for call in task.calls]
    methods = [method.name for method in task.methods]
    blocks: dict[tuple[str, str], list[Block]] = {
        (call, method): [] for call in calls for method in methods
    }
    progress.begin(task.cell.name)
    with workers(setting, task) as running:
        for call, method in random_order(calls, methods, chooser):
            run_block(running[method], call, max(WARM_UP_CALLS, 2 * (task.cell.in_flight - 1)))
        for _ in range(task.blocks):
            for call, method in random_order(calls, methods, chooser):
                block = run_block(running[method], call, task.per_block)
                blocks[call, method].append(block)
                progress.advance(len(block.ns))
    progress.end("done")
    return Measured(task, blocks)


def hold(
    memory: Memory, calls: Mapping[str, Call], setting: Setting, methods: Mapping[str, Method]
) -> list[Held]:
    """What is held for each call and mode, each looked at alone."""
    chosen = [calls[name] for name in memory.calls if name in calls]
    found: list[Held] = []
    command = _command(setting, methods["cold"], chosen, "memory", in_flight=1, gap_ms=0)
    worker = Worker("memory", command, _environment())
    try:
        worker.hear("hello")
        for call in chosen:
            for mode, processes in (("reserve", memory.processes), ("fork", 1)):
                worker.tell(do="memory", call=call.name, mode=mode, processes=processes)
                found.append(Held(call.name, mode, worker.hear("kib")["kib"]))
        worker.finish()
    finally:
        worker.abandon()
    return found
