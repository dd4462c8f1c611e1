# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measure, print the tables, write job.json."""

import argparse
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common import document, floor, machine, presets, reference, workspace
from common.errors import BenchError
from common.progress import Progress
from common.session import announce, run_program

from . import results, tables
from .definitions import Definitions, Scale, load
from .measure import Measured, Setting, Task, free_mib, measure, why_not
from .methods import FLOOR

PROJECT = Path(__file__).resolve().parents[3]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Arguments, with QUICK=1 from the environment as --quick."""
    parser = argparse.ArgumentParser(
        prog="bench-job",
        description="Captured runs of small tools by subprocess, asyncio, uvloop, spawnfd and a C "
        "loop, one and 16 in flight. Writes job.json.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls; QUICK=1 does the same")
    parser.add_argument("--cell", action="append", metavar="CELL", help="only this one")
    parser.add_argument("--without", action="append", default=[], metavar="METHOD")
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks of each cell")
    parser.add_argument("--per-block", type=int, metavar="N", help="calls of each block")
    parser.add_argument("--seed", type=int, help="of the order of blocks (random, and recorded)")
    parser.add_argument(
        "--confine", type=Path, metavar="PATH", help="spawnfd-confine, to repeat all under Docker's"
    )
    parser.add_argument("--out", type=Path, default=PROJECT / "build" / "bench", help="folder")
    options = parser.parse_args(arguments)
    if os.environ.get("QUICK", "0") not in ("", "0"):
        options.quick = True
    if options.seed is None:
        options.seed = random.SystemRandom().getrandbits(32)
    for name in ("blocks", "per_block"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def make_tasks(
    options: argparse.Namespace, definitions: Definitions, calls: presets.Definitions
) -> list[Task]:
    """What is asked for, filter by filter."""
    for name, known in (
        *((name, {cell.name for cell in definitions.cells}) for name in options.cell or ()),
        *((name, set(definitions.methods)) for name in options.without),
    ):
        if name not in known:
            raise BenchError(f"{name!r} is none of {', '.join(sorted(known))}")
    scale: Scale = "quick" if options.quick else "full"
    return [
        Task(
            cell=cell,
            filter=filter_name,
            members=calls.members(cell.calls),
            methods=tuple(
                definitions.methods[name]
                for name in cell.methods
                if name not in options.without and definitions.methods[name].exists()
            ),
            parent=definitions.parents[cell.parent],
            blocks=options.blocks or cell.blocks[scale],
            per_block=options.per_block or cell.per_block[scale],
        )
        for filter_name in definitions.filters
        for cell in definitions.cells
        if not options.cell or cell.name in options.cell
    ]


def prepare(options: argparse.Namespace, scratch: Path) -> tuple[Setting, dict[str, str]]:
    """Tools, workspace, right answers and the floor."""
    calls = presets.load()
    tools = presets.resolve_tools(calls, {})
    home = scratch / "home"
    home.mkdir()
    env = {**calls.environment, "HOME": str(home)}
    root = scratch / "workspace"
    workspace.check(workspace.generate(root, calls.workspace, tools["git"]), calls.workspace)
    setting = Setting(
        references=reference.make_references(calls, tools, root, env),
        env=env,
        cwd=root,
        scratch=scratch,
        floor_program=None if FLOOR in options.without else floor.build(scratch),
        confine=options.confine,
    )
    return setting, tools


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> results.Row:
    """Measures, and returns what job.json is to hold."""
    asked = make_tasks(options, definitions, presets.load())
    free = free_mib()
    reasons = {task.title: why_not(task, options.confine, free) for task in asked}
    tasks = [task for task in asked if not reasons[task.title]]
    scratch = Path(tempfile.mkdtemp(prefix="spawnfd-bench-"))
    try:
        setting, tools = prepare(options, scratch)
        facts = machine.describe(tools, setting.cwd, ("spawnfd", "uvloop"))
        total = sum(task.calls for task in tasks)
        announce(console, facts, len(tasks), total)
        with Progress(console, total, len(tasks)) as progress:
            measured: list[Measured] = measure(tasks, setting, options.seed, progress)
    finally:
        shutil.rmtree(scratch)
    facts["load_after"] = round(os.getloadavg()[0], 2)
    facts["scale"] = "quick" if options.quick else "full"
    facts["seed"] = options.seed
    # How CPython starts the children of subprocess and asyncio: not fork, if it may.
    facts["cpython_vfork"] = getattr(subprocess, "_USE_VFORK", False)
    left_out = {title: why for title, why in reasons.items() if why}
    return results.suite(measured, definitions.rules, facts, left_out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if everything ran and every answer was right."""
    options = parse(arguments)

    def program(console: Console) -> None:
        definitions = load()
        found = run(options, definitions, console)
        path = options.out / "job.json"
        document.write(found, path)
        tables.show(console, found, definitions.cells)
        console.print(f"figures: {path}", highlight=False, soft_wrap=True)

    return run_program("bench-job", program)
