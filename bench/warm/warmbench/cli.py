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
from pathlib import Path

from rich.console import Console

from common import document, flags, machine, presets, workspace
from common.cells import Scale
from common.errors import BenchError
from common.reference import Reference, answer
from common.session import Setting, announce, run_program

from . import results, tables
from .definitions import Call, Definitions, load
from .measure import Task, measure, measure_memory

VENV = "venv"
# The interpreter that runs the benchmark, and console scripts beside it.
OWN_PYTHON = "own-python"
SCRIPTS = ("pip", "ansible")
# Debian's Python. Most users create their venvs from it.
BASE_PYTHON = "/usr/bin/python3"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = argparse.ArgumentParser(
        prog="bench-warm",
        description="Short tools started cold, from a reserve, by fork and by the platform: time "
        "of one call with 50 ms between, calls per second, memory, CPU. Writes warm.json.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls; QUICK=1 does the same")
    parser.add_argument("--cell", action="append", metavar="CELL", help="only this one, or memory")
    parser.add_argument("--call", action="append", metavar="CALL", help="only this one")
    flags.add_blocks(parser)
    parser.add_argument(
        "--tool", action="append", default=[], metavar="NAME=/PATH", help="use this program"
    )
    parser.add_argument("--out", type=Path, default=flags.OUT, help="folder")
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
    argv = [*call.prefix, *call.argv]
    found = Reference(call.name, call.argv, *answer(argv, cwd, env))
    wrong = found.difference(*answer(argv, cwd, env))
    if wrong or found.code != 0 or found.stderr:
        raise BenchError(f"call {call.name} cannot be a reference: {wrong or found}")
    return found


def make_tasks(
    options: argparse.Namespace, definitions: Definitions, calls: Mapping[str, Call]
) -> list[Task]:
    """Returns the chosen tasks."""
    flags.check_known_names(options.cell, {cell.name for cell in definitions.cells} | {"memory"})
    flags.check_known_names(options.call, definitions.calls)
    flags.check_known_names(options.without, definitions.methods)
    scale: Scale = "quick" if options.quick else "full"
    return [
        Task(
            cell=cell,
            calls=tuple(calls[name] for name in cell.calls if name in calls),
            methods=tuple(
                definitions.methods[name] for name in cell.methods if name not in options.without
            ),
            blocks=options.blocks or cell.blocks[scale],
            per_block=options.per_block or cell.per_block[scale],
        )
        for cell in definitions.cells
        if not options.cell or cell.name in options.cell
        # Only root may start programs as another user, so other users skip these cells.
        if cell.uid < 0 or os.geteuid() == 0
    ]


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


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> results.Row:
    """Measures, and returns the content of warm.json."""
    overrides = dict(item.partition("=")[::2] for item in options.tool)
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as folder:
        ready = prepare(Path(folder), definitions, overrides, options.call)
        calls, setting = ready.calls, ready.setting
        tasks = [task for task in make_tasks(options, definitions, calls) if task.calls]
        facts = machine.describe(ready.named, setting.cwd, ("spawnfd",))
        with announce(console, facts, [task.timed for task in tasks]) as progress:
            measured = measure(tasks, setting, options.seed, progress)
        memory_uses = []
        if not options.cell or "memory" in options.cell:
            memory_uses = measure_memory(definitions.memory, calls, setting, definitions.methods)
    facts["load_after"] = round(os.getloadavg()[0], 2)
    facts["scale"] = "quick" if options.quick else "full"
    facts["seed"] = options.seed
    left_out = {name: why for name, why in ready.reasons.items() if why}
    for measured_cell in measured:
        left_out |= results.cold_ones(measured_cell, definitions.rules)
    for one in memory_uses:
        if not one.kib:
            left_out[f"memory, {one.call}, {one.mode}"] = "no parked process can be inspected"
    return results.suite(measured, memory_uses, definitions.rules, facts, left_out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if everything ran and every answer was right."""
    options = parse(arguments)

    def program(console: Console) -> None:
        definitions = load()
        found = run(options, definitions, console)
        path = options.out / "warm.json"
        document.write(found, path)
        tables.show(console, found, {cell.name: cell.title for cell in definitions.cells})
        console.print(f"figures: {path}", highlight=False, soft_wrap=True)

    return run_program("bench-warm", program)
