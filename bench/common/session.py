# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shared by the Python benchmarks' command lines: the setting of a run, and error handling."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from . import floor, machine, workspace
from .errors import BenchError
from .presets import Definitions
from .progress import Progress
from .reference import Reference, make_references

NO_TERMINAL_WIDTH = 132


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

    def worker_command(self, suite: str, name: str, **terms: Any) -> list[str]:
        """Returns the command of a suite's Python worker. Writes its parameters to a job file."""
        return [sys.executable, "-m", f"{suite}bench.worker", str(self._job_file(name, terms))]

    def native_command(self, name: str, **terms: Any) -> list[str]:
        """Returns the command of a worker in Rust. Writes its parameters to a job file."""
        if self.native is None:
            raise BenchError("no --native program")
        return [str(self.native), "--captured", str(self._job_file(name, terms))]

    def _job_file(self, name: str, terms: Mapping[str, Any]) -> Path:
        job = self.scratch / f"job-{name}.json"
        description = {
            **terms,
            "cwd": str(self.cwd),
            "env": dict(self.env),
            "references": [reference.plain() for reference in self.references.values()],
        }
        job.write_text(json.dumps(description), encoding="utf-8")
        return job

    def floor_command(self, in_flight: int, name: str = floor.FLOOR) -> list[str]:
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
    check_pins: bool = True,
) -> Setting:
    """Creates a workspace in `scratch`, the references of the presets there, and the floors.

    Raises BenchError if workspace or answers differ from the pins, or a floor cannot be built.
    """
    root, env = workspace.prepare(scratch, definitions, tools["git"], check_pins=check_pins)
    return Setting(
        references=make_references(definitions, tools, root, env, check_pins=check_pins),
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


def run_program(name: str, program: Callable[[Console], None]) -> int:
    """Runs the program. The exit status is 0 if everything ran and every answer was right."""
    # Without a terminal, the width of the output is unknown.
    console = Console(width=None if sys.stdout.isatty() else NO_TERMINAL_WIDTH)
    try:
        program(console)
    except BenchError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 0
