# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the Python benchmarks' command lines have in common."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from . import machine
from .errors import BenchError
from .reference import Reference

NO_TERMINAL_WIDTH = 132


@dataclass(frozen=True)
class Setting:
    """What all that is compared in a benchmark shares."""

    references: Mapping[str, Reference]
    env: Mapping[str, str]
    cwd: Path
    scratch: Path
    floor_program: Path | None


def announce(console: Console, facts: Mapping[str, object], cells: int, calls: int) -> None:
    """Says what is about to be measured, and if the machine is not quiet."""
    console.print(
        f"{cells} cells, {calls:,} timed calls on {facts['cores']} cores of {facts['cpu']}; "
        "every answer is checked.",
        highlight=False,
    )
    if machine.machine_is_busy(facts):
        console.print(
            f"warning: other work takes {facts['busy_before']:.0%} of the CPUs; the intervals "
            "will be wide and the ratios may lean.",
            style="yellow",
            highlight=False,
        )


def run_program(name: str, program: Callable[[Console], None]) -> int:
    """Exit status 0 if everything ran and every answer was right."""
    # Without a terminal nobody has told how wide the tables may be.
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
