# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measures, prints the tables, writes warm.json."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from common import flags, machine, presets, workspace
from common.definitions import Call, Definitions, Terms, load
from common.errors import BenchError
from common.measure import Task, measure
from common.reference import Reference, take
from common.session import Row, Setting, announce, finish_facts, run_suite

from . import memory, results, tables

SUITE = "warm"
DEFINITIONS_FILE = Path(__file__).resolve().parents[1] / "definitions.toml"
VENV = "venv"
# The interpreter that runs the benchmark, and console scripts beside it.
OWN_PYTHON = "own-python"
SCRIPTS = ("pip", "ansible")
# Debian's Python. Most users create their venvs from it.
BASE_PYTHON = "/usr/bin/python3"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = flags.new_parser(
        "bench-warm",
        "Short tools started cold, from a reserve, by fork and by the platform: time of one call "
        "with 50 ms between, calls per second, memory, CPU. Writes warm.json.",
        quick="fewer calls",
    )
    flags.add_cells(parser, "only this one, or memory")
    parser.add_argument("--call", action="append", metavar="CALL", help="only this one")
    flags.add_tool(parser)
    return flags.parse(parser, arguments, "blocks", "per_block")


def make_venv(scratch: Path) -> str:
    """Creates an empty venv, and returns the path of its python."""
    base = BASE_PYTHON if os.access(BASE_PYTHON, os.X_OK) else sys.executable
    folder = scratch / VENV
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return str(folder / "bin" / "python")


def why_not(call: Call, env: Mapping[str, str]) -> str | None:
    """Returns the reason why this machine cannot make a call, or None."""
    if not call.prefix:
        return None
    if shutil.which(call.prefix[0], path=env["PATH"]) is None:
        return f"no {call.prefix[0]} here"
    done = subprocess.run([*call.prefix, "true"], env=dict(env), capture_output=True, text=True)
    return f"{call.prefix[0]}: {done.stderr.strip()}" if done.returncode else None


def make_reference(call: Call, cwd: Path, env: Mapping[str, str]) -> Reference:
    """Returns the answer by subprocess.

    Two runs must agree, succeed, and write nothing to stderr.
    """
    found = take(call.name, (*call.prefix, *call.argv), cwd, env)
    if found.code != 0 or found.stderr:
        raise BenchError(f"call {call.name} cannot be a reference: {found}")
    return found


def commands(
    setting: Setting, definitions: Definitions, calls: Mapping[str, Call], task: Task
) -> dict[str, list[str]]:
    """Returns the command of each method's worker."""
    cell = task.cell
    found: dict[str, list[str]] = {}
    for method in task.methods:
        # In mode fork, one process is forked in advance for each call in flight.
        ahead = cell.in_flight if method.mode == "fork" else 1
        chosen = [calls[name] for name in task.calls]
        terms = Terms(
            method,
            cell.in_flight,
            definitions.parents[cell.parent],
            gap_ms=cell.gap_ms,
            # Without pauses between the calls, these calls use up what is parked.
            untimed=0 if cell.gap_ms or cell.load else 2 * cell.in_flight,
            uid=cell.uid,
            parks=tuple(replace(call, depth=max(call.depth, ahead)) for call in chosen),
        )
        found[method.name] = setting.command("common", cell.name, terms)
    return found


@dataclass(frozen=True)
class Prepared:
    """The calls that this machine can make, and the reason for each call that it cannot make."""

    named: Mapping[str, str]
    calls: Mapping[str, Call]
    reasons: Mapping[str, str | None]
    setting: Setting


def prepare(
    scratch: Path,
    definitions: Definitions,
    overrides: Mapping[str, str],
    wanted: Collection[str] | None = None,
) -> Prepared:
    """Creates a workspace in `scratch`, and references of the wanted calls.

    None means all calls.
    """
    known = presets.load()
    tools = presets.resolve_tools(known, overrides)
    root, env = workspace.prepare(scratch, known, tools["git"])
    named = {**tools, VENV: make_venv(scratch), OWN_PYTHON: sys.executable}
    named |= {name: str(Path(sys.executable).with_name(name)) for name in SCRIPTS}
    requested = {
        name: replace(
            call,
            argv=presets.resolve_argv(call.argv, named),
            entry=presets.resolve_argv((call.entry,), named)[0],
        )
        for name, call in definitions.calls.items()
        if not wanted or name in wanted
    }
    reasons = {name: why_not(call, env) for name, call in requested.items()}
    calls = {name: call for name, call in requested.items() if not reasons[name]}
    references = {name: make_reference(call, root, env) for name, call in calls.items()}
    setting = Setting(references=references, env=env, cwd=root, scratch=scratch)
    return Prepared(named, calls, reasons, setting)


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> Row:
    """Measures, and returns the content of warm.json."""
    flags.check_known_names(options.call, definitions.calls)
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as folder:
        ready = prepare(Path(folder), definitions, flags.tools(options), options.call)
        calls, setting = ready.calls, ready.setting
        every = flags.make_tasks(options, definitions, calls, ("memory",))
        tasks = [task for task in every if task.calls]
        facts = machine.describe(ready.named, setting.cwd, ("spawnfd",))
        make = partial(commands, setting, definitions, calls)
        with announce(console, facts, [task.timed for task in tasks]) as progress:
            measured = measure(SUITE, tasks, make, options.seed, progress)
        uses = []
        if not options.cell or "memory" in options.cell:
            uses = memory.measure(definitions, calls, setting)
    facts = finish_facts(facts, scale=flags.scale(options), seed=options.seed)
    left_out = {name: why for name, why in ready.reasons.items() if why}
    for measured_cell in measured:
        left_out |= results.cold_ones(measured_cell, definitions.rules)
    for use in uses:
        if not use.kib:
            left_out[f"memory, {use.call}, {use.mode}"] = "no parked process can be inspected"
    rules, parents = definitions.rules, definitions.parents
    return results.suite(measured, uses, rules, parents, facts, left_out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if everything ran and every answer was right."""
    options = parse(arguments)
    definitions = load(DEFINITIONS_FILE)
    titles = {cell.name: cell.title for cell in definitions.cells}
    return run_suite(
        SUITE, options.out, partial(run, options, definitions), partial(tables.show, titles)
    )
