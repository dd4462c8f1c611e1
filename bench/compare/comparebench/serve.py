# SPDX-License-Identifier: MIT OR Apache-2.0
"""A build's server: measures quantities with the code and the benchmarks of its own commit.

    driver                             server
                                       {"protocol": 1, "offers": [{"id": _, ...}]}
    {"do": "open", "quantity": _}      {"opened": true} or {"opened": false, "missing": why}
    {"do": "measure", "calls": _}      {"figure": _}
    {"do": "close"}                    {"closed": true}
    {"do": "finish"}                   {"finished": true}, and the server exits

Each commit measures itself, so only this protocol must stay the same between two commits.
`open` starts a new worker process and warms it up; `measure` times one block of calls. The worker
checks every answer. Any failure is reported as one line {"error": "..."}, with exit status 1.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from common.worker import report_errors, send

from .captured import Job, Warm
from .native import Launch
from .quantity import Measure, Missing, Suite

PROTOCOL = 1
SUITES = ("launch", "job", "warm")


def make(name: str, program: Path, scratch: Path) -> Suite:
    """Creates a suite by its name."""
    suites: dict[str, Callable[[], Suite]] = {
        "launch": lambda: Launch(program, scratch),
        "job": lambda: Job(program, scratch),
        "warm": lambda: Warm(scratch),
    }
    return suites[name]()


class Server:
    """Executes the driver's orders. At most one quantity is open."""

    def __init__(self, suites: Sequence[Suite], out: TextIO) -> None:
        self._out = out
        self._open_by = {offer.quantity: s for s in suites for offer in s.offers()}
        self._stack = ExitStack()
        self._measure: Measure | None = None
        offers = [asdict(offer) for suite in suites for offer in suite.offers()]
        send(out, protocol=PROTOCOL, offers=offers)

    def _open(self, quantity: str) -> None:
        try:
            context = self._open_by[quantity].open(quantity)
            self._measure = self._stack.enter_context(context)
        except Missing as missing:
            send(self._out, opened=False, missing=str(missing))
        else:
            send(self._out, opened=True)

    def execute(self, order: Mapping[str, Any]) -> bool:
        """Executes one order. Returns False after the last one."""
        if order["do"] == "open":
            self._open(order["quantity"])
        elif order["do"] == "measure":
            assert self._measure is not None
            send(self._out, figure=self._measure(order["calls"]))
        elif order["do"] == "close":
            self._stack.close()
            send(self._out, closed=True)
        elif order["do"] == "finish":
            send(self._out, finished=True)
            return False
        return True

    def run(self) -> None:
        """Serves until `finish` or the end of stdin."""
        with self._stack:
            while (line := sys.stdin.readline()) and self.execute(json.loads(line)):
                pass


def main() -> int:
    """`python -m comparebench.serve --program BENCH_LAUNCH --scratch DIRECTORY SUITE ...`."""
    parser = argparse.ArgumentParser(prog="comparebench.serve")
    parser.add_argument("--program", type=Path, required=True, help="bench-launch of this build")
    parser.add_argument("--scratch", type=Path, required=True, help="an empty directory")
    parser.add_argument("suites", nargs="+", choices=SUITES)
    options = parser.parse_args()

    def serve() -> None:
        suites = [make(name, options.program, options.scratch) for name in options.suites]
        Server(suites, sys.stdout).run()

    return report_errors(serve)


if __name__ == "__main__":
    sys.exit(main())
