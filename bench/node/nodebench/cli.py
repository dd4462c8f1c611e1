# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measures, prints the tables, writes node.json."""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from common import flags, floor, machine, presets
from common.definitions import Call, Definitions, Method, Terms, load
from common.errors import BenchError
from common.measure import Task, measure
from common.session import Row, Setting, announce, finish_facts, make_setting, run_suite

from . import hosts, results, tables

SUITE = "node"
HERE = Path(__file__).resolve().parents[1]
DEFINITIONS_FILE = HERE / "definitions.toml"
WORKER = HERE / "worker" / "worker.mjs"
PACKAGE = HERE.parents[1] / "bindings" / "node"
EXECA = HERE / "node_modules" / "execa" / "package.json"
# The processes that are parked for a call. In mode fork there is one for each call in flight.
DEPTH = 4


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = flags.new_parser(
        "bench-node",
        "Captured runs of small tools by child_process, execa, Bun, spawnfd and a C loop, one and "
        "16 in flight, from Node and Bun. Writes node.json.",
        quick="fewer calls",
    )
    flags.add_cells(parser, "only this one")
    parser.add_argument("--cache", type=Path, required=True, help="for the hosts of the registry")
    parser.add_argument("--package", type=Path, default=PACKAGE, help="the built package")
    parser.add_argument(
        "--host", action="append", default=[], metavar="NAME=/PATH", help="use this program"
    )
    return flags.parse(parser, arguments, "blocks", "per_block")


@dataclass(frozen=True)
class Hosts:
    """The hosts on this machine, and the reason for each host that is left out."""

    found: Mapping[str, hosts.Found]
    left_out: Mapping[str, str]


def find_hosts(options: argparse.Namespace, tasks: Sequence[Task]) -> Hosts:
    """Finds the hosts of the tasks' methods. Raises BenchError for unknown names in --host."""
    known = hosts.load(DEFINITIONS_FILE)
    named = {name: Path(path) for name, _, path in (one.partition("=") for one in options.host)}
    flags.check_known_names(named, known)
    wanted = {method.host for task in tasks for method in task.methods if method.host}
    found: dict[str, hosts.Found] = {}
    left_out: dict[str, str] = {}
    for name in (name for name in known if name in wanted):
        one = hosts.find(known[name], options.cache, options.package.resolve(), named)
        if isinstance(one, str):
            left_out[name] = one
        else:
            found[name] = one
    return Hosts(found, left_out)


def why_not(method: Method, on: Hosts) -> str | None:
    """Returns the reason why a method cannot be measured, or None."""
    if method.host is None:
        return None
    if method.host in on.left_out:
        return on.left_out[method.host]
    return hosts.missing(method, on.found[method.host].exports)


def possible(
    tasks: Sequence[Task], definitions: Definitions, on: Hosts, free_mib: int
) -> tuple[list[Task], dict[str, str]]:
    """Returns the tasks with the methods that can be measured, and the reasons for all others.

    A task without two methods is left out.
    """
    kept: list[Task] = []
    left_out: dict[str, str] = {}
    for task in tasks:
        reasons = {method: why_not(method, on) for method in task.methods}
        left_out |= {f"{task.title}, {method.name}": why for method, why in reasons.items() if why}
        methods = tuple(method for method, why in reasons.items() if not why)
        wanted = definitions.parents[task.cell.parent].touch_mib * len(methods)
        if wanted and free_mib < wanted + machine.SPARE_MIB:
            left_out[task.title] = f"needs {wanted + machine.SPARE_MIB} MiB of free memory"
        elif len(methods) > 1:
            kept.append(replace(task, methods=methods))
    return kept, left_out


def commands(
    setting: Setting, definitions: Definitions, on: Hosts, package: Path, task: Task
) -> dict[str, list[str]]:
    """Returns the command of each method's worker."""
    cell = task.cell
    warm = any(method.mode for method in task.methods)
    found: dict[str, list[str]] = {}
    for method in task.methods:
        if method.host is None:
            found[method.name] = setting.floor_command(cell.in_flight, method.way)
            continue
        depth = max(DEPTH, cell.in_flight) if method.mode == "fork" else DEPTH
        terms = Terms(
            method,
            cell.in_flight,
            definitions.parents[cell.parent],
            tick_us=cell.tick_us,
            gap_ms=cell.gap_ms,
            # Without pauses between the calls, these calls use up what is parked.
            untimed=2 * cell.in_flight if warm and not cell.gap_ms else 0,
            parks=tuple(
                Call(name, setting.references[name].argv, depth=depth)
                for name in (task.calls if method.mode else ())
            ),
        )
        job = setting.job_file(f"{cell.name}-{method.name}", **asdict(terms), package=str(package))
        found[method.name] = [on.found[method.host].program, str(WORKER), str(job)]
    return found


def execa_version() -> str:
    """Returns the version of the installed execa. Raises BenchError if it is not installed."""
    if not EXECA.exists():
        raise BenchError(f"execa is not installed: run npm ci in {HERE}, or use make bench-node")
    return str(json.loads(EXECA.read_text(encoding="utf-8"))["version"])


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> Row:
    """Measures, and returns the content of node.json."""
    calls = presets.load()
    requested = flags.make_tasks(options, definitions)
    execa = execa_version()
    package = options.package.resolve()
    on = find_hosts(options, requested)
    tasks, left_out = possible(requested, definitions, on, machine.free_mib())
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as scratch:
        tools = presets.resolve_tools(calls, {})
        floors = (floor.FLOOR, floor.THREAD_FLOOR)
        setting = make_setting(Path(scratch), calls, tools, floors=floors)
        facts = machine.describe(tools, setting.cwd, ())
        make = partial(commands, setting, definitions, on, package)
        with announce(console, facts, [task.timed for task in tasks]) as progress:
            measured = measure(SUITE, tasks, make, options.seed, progress)
    facts = finish_facts(
        facts,
        scale=flags.scale(options),
        seed=options.seed,
        hosts={name: found.plain() for name, found in on.found.items()},
        execa=execa,
        huge_pages=machine.huge_pages(),
        package=str(package),
    )
    return results.suite(measured, definitions.rules, facts, left_out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if everything ran and every answer was right."""
    options = parse(arguments)
    definitions = load(DEFINITIONS_FILE)
    titles = {cell.name: cell.title for cell in definitions.cells}
    return run_suite(
        SUITE, options.out, partial(run, options, definitions), partial(tables.show, titles)
    )
