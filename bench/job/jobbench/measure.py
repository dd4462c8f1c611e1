# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the cells: a worker process for each method, blocks of the same calls in random order."""

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from common import floor, session
from common.errors import BenchError
from common.pipe import Worker
from common.progress import Progress

from .definitions import UNFILTERED, Cell, Method, Parent
from .methods import FLOOR

BENCH = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SPARE_MIB = 1024


@dataclass(frozen=True)
class Setting(session.Setting):
    """With the program that confines a worker."""

    confine: Path | None


@dataclass(frozen=True)
class Task:
    """One cell under one filter, with what is to be done in it."""

    cell: Cell
    filter: str
    members: tuple[str, ...]
    methods: tuple[Method, ...]
    parent: Parent
    blocks: int
    per_block: int

    @property
    def calls(self) -> int:
        """How many calls are timed."""
        return len(self.members) * len(self.methods) * self.blocks * self.per_block

    @property
    def title(self) -> str:
        """For the progress line."""
        suffix = "" if self.filter == UNFILTERED else f" under {self.filter}"
        return f"{self.cell.name}{suffix}"


@dataclass(frozen=True)
class Block:
    """Some calls of one tool by one method."""

    calls: int
    seconds: float
    cpu_seconds: float
    late_us: list[int]


@dataclass(frozen=True)
class Measured:
    """A task's blocks by tool and method; those with the same index stood beside each other."""

    task: Task
    blocks: Mapping[tuple[str, str], list[Block]]


def why_not(task: Task, confine: Path | None, free_mib: int) -> str | None:
    """What this machine lacks for a task."""
    if task.filter != UNFILTERED and confine is None:
        return "no --confine program"
    wanted = task.parent.touch_mib * len(task.methods)
    if wanted and free_mib < wanted + SPARE_MIB:
        return f"needs {wanted + SPARE_MIB} MiB of free memory, there are {free_mib}"
    return None


def free_mib() -> int:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) // 1024
    raise BenchError("/proc/meminfo has no MemAvailable")


def _command(setting: Setting, task: Task, method: Method) -> list[str]:
    confined = [] if task.filter == UNFILTERED else [str(setting.confine), f"--{task.filter}", "--"]
    if method.way == FLOOR:
        if setting.floor_program is None:
            raise BenchError("the C floor was not built")
        calls = setting.scratch / "floor.calls"
        calls.write_bytes(floor.call_list(setting.references.values(), setting.env, setting.cwd))
        return [*confined, str(setting.floor_program), str(calls), str(task.cell.in_flight)]
    job = setting.scratch / f"job-{task.filter}-{task.cell.name}-{method.name}.json"
    description = {
        "method": asdict(method),
        "parent": asdict(task.parent),
        "in_flight": task.cell.in_flight,
        "tick_us": task.cell.tick_us,
        "cwd": str(setting.cwd),
        "env": dict(setting.env),
        "references": [reference.plain() for reference in setting.references.values()],
    }
    job.write_text(json.dumps(description), encoding="utf-8")
    return [*confined, sys.executable, "-m", "jobbench.worker", str(job)]


@contextmanager
def workers(setting: Setting, task: Task) -> Iterator[dict[str, Worker]]:
    """A worker for each method; ended and reaped on any way out."""
    paths = [str(BENCH), str(BENCH / "job"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    with ExitStack() as stack:
        running: dict[str, Worker] = {}
        for method in task.methods:
            worker = Worker(f"{method.name}, {task.title}", _command(setting, task, method), env)
            stack.callback(worker.abandon)
            running[method.name] = worker
        for worker in running.values():
            worker.hear("hello")
        yield running
        for worker in running.values():
            worker.finish()


def run_block(worker: Worker, name: str, count: int) -> Block:
    """One block on one worker."""
    worker.tell(do="prepare", calls=[name] * count)
    worker.hear("ready")
    worker.tell(do="go")
    reply = worker.hear("end_ns")
    if reply["calls"] != count:
        raise BenchError(f"{worker.what}: {count} calls asked, {reply['calls']} made")
    seconds = (reply["end_ns"] - reply["begin_ns"]) / 1e9
    return Block(count, seconds, reply["cpu_s"], reply.get("late_us", []))


def random_order(
    members: Sequence[str], methods: Sequence[str], chooser: random.Random
) -> list[tuple[str, str]]:
    """One round: every tool once, and for each all methods one after another."""
    return [
        (name, method)
        for name in chooser.sample(members, len(members))
        for method in chooser.sample(methods, len(methods))
    ]


def measure(
    tasks: Sequence[Task], setting: Setting, seed: int, progress: Progress
) -> list[Measured]:
    """Runs all tasks."""
    chooser = random.Random(seed)
    return [_measure(task, setting, chooser, progress) for task in tasks]


def _measure(task: Task, setting: Setting, chooser: random.Random, progress: Progress) -> Measured:
    methods = [method.name for method in task.methods]
    blocks: dict[tuple[str, str], list[Block]] = {
        (name, method): [] for name in task.members for method in methods
    }
    progress.begin(task.title)
    with workers(setting, task) as running:
        for name, method in random_order(task.members, methods, chooser):
            run_block(running[method], name, 2 * task.cell.in_flight)
        for _ in range(task.blocks):
            for name, method in random_order(task.members, methods, chooser):
                block = run_block(running[method], name, task.per_block)
                blocks[name, method].append(block)
                progress.advance(block.calls)
    progress.end("done")
    return Measured(task, blocks)
