# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: opens the places, measures, prints the tables, writes remote.json."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from common import flags, machine, presets, results, session, tables
from common.definitions import Definitions, Terms, load
from common.measure import Task, measure
from common.reference import Reference
from common.results import Row, timed_row
from common.session import Setting, announce, finish_facts, make_setting, run_suite

from . import ray_rows
from .places import Places, open_places

SUITE = "remote"
DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
# The kinds of calls that are no presets.
KINDS = ("bulk", "trip")
# The name of the part with Ray, as --cell accepts it.
RAY = "ray"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = flags.new_parser(
        "bench-remote",
        "Programs through `spawnfd serve` behind a pipe, behind ssh and in a container, against "
        "local runs and other libraries. Writes remote.json.",
        quick="fewer calls",
    )
    flags.add_cells(parser, "only this one")
    parser.add_argument(
        "--server", type=Path, required=True, metavar="PATH", help="the command spawnfd"
    )
    return flags.parse(parser, arguments, "blocks", "per_block")


def commands(
    setting: Setting, definitions: Definitions, places: Places, task: Task
) -> dict[str, list[str]]:
    """Returns the command of each method's worker."""
    cell = task.cell
    if cell.shell:
        setting = setting.in_shell()
    if set(cell.calls) <= set(KINDS):
        kinds = {kind: Reference(kind, (kind,), 0, b"", b"") for kind in cell.calls}
        setting = replace(setting, references=kinds)
    parent = definitions.parents[cell.parent]
    found = {name: place.plain() for name, place in places.found.items()}
    made: dict[str, list[str]] = {}
    for method in task.methods:
        terms = Terms(method, cell.in_flight, parent)
        job = setting.job_file(f"{cell.name}-{method.name}", **asdict(terms), places=found)
        made[method.name] = [sys.executable, "-m", "remotebench.worker", str(job)]
    return made


def without_missing(task: Task, places: Places) -> tuple[Task, dict[str, str]]:
    """Returns the task with the methods that this machine can run, and why it lacks the others."""
    lacks = {
        f"{task.title}, {method.title}": why
        for method in task.methods
        if (why := places.missing.get(method.place or ""))
    }
    methods = tuple(method for method in task.methods if method.place not in places.missing)
    return replace(task, methods=methods), lacks


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> Row:
    """Measures, and returns the content of remote.json."""
    calls = presets.load()
    left_out: dict[str, str] = {}
    tasks: list[Task] = []
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as scratch:
        tools = presets.resolve_tools(calls, {})
        setting = make_setting(Path(scratch), calls, tools, floors=())
        facts = machine.describe(tools, setting.cwd, ("spawnfd", "execnet", "swe-rex"))
        with open_places(Path(scratch), options.server.resolve()) as places:
            for requested in flags.make_tasks(options, definitions, others=(RAY,)):
                task, lacks = without_missing(requested, places)
                left_out |= lacks
                tasks += [task] if task.methods else []
            with announce(console, facts, [task.timed for task in tasks]) as progress:
                command = partial(commands, setting, definitions, places)
                measured = measure(SUITE, tasks, command, options.seed, progress)
    ratios = [
        ratio
        for one in measured
        for ratio in results.ratios_of(one, definitions.rules, lambda pair: {})
    ]
    if not options.cell or RAY in options.cell:
        console.print("Ray: one node", highlight=False)
        ratios += ray_rows.rows(5, 20, 160) if options.quick else ray_rows.rows()
    facts = finish_facts(facts, scale=flags.scale(options), seed=options.seed)
    rows = (
        timed_row(one.task, name, method, blocks)
        for one in measured
        for (name, method), blocks in one.blocks.items()
    )
    return session.suite(SUITE, facts, ratios, rows, left_out=left_out)


def _figure(row: tables.Row) -> tables.Figure:
    """Returns the us of a call, and beside it the median."""
    return f"{row['us_per_call']:,.0f}", f"p50 {row['us_p50']:,.0f}"


def show(titles: dict[str, str], console: Console, document: Row) -> None:
    """Prints the tables, those of cells below their titles."""
    for name, title in titles.items():
        if rows := [row for row in document["rows"] if row["cell"] == name]:
            console.print(tables.call_grid(f"us per call, {title}", rows, _figure).for_terminal())
    tables.show_ratios(console, document)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if everything ran and every answer was right."""
    options = parse(arguments)
    definitions = load(DEFINITIONS_FILE)
    titles = {cell.name: cell.title for cell in definitions.cells}
    return run_suite(SUITE, options.out, partial(run, options, definitions), partial(show, titles))
