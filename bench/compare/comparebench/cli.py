# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: builds, measures, judges, and writes compare.json."""

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from common import bars, document, flags, machine, presets
from common.errors import BenchError
from common.pipe import Worker
from common.session import Row, finish_facts, new_console

from . import build, results
from .measure import FULL, QUICK, compare

SUITES = ("launch", "job", "warm")
NO_REGRESSION, REGRESSION, ERROR, INTERRUPTED = 0, 1, 2, 130


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = flags.new_parser(
        "bench-compare",
        "Compares the working tree with another commit: measures our own times, alternating, in "
        "one run. Exit status: 0 no regression, 1 regression, 2 usage error or failed build.",
        quick="10 minutes",
    )
    parser.add_argument("--base", required=True, metavar="COMMIT", help="what to compare with")
    parser.add_argument("--suites", default=" ".join(SUITES), help=f"of: {' '.join(SUITES)}")
    parser.add_argument("--ids", default="", help="patterns; without any: the ids that have a bar")
    parser.add_argument("--cache", type=Path, required=True, help="where builds of bases are kept")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFF_FFFF)
    options = flags.parse(parser, arguments)
    options.suites = options.suites.split()
    if not options.suites or not set(options.suites) <= set(SUITES):
        parser.error(f"SUITES must be some of {' '.join(SUITES)}")
    return options


def run(options: argparse.Namespace, console: Console) -> Row:
    """Builds and measures. Returns the content of compare.json."""
    begin = time.monotonic()
    plan = QUICK if options.quick else FULL

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - begin:4.0f} s] {text}", markup=False, highlight=False)

    commit = build.find(options.base)
    barred = {bar["id"]: bar for bar in bars.load()}
    with ExitStack() as stack:

        def folder(name: str) -> Path:
            made = tempfile.TemporaryDirectory(prefix=f"spawnfd-{name}-")
            return Path(stack.enter_context(made))

        stage = folder("compare")
        say(f"building {commit.commit[:12]} and the {build.work_name()}")
        sides = build.build(commit, options.cache, stage)
        say("built")
        facts = machine.describe(presets.resolve_tools(presets.load(), {}), stage, ())
        servers: dict[str, Worker] = {}
        for name, side in (("base", sides.base), ("new", sides.work)):
            command, environment = build.server(side, folder("bench"), options.suites)
            worker = Worker(f"{name} build", command, environment)
            servers[name] = stack.enter_context(worker)
        subjects, alone = compare(
            servers,
            barred,
            options.ids.split(),
            plan,
            options.seed,
            begin + plan.deadline_s,
            say,
        )
    facts = finish_facts(
        facts,
        scale=flags.scale(options),
        seed=options.seed,
        base=commit.commit,
        new=build.work_name(),
        seconds=round(time.monotonic() - begin),
    )
    return results.suite(subjects, alone, barred, facts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares two builds.

    The exit status is 0 without a regression, 1 with one, 2 after an error.
    """
    options = parse(arguments)
    # After SIGTERM, the command still ends its servers and removes its directories.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = new_console()
    try:
        found = run(options, console)
    except BenchError as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return ERROR
    except Exception:  # exit status 1 means a regression
        traceback.print_exc()
        return ERROR
    except KeyboardInterrupt:
        print("bench-compare: interrupted", file=sys.stderr)
        return INTERRUPTED
    path = options.out / "compare.json"
    document.write(found, path)
    results.show(console, found)
    console.print(f"figures: {path}", highlight=False, soft_wrap=True)
    return REGRESSION if results.regressions(found) else NO_REGRESSION
