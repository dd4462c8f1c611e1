# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measure, print the tables, write warm.json."""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from common import document, machine, presets, workspace
from common.errors import BenchError
from common.progress import Progress
from common.reference import Reference
from common.session import Setting, announce, run_program

from . import results, tables
from .definitions import Call, Definitions, Scale, load
from .measure import Task, hold, measure

PROJECT = Path(__file__).resolve().parents[3]
VENV = "venv"
# Debian's own: what a venv is made of on a machine that nobody has prepared.
BASE_PYTHON = "/usr/bin/python3"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Arguments, with QUICK=1 from the environment as --quick."""
    parser = argparse.ArgumentParser(
        prog="bench-warm",
        description="Short tools started cold, from a reserve, by fork and by the platform: time "
        "of one call with 50 ms between, calls per second, memory, CPU. Writes warm.json.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls; QUICK=1 does the same")
    parser.add_argument("--cell", action="append", metavar="CELL", help="only this one, or memory")
    parser.add_argument("--call", action="append", metavar="CALL", help="only this one")
    parser.add_argument("--without", action="append", default=[], metavar="METHOD")
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks of each cell")
    parser.add_argument("--per-block", type=int, metavar="N", help="calls of each block")
    parser.add_argument("--seed", type=int, help="of the order of blocks (random, and recorded)")
    parser.add_argument(
        "--tool", action="append", default=[], metavar="NAME=/PATH", help="use this program"
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


def make_venv(scratch: Path) -> str:
    """The python of a venv with nothing in it."""
    base = BASE_PYTHON if os.access(BASE_PYTHON, os.X_OK) else sys.executable
    folder = scratch / VENV
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return str(folder / "bin" / "python")


def resolve(call: Call, tools: Mapping[str, str]) -> Call:
    """The call with every tool's name replaced by its path."""

    def word(text: str) -> str:
        for tool, path in tools.items():
            text = text.replace("{" + tool + "}", path)
        return text

    program = tools.get(call.argv[0], word(call.argv[0]))
    return replace(call, argv=(program, *map(word, call.argv[1:])))


def why_not(call: Call, env: Mapping[str, str]) -> str | None:
    """What this machine lacks for a call."""
    if not call.prefix:
        return None
    if shutil.which(call.prefix[0], path=env["PATH"]) is None:
        return f"no {call.prefix[0]} here"
    done = subprocess.run([*call.prefix, "true"], env=dict(env), capture_output=True, text=True)
    return f"{call.prefix[0]}: {done.stderr.strip()}" if done.returncode else None


def make_reference(call: Call, cwd: Path, env: Mapping[str, str]) -> Reference:
    """What plain subprocess answers; it must answer the same twice, and without a complaint."""

    def answer() -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            [*call.prefix, *call.argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    found = Reference(call.name, call.argv, *answer())
    wrong = found.difference(*answer())
    if wrong or found.code != 0 or found.stderr:
        raise BenchError(f"call {call.name} does not answer rightly: {wrong or found}")
    return found


def make_tasks(
    options: argparse.Namespace, definitions: Definitions, calls: Mapping[str, Call]
) -> list[Task]:
    """What is asked for."""
    cells = {cell.name for cell in definitions.cells} | {"memory"}
    for name, known in (
        *((name, cells) for name in options.cell or ()),
        *((name, set(definitions.calls)) for name in options.call or ()),
        *((name, set(definitions.methods)) for name in options.without),
    ):
        if name not in known:
            raise BenchError(f"{name!r} is none of {', '.join(sorted(known))}")
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
        # Only root may start programs as somebody else.
        if cell.uid < 0 or os.geteuid() == 0
    ]


def run(options: argparse.Namespace, definitions: Definitions, console: Console) -> results.Row:
    """Measures, and returns what warm.json is to hold."""
    known = presets.load()
    overrides = dict(item.partition("=")[::2] for item in options.tool)
    scratch = Path(tempfile.mkdtemp(prefix="spawnfd-bench-"))
    try:
        tools = presets.resolve_tools(known, overrides)
        home = scratch / "home"
        home.mkdir()
        env = {**known.environment, "HOME": str(home)}
        root = scratch / "workspace"
        workspace.check(workspace.generate(root, known.workspace, tools["git"]), known.workspace)
        named = {**tools, VENV: make_venv(scratch)}
        asked = {
            name: resolve(call, named)
            for name, call in definitions.calls.items()
            if not options.call or name in options.call
        }
        reasons = {name: why_not(call, env) for name, call in asked.items()}
        calls = {name: call for name, call in asked.items() if not reasons[name]}
        tasks = [task for task in make_tasks(options, definitions, calls) if task.calls]
        setting = Setting(
            references={name: make_reference(call, root, env) for name, call in calls.items()},
            env=env,
            cwd=root,
            scratch=scratch,
            floor_program=None,
        )
        facts = machine.describe(named, root, ("spawnfd",))
        total = sum(task.timed for task in tasks)
        announce(console, facts, len(tasks), total)
        with Progress(console, total, len(tasks)) as progress:
            measured = measure(tasks, setting, options.seed, progress)
        held = []
        if not options.cell or "memory" in options.cell:
            held = hold(definitions.memory, calls, setting, definitions.methods)
    finally:
        shutil.rmtree(scratch)
    facts["load_after"] = round(os.getloadavg()[0], 2)
    facts["scale"] = "quick" if options.quick else "full"
    facts["seed"] = options.seed
    left_out = {name: why for name, why in reasons.items() if why}
    left_out |= {what: why for one in measured for what, why in results.cold_ones(one).items()}
    for one in held:
        if not one.kib:
            left_out[f"memory, {one.call}, {one.mode}"] = "nothing parked that may be looked at"
    return results.suite(measured, held, definitions.rules, facts, left_out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if everything ran and every answer was right."""
    options = parse(arguments)

    def program(console: Console) -> None:
        definitions = load()
        found = run(options, definitions, console)
        path = options.out / "warm.json"
        document.write(found, path)
        tables.show(console, found, {cell.name: cell.title for cell in definitions.cells})
        console.print(f"figures: {path}", highlight=False, soft_wrap=True)

    return run_program("bench-warm", program)
