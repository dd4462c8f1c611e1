# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shared by the Python benchmarks' command lines: the setting of a run, and error handling."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from . import document, floor, machine, workspace
from .definitions import UNFILTERED, Terms
from .errors import BenchError
from .presets import Definitions
from .progress import Progress
from .reference import Reference, make_references
from .stats import INTERVAL

NO_TERMINAL_WIDTH = 132
# Methods with these ways run in a worker of bench-launch.
NATIVE = "native."
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """The setting that all compared methods of a benchmark share.

    Attributes:
        shell: The absolute path of bash.
        floors: The programs of the C floors, by name. Empty if they were not built.
        confine: A program that confines the worker which it executes.
        native: bench-launch, which has the workers in Rust.
    """

    references: Mapping[str, Reference]
    env: Mapping[str, str]
    cwd: Path
    scratch: Path
    shell: str = "/bin/bash"
    floors: Mapping[str, Path] = field(default_factory=dict)
    confine: Path | None = None
    native: Path | None = None

    def in_shell(self) -> "Setting":
        """Returns the same setting, with each call as `bash -c TEXT`."""
        references = {name: one.in_shell(self.shell) for name, one in self.references.items()}
        return replace(self, references=references)

    def command(
        self, suite: str, name: str, terms: Terms, filter_name: str = UNFILTERED
    ) -> list[str]:
        """Returns the command of a method's worker: a C floor, a program in Rust, or Python.

        Raises BenchError if the floor or the program does not exist.
        """
        confined = []
        if filter_name != UNFILTERED:
            confined = [str(self.confine), f"--{filter_name}", "--"]
        way = terms.method.way
        if way in floor.NAMES:
            return [*confined, *self.floor_command(terms.in_flight, way)]
        job = self.job_file(f"{filter_name}-{name}-{terms.method.name}", **asdict(terms))
        if not way.startswith(NATIVE):
            return [*confined, sys.executable, "-m", f"{suite}.worker", str(job)]
        if self.native is None:
            raise BenchError("no --native program")
        return [*confined, str(self.native), "--captured", str(job)]

    def job_file(self, name: str, **job: Any) -> Path:
        """Writes the parameters of a worker to a file, with the calls and their answers."""
        path = self.scratch / f"job-{name}.json"
        job |= {
            "cwd": str(self.cwd),
            "env": dict(self.env),
            "references": [reference.plain() for reference in self.references.values()],
        }
        path.write_text(json.dumps(job), encoding="utf-8")
        return path

    def floor_command(self, in_flight: int, name: str) -> list[str]:
        """Returns the command of a C floor as a worker. Raises BenchError if it was not built."""
        if name not in self.floors:
            raise BenchError(f"the C floor {name} was not built")
        calls = self.scratch / f"{name}.calls"
        calls.write_bytes(floor.call_list(self.references.values(), self.env, self.cwd))
        return [str(self.floors[name]), str(calls), str(in_flight)]


def make_setting(
    scratch: Path,
    definitions: Definitions,
    tools: Mapping[str, str],
    *,
    floors: Sequence[str] = (floor.FLOOR,),
) -> Setting:
    """Creates a workspace in `scratch`, the references of the presets there, and the floors.

    Raises BenchError if workspace or answers differ from the pins, or a floor cannot be built.
    """
    root, env = workspace.prepare(scratch, definitions, tools["git"])
    return Setting(
        references=make_references(definitions, tools, root, env),
        env=env,
        cwd=root,
        scratch=scratch,
        shell=tools["bash"],
        floors={name: floor.build(name, scratch) for name in floors},
    )


def announce(console: Console, facts: Mapping[str, object], calls: Sequence[int]) -> Progress:
    """Prints the size of the run, and a warning if the machine is busy."""
    console.print(
        f"{len(calls)} cells, {sum(calls):,} timed calls on {facts['cores']} cores of "
        f"{facts['cpu']}; every answer is checked.",
        highlight=False,
    )
    if machine.machine_is_busy(facts):
        console.print(
            f"warning: other processes use {facts['busy_before']:.0%} of the CPUs; the intervals "
            "will be wide, and the ratios may be biased.",
            style="yellow",
            highlight=False,
        )
    return Progress(console, sum(calls), len(calls))


def new_console() -> Console:
    """Returns a console for stdout. Without a terminal, the width of the output is unknown."""
    return Console(width=None if sys.stdout.isatty() else NO_TERMINAL_WIDTH)


def finish_facts(facts: dict[str, object], **more: object) -> dict[str, object]:
    """Returns the facts after a run: the load at its end, and those of the benchmark."""
    return {**facts, "load_after": round(os.getloadavg()[0], 2), **more}


def suite(
    name: str,
    machine: Mapping[str, object],
    ratios: Iterable[Row],
    rows: Iterable[Row],
    interval: str = INTERVAL,
    **more: object,
) -> Row:
    """Returns the content of a result file."""
    return {
        "suite": name,
        "machine": dict(machine),
        "interval": interval,
        **more,
        "ratios": list(ratios),
        "rows": list(rows),
    }


def run_program(name: str, program: Callable[[Console], None]) -> int:
    """Runs the program. The exit status is 0 if everything ran and every answer was right."""
    try:
        program(new_console())
    except BenchError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 0


def run_suite(
    name: str, out: Path, measure: Callable[[Console], Row], show: Callable[[Console, Row], None]
) -> int:
    """Measures a suite, writes its result file into `out`, and shows it. See run_program."""

    def program(console: Console) -> None:
        found = measure(console)
        path = out / f"{name}.json"
        document.write(found, path)
        show(console, found)
        console.print(f"figures: {path}", highlight=False, soft_wrap=True)

    return run_program(f"bench-{name}", program)
