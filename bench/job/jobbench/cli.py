# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measures, prints the tables, writes job.json."""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from common import document, flags, machine, presets
from common.cells import Scale
from common.session import announce, make_setting, run_program

from . import results, tables
from .definitions import Definitions, load
from .measure import Task, free_mib, measure, why_not
from .methods import FLOORS


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = argparse.ArgumentParser(
        prog="bench-job",
        description="Captured runs of small tools by subprocess, asyncio, uvloop, spawnfd and a C "
        "loop, one and 16 in flight. Writes job.json.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls; QUICK=1 does the same")
    parser.add_argument("--cell", action="append", metavar="CELL", help="only this one")
    flags.add_blocks(parser)
    parser.add_argument(
        "--confine",
        type=Path,
        metavar="PATH",
        help="spawnfd-confine, to repeat all under Docker's profile",
    )
    parser.add_argument(
        "--native",
        type=Path,
        metavar="PATH",
        help="bench-launch, to measure sessions and tiers from Rust",
    )
    parser.add_argument("--out", type=Path, default=flags.OUT, help="folder")
    return flags.parse(parser, arguments, "blocks", "per_block")


def make_tasks(
    options: argparse.Namespace, definitions: Definitions, calls: presets.Definitions
) -> list[Task]:
    """Returns the chosen tasks, filter by filter."""
    flags.check_known_names(options.cell, {cell.name for cell in definitions.cells})
    flags.check_known_names(options.without, definitions.methods)
    scale: Scale = "quick" if options.quick else "full"
    return [
        Task(
            cell=cell,
            filter=filter_name,
            members=cell.members(calls),
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


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> results.Row:
    """Measures, and returns the content of job.json."""
    calls = presets.load()
    requested = make_tasks(options, definitions, calls)
    free = free_mib()
    reasons = {
        task.title: why_not(task, options.confine, free, options.native) for task in requested
    }
    tasks = [task for task in requested if not reasons[task.title]]
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as scratch:
        tools = presets.resolve_tools(calls, {})
        floors = [name for name in FLOORS if name not in options.without]
        setting = make_setting(Path(scratch), calls, tools, floors=floors)
        setting = replace(setting, confine=options.confine, native=options.native)
        facts = machine.describe(tools, setting.cwd, ("spawnfd", "uvloop", "pexpect"))
        with announce(console, facts, [task.calls for task in tasks]) as progress:
            measured = measure(tasks, setting, options.seed, progress)
    facts["load_after"] = round(os.getloadavg()[0], 2)
    facts["scale"] = "quick" if options.quick else "full"
    facts["seed"] = options.seed
    # True if CPython may use vfork for the children of subprocess and asyncio.
    facts["cpython_vfork"] = getattr(subprocess, "_USE_VFORK", False)
    left_out = {title: why for title, why in reasons.items() if why}
    return results.suite(measured, definitions.rules, facts, left_out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if everything ran and every answer was right."""
    options = parse(arguments)

    def program(console: Console) -> None:
        definitions = load()
        found = run(options, definitions, console)
        path = options.out / "job.json"
        document.write(found, path)
        tables.show(console, found, definitions.cells)
        console.print(f"figures: {path}", highlight=False, soft_wrap=True)

    return run_program("bench-job", program)
