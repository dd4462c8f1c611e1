# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measures, prints the tables, writes launch.json or snapshot.json."""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from common import flags, machine
from common.errors import BenchError
from common.progress import Progress
from common.session import Row, finish_facts, run_suite

from . import results
from .launch import SUITES, Launch, Samples
from .worker import Definitions, Key, install, load

CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
KINDS = ("suite", "filter", "parent")


def _restriction(text: str) -> tuple[str, str]:
    kind, _, name = text.partition("=")
    if kind not in KINDS or not name:
        raise argparse.ArgumentTypeError("must be suite=NAME, filter=NAME or parent=NAME")
    return kind, name


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = flags.new_parser(
        "bench-native",
        "Methods of launching a program, interleaved, from small and large parents; or methods of "
        "mapping a 662 KB library. Writes launch.json or snapshot.json.",
        quick="a tenth of the samples",
    )
    parser.add_argument("suite", choices=("launch", "snapshot"))
    program = "bench-launch, which has the workers"
    parser.add_argument("--program", type=Path, required=True, metavar="PATH", help=program)
    only = "restrict the run: suite=NAME, filter=NAME or parent=NAME; may be repeated"
    parser.add_argument(
        "--only", action="append", default=[], type=_restriction, metavar="KIND=NAME", help=only
    )
    return flags.parse(parser, arguments)


def launch(options: argparse.Namespace, definitions: Definitions, console: Console) -> Samples:
    """Measures launches. The programs lie two directories deep, as in /usr/bin."""
    scale = flags.scale(options)
    cells = len(definitions["filters"]["names"]) * len(SUITES)
    with (
        tempfile.TemporaryDirectory(prefix="spawnfd-", dir="/tmp") as folder,
        Progress(console, None, cells) as progress,
    ):
        install(options.program, Path(folder))
        place = (options.program, Path(folder))
        return Launch(definitions, *place, scale, options.only, progress).run()


def snapshot(options: argparse.Namespace, definitions: Definitions, console: Console) -> Samples:
    """Measures snapshots of a library, whose file is created in the folder of the results."""
    terms, scale = definitions["snapshot"], flags.scale(options)
    options.out.mkdir(parents=True, exist_ok=True)
    spec = {
        "directory": str(options.out),
        "bytes": terms["bytes"],
        **{name: terms[name][scale] for name in ("rounds", "per_round")},
    }
    command = [str(options.program), "--snapshot", json.dumps(spec)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{options.program}: exit status {done.returncode}")
    taken: dict[str, list[list[int]]] = json.loads(done.stdout)
    return {
        Key("snapshot", method, program="library"): [[ns / 1e3 for ns in one] for one in rounds]
        for method, rounds in taken.items()
    }


def run(options: argparse.Namespace, console: Console) -> Row:
    """Measures, and returns the content of the suite's file."""
    definitions = load()
    facts = {
        **machine.host(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "clocksource": CLOCK.read_text().strip(),
        "transparent_hugepage": HUGE_PAGES.read_text().strip(),
    }
    measure = launch if options.suite == "launch" else snapshot
    samples = measure(options, definitions, console)
    facts = finish_facts(facts, scale=flags.scale(options))
    return results.suite(options.suite, definitions, samples, facts, options.quick)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a benchmark. The exit status is 0 if everything ran and every check passed."""
    options = parse(arguments)
    return run_suite(options.suite, options.out, partial(run, options), results.show)
