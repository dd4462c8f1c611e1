# SPDX-License-Identifier: MIT OR Apache-2.0
"""Command-line options that the benchmarks share."""

import argparse
import os
import random
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from .definitions import Definitions, Scale
from .errors import BenchError
from .measure import Task

OUT = Path(__file__).resolve().parents[2] / "build" / "bench"


def new_parser(name: str, description: str | None, *, quick: str = "") -> argparse.ArgumentParser:
    """Returns a parser with --out, and with --quick if there is a help text for it."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    if quick:
        parser.add_argument("--quick", action="store_true", help=f"{quick}; QUICK=1 does the same")
    parser.add_argument("--out", type=Path, default=OUT, help="folder (build/bench)")
    return parser


def add_cells(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds --cell, --without, --blocks, --per-block and --seed."""
    seed = random.SystemRandom().getrandbits(32)
    order = "of the order of blocks (random, and recorded)"
    parser.add_argument("--cell", action="append", metavar="CELL", help=what)
    parser.add_argument("--without", action="append", default=[], metavar="METHOD")
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks of each cell")
    parser.add_argument("--per-block", type=int, metavar="N", help="calls of each block")
    parser.add_argument("--seed", type=int, default=seed, help=order)


def add_tool(parser: argparse.ArgumentParser) -> None:
    """Adds --tool."""
    parser.add_argument(
        "--tool", action="append", default=[], metavar="NAME=/PATH", help="use this program"
    )


def tools(options: argparse.Namespace) -> dict[str, str]:
    """Returns the programs of --tool by name."""
    return dict(item.partition("=")[::2] for item in options.tool)


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *counts: str
) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick. Counts must be at least 1."""
    options = parser.parse_args(arguments)
    requested = os.environ.get("QUICK", "0") not in ("", "0")
    options.quick = requested or getattr(options, "quick", False)
    for name in counts:
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def scale(options: argparse.Namespace) -> Scale:
    """Returns the size of the run."""
    return "quick" if options.quick else "full"


def check_known_names(names: Iterable[str] | None, known: Collection[str]) -> None:
    """Raises BenchError for a name in the options that is unknown."""
    for name in names or ():
        if name not in known:
            raise BenchError(f"{name!r} is not one of {', '.join(sorted(known))}")


def make_tasks(
    options: argparse.Namespace,
    definitions: Definitions,
    calls: Collection[str] | None = None,
    others: Iterable[str] = (),
) -> list[Task]:
    """Returns the chosen tasks, filter by filter.

    With `calls`, the tasks have only these. --cell also accepts the names in `others`.
    """
    check_known_names(options.cell, {cell.name for cell in definitions.cells} | set(others))
    check_known_names(options.without, definitions.methods)
    return [
        Task(
            cell=cell,
            calls=tuple(call for call in cell.calls if calls is None or call in calls),
            methods=tuple(
                definitions.methods[name]
                for name in cell.methods
                if name not in options.without and definitions.methods[name].exists()
            ),
            blocks=options.blocks or cell.blocks[scale(options)],
            per_block=options.per_block or cell.per_block[scale(options)],
            filter=filter_name,
        )
        for filter_name in definitions.filters
        for cell in definitions.cells
        if not options.cell or cell.name in options.cell
        # Only root may start programs as another user, so other users skip these cells.
        if cell.uid < 0 or os.geteuid() == 0
    ]
