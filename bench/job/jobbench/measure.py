# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the cells: a worker process for each method, blocks of the same calls in random order."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.blocks import interleave
from common.errors import BenchError
from common.pipe import Worker, environment
from common.progress import Progress
from common.session import Setting

from .definitions import UNFILTERED, Cell, Method, Parent
from .methods import FLOORS, NATIVE

SPARE_MIB = 1024


@dataclass(frozen=True)
class Task:
    """One cell under one filter, with its calls, methods and counts."""

    cell: Cell
    filter: str
    members: tuple[str, ...]
    methods: tuple[Method, ...]
    parent: Parent
    blocks: int
    per_block: int

    @property
    def calls(self) -> int:
        """The count of timed calls."""
        return len(self.members) * len(self.methods) * self.blocks * self.per_block

    @property
    def title(self) -> str:
        """The title of the progress line."""
        suffix = "" if self.filter == UNFILTERED else f" under {self.filter}"
        return f"{self.cell.name}{suffix}"


@dataclass(frozen=True)
class Block:
    """Some calls of one tool by one method.

    Attributes:
        ns: The time of each call, if the method measures single calls.
    """

    calls: int
    seconds: float
    cpu_seconds: float
    late_us: list[int]
    ns: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """A task's blocks by tool and method. Blocks with the same index belong to the same round."""

    task: Task
    blocks: Mapping[tuple[str, str], list[Block]]


def why_not(
    task: Task, confine: Path | None, free_mib: int, native: Path | None = None
) -> str | None:
    """Returns the reason why this machine cannot run a task, or None."""
    if native is None and any(method.way in NATIVE for method in task.methods):
        return "no --native program"
    if task.filter != UNFILTERED and confine is None:
        return "no --confine program"
    wanted = task.parent.touch_mib * len(task.methods)
    if wanted and free_mib < wanted + SPARE_MIB:
        return f"needs {wanted + SPARE_MIB} MiB of free memory, there are {free_mib}"
    return None


def free_mib() -> int:
    """Returns the MiB of memory that are available without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) // 1024
    raise BenchError("/proc/meminfo has no MemAvailable")


def _command(setting: Setting, task: Task, method: Method) -> list[str]:
    confined = [] if task.filter == UNFILTERED else [str(setting.confine), f"--{task.filter}", "--"]
    if task.cell.shell:
        setting = setting.in_shell()
    if method.way in FLOORS:
        return [*confined, *setting.floor_command(task.cell.in_flight, method.way)]
    name = f"{task.filter}-{task.cell.name}-{method.name}"
    if method.way in NATIVE:
        return [*confined, *setting.native_command(name, method=asdict(method))]
    command = setting.worker_command(
        "job",
        name,
        method=asdict(method),
        parent=asdict(task.parent),
        in_flight=task.cell.in_flight,
        tick_us=task.cell.tick_us,
        stream=task.cell.stream,
    )
    return [*confined, *command]


@contextmanager
def workers(setting: Setting, task: Task) -> Iterator[dict[str, Worker]]:
    """Yields a worker for each method. Always ends and reaps them."""
    env = environment("job")
    with ExitStack() as stack:
        running: dict[str, Worker] = {}
        for method in task.methods:
            worker = Worker(f"{method.name}, {task.title}", _command(setting, task, method), env)
            running[method.name] = stack.enter_context(worker)
        for worker in running.values():
            worker.receive("hello")
        yield running


def run_block(worker: Worker, name: str, count: int) -> Block:
    """Runs one block on one worker."""
    worker.send(do="prepare", calls=[name] * count)
    worker.receive("ready")
    worker.send(do="go")
    reply = worker.receive("end_ns")
    if reply["calls"] != count:
        raise BenchError(f"{worker.what}: {count} calls requested, {reply['calls']} made")
    seconds = (reply["end_ns"] - reply["begin_ns"]) / 1e9
    return Block(count, seconds, reply["cpu_s"], reply.get("late_us", []), reply.get("ns", []))


def measure(
    tasks: Sequence[Task], setting: Setting, seed: int, progress: Progress
) -> list[Measured]:
    """Runs all tasks."""
    chooser = random.Random(seed)
    found: list[Measured] = []
    for task in tasks:
        warm_up, counts = 2 * task.cell.in_flight, [task.per_block] * task.blocks
        progress.begin(task.title)
        with workers(setting, task) as running:
            blocks = interleave(
                task.members, running, run_block, warm_up, counts, chooser, progress
            )
        progress.end("done")
        found.append(Measured(task, blocks))
    return found
