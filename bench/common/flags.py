# SPDX-License-Identifier: MIT OR Apache-2.0
"""Command-line options that several benchmarks share."""

import argparse
import os
import random
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from .errors import BenchError

OUT = Path(__file__).resolve().parents[2] / "build" / "bench"


def add_blocks(parser: argparse.ArgumentParser) -> None:
    """Adds --without, --blocks, --per-block and --seed."""
    seed = random.SystemRandom().getrandbits(32)
    order = "of the order of blocks (random, and recorded)"
    parser.add_argument("--without", action="append", default=[], metavar="METHOD")
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks of each cell")
    parser.add_argument("--per-block", type=int, metavar="N", help="calls of each block")
    parser.add_argument("--seed", type=int, default=seed, help=order)


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *counts: str
) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick. Counts must be at least 1."""
    options = parser.parse_args(arguments)
    if os.environ.get("QUICK", "0") not in ("", "0"):
        options.quick = True
    for name in counts:
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def check_known_names(names: Iterable[str] | None, known: Collection[str]) -> None:
    """Raises BenchError for a name in the options that is unknown."""
    for name in names or ():
        if name not in known:
            raise BenchError(f"{name!r} is not one of {', '.join(sorted(known))}")
