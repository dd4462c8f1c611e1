# SPDX-License-Identifier: MIT OR Apache-2.0
"""The command line: measures, prints the tables, writes the JSON and the report."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from common import flags, machine, presets
from common.errors import BenchError
from common.floor import FLOOR
from common.methods import import_spawnfd
from common.session import Row, announce, finish_facts, make_setting, run_program, run_suite

from . import plan, results, tables
from .backends import BACKENDS, DEFAULT_BACKENDS, kind_of
from .measure import measure


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. QUICK=1 in the environment means --quick."""
    parser = flags.new_parser(
        "bench-agent",
        "Real tools, thousands of times, through AutoGen Core and asyncio: spawnfd against the "
        "better of the platform's ways. Writes agent.json and agent.html.",
        quick="far fewer calls",
    )
    parser.add_argument("--calls", type=int, metavar="N", help="calls per cell and backend (6144)")
    parser.add_argument("--rounds", type=int, metavar="N", help="interleaved rounds per cell (12)")
    parser.add_argument("--demo", action="store_true", help="a short run of 1x16, well under 90 s")
    parser.add_argument(
        "--backends",
        default=",".join(DEFAULT_BACKENDS),
        metavar="A,B",
        help=f"of {', '.join(BACKENDS)} (default %(default)s)",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a backend, or floor",
    )
    parser.add_argument("--harness", action="append", choices=plan.HARNESSES, help="only this one")
    parser.add_argument("--split", action="append", choices=list(plan.SPLITS), help="only this one")
    parser.add_argument("--set", action="append", metavar="SET", help="only this set of presets")
    parser.add_argument("--no-tools", action="store_true", help="leave out the per-tool figures")
    flags.add_tool(parser)
    parser.add_argument("--report-only", action="store_true", help="render the JSON that is there")
    return flags.parse(parser, arguments, "calls", "rounds")


def chosen_backends(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the chosen backends in a fixed order. The floor is included unless it is left out."""
    wanted = [*options.backends.split(","), FLOOR]
    flags.check_known_names([*wanted, *options.without], BACKENDS)
    chosen = tuple(name for name in dict.fromkeys(wanted) if name not in options.without)
    if not any(kind_of(name) == "platform" for name in chosen):
        raise BenchError("at least one platform backend must be measured")
    if any(kind_of(name) == "ours" for name in chosen):
        import_spawnfd()
    return chosen


def make_plan(
    options: argparse.Namespace, definitions: presets.Definitions, backends: Sequence[str]
) -> list[plan.Cell]:
    """Returns the cells for these options."""
    scale = plan.DEMO if options.demo else plan.QUICK if options.quick else plan.FULL
    if options.calls:
        share = max(len(definitions.sets["all"]), options.calls // len(definitions.sets["all"]))
        scale = replace(
            scale,
            calls=options.calls,
            tool_calls=min(scale.tool_calls, share),
            interpreter_calls=min(scale.interpreter_calls, share),
        )
    if options.rounds:
        scale = replace(scale, rounds=options.rounds, tool_rounds=options.rounds)
    flags.check_known_names(options.set, definitions.sets)
    cells = plan.make_plan(
        scale,
        plan.DEMO_CELLS if options.demo else plan.FULL_CELLS,
        definitions.members("all"),
        backends,
        harnesses=options.harness or plan.HARNESSES,
        splits=options.split or tuple(plan.SPLITS),
        sets=options.set,
        per_tool=not options.no_tools and not options.set,
    )
    if not cells:
        raise BenchError("nothing to measure: no cell matches these filters")
    return cells


def run(options: argparse.Namespace, console: Console) -> Row:
    """Measures, and returns the content of agent.json."""
    backends = chosen_backends(options)
    with tempfile.TemporaryDirectory(prefix="spawnfd-bench-") as scratch:
        definitions = presets.load()
        tools = presets.resolve_tools(definitions, flags.tools(options))
        floors = [FLOOR] if FLOOR in backends else []
        setting = make_setting(Path(scratch), definitions, tools, floors=floors)
        cells = make_plan(options, definitions, backends)
        facts = machine.describe(tools, setting.cwd, ("spawnfd", "autogen-core"))
        calls = [cell.calls * len(cell.backends) for cell in cells]
        with announce(console, facts, calls) as progress:
            measured = measure(cells, definitions, setting, progress)
    facts = finish_facts(facts, scale="demo" if options.demo else flags.scale(options))
    return results.suite(measured, facts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if everything ran and every answer was right."""
    options = parse(arguments)
    from . import report  # imports matplotlib, which is slow, so not before --help

    def render(console: Console) -> None:
        path = report.write(options.out)
        console.print(f"report: {path}", highlight=False, soft_wrap=True)

    def show(console: Console, document: Row) -> None:
        tables.show(console, document)
        render(console)

    if options.report_only:
        return run_program("bench-agent", render)
    return run_suite("agent", options.out, partial(run, options), show)
