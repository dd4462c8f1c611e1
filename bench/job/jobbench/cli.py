# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measures, prints the tables, writes job.json."""

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from common import flags, floor, machine, presets
from common.definitions import UNFILTERED, Definitions, Terms, load
from common.measure import Task, measure
from common.reference import Reference
from common.session import (
    NATIVE,
    Row,
    Setting,
    announce,
    finish_facts,
    make_setting,
    run_suite,
)

from . import results, tables

SUITE = "job"
DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = flags.new_parser(
        "bench-job",
        "Captured runs of small tools by subprocess, asyncio, uvloop, spawnfd and a C loop, one "
        "and 16 in flight. Writes job.json.",
        quick="fewer calls",
    )
    flags.add_cells(parser, "only this one")
    confine = "spawnfd-confine, to repeat all under Docker's profile"
    native = "bench-launch, to measure sessions and tiers from Rust"
    parser.add_argument("--confine", type=Path, metavar="PATH", help=confine)
    parser.add_argument("--native", type=Path, metavar="PATH", help=native)
    return flags.parse(parser, arguments, "blocks", "per_block")


def why_not(
    task: Task, touch_mib: int, free_mib: int, confine: Path | None, native: Path | None
) -> str | None:
    """Returns the reason why this machine cannot run a task, or None."""
    if native is None and any(method.way.startswith(NATIVE) for method in task.methods):
        return "no --native program"
    if task.filter != UNFILTERED and confine is None:
        return "no --confine program"
    wanted = touch_mib * len(task.methods)
    if wanted and free_mib < wanted + machine.SPARE_MIB:
        return f"needs {wanted + machine.SPARE_MIB} MiB of free memory, there are {free_mib}"
    return None


def commands(setting: Setting, definitions: Definitions, task: Task) -> dict[str, list[str]]:
    """Returns the command of each method's worker."""
    cell = task.cell
    if cell.shell:
        setting = setting.in_shell()
    if cell.stream:
        kinds = {kind: Reference(kind, (kind,), 0, b"", b"") for kind in cell.calls}
        setting = replace(setting, references=kinds)
    parent = definitions.parents[cell.parent]
    return {
        method.name: setting.command(
            "jobbench",
            cell.name,
            Terms(method, cell.in_flight, parent, cell.tick_us),
            task.filter,
        )
        for method in task.methods
    }


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> Row:
    """Measures, and returns the content of job.json."""
    calls = presets.load()
    free = machine.free_mib()
    requested = flags.make_tasks(options, definitions)
    reasons: dict[str, str | None] = {}
    for task in requested:
        touch_mib = definitions.parents[task.cell.parent].touch_mib
        reasons[task.title] = why_not(task, touch_mib, free, options.confine, options.native)
    tasks = [task for task in requested if not reasons[task.title]]
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as scratch:
        tools = presets.resolve_tools(calls, {})
        floors = [name for name in floor.NAMES if name not in options.without]
        setting = make_setting(Path(scratch), calls, tools, floors=floors)
        setting = replace(setting, confine=options.confine, native=options.native)
        facts = machine.describe(tools, setting.cwd, ("spawnfd", "uvloop", "pexpect"))
        with announce(console, facts, [task.timed for task in tasks]) as progress:
            measured = measure(
                SUITE, tasks, partial(commands, setting, definitions), options.seed, progress
            )
    facts = finish_facts(
        facts,
        scale=flags.scale(options),
        seed=options.seed,
        # True if CPython may use vfork for the children of subprocess and asyncio.
        cpython_vfork=getattr(subprocess, "_USE_VFORK", False),
    )
    left_out = {title: why for title, why in reasons.items() if why}
    return results.suite(measured, definitions.rules, facts, left_out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if everything ran and every answer was right."""
    options = parse(arguments)
    definitions = load(DEFINITIONS_FILE)
    titles = {cell.name: cell.title for cell in definitions.cells}
    return run_suite(
        SUITE, options.out, partial(run, options, definitions), partial(tables.show, titles)
    )
