# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver of bench-launch. For each filter it runs all workers at once, in rotation."""

import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.definitions import SMALL, UNFILTERED, Scale
from common.progress import Progress

from .worker import Definitions, Key, Native, program_path

Samples = dict[Key, list[list[float]]]
SUITES = ("first_insn", "lifecycle", "parallel")


def same_calls_is_supported() -> bool:
    """Returns whether the library makes the system calls of the method same_calls here.

    The kernel has pidfds of threads (Linux 6.9), and no seccomp filter applies.
    """
    if "Seccomp:\t0\n" not in Path("/proc/self/status").read_text(encoding="utf-8"):
        return False
    try:
        os.close(os.pidfd_open(threading.get_native_id(), os.O_EXCL))
    except OSError:
        return False
    return True


@dataclass
class Launch:
    """A run of bench-launch.

    Attributes:
        programs: The folder of the small programs.
        only: The chosen names of a kind (suite, filter or parent). All, if there are none.
    """

    definitions: Definitions
    program: Path
    programs: Path
    scale: Scale
    only: Collection[tuple[str, str]]
    progress: Progress
    samples: Samples = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._has_same_calls = same_calls_is_supported()

    def run(self) -> Samples:
        """Measures everything, and returns the rounds of each series."""
        run = {
            "first_insn": self._first_insn,
            "lifecycle": self._lifecycle,
            "parallel": self._parallel,
        }
        for filter_name in self._chosen("filter", self.definitions["filters"]["names"]):
            for suite in self._chosen("suite", SUITES):
                self.progress.begin(f"{suite}, filter {filter_name}")
                run[suite](filter_name)
                self.progress.end("done")
        return self.samples

    def _chosen(self, kind: str, names: Sequence[str]) -> list[str]:
        of_kind = [name for of, name in self.only if of == kind]
        return [name for name in names if not of_kind or name in of_kind]

    def _push(self, key: Key, samples: list[float]) -> None:
        self.samples.setdefault(key, []).append(samples)

    def _methods(self, parent: str, filter_name: str, search: bool = False) -> list[dict[str, Any]]:
        """Returns the methods of plain spawns, or of others: some are only for plain spawns."""
        plain = (parent, filter_name, search) == (SMALL, UNFILTERED, False)
        has_all = plain and self._has_same_calls
        return [one for one in self.definitions["method"] if has_all or not one.get("plain")]

    @contextmanager
    def _workers(self, parents: Sequence[str], filter_name: str) -> Iterator[dict[str, Native]]:
        with ExitStack() as stack:
            workers: dict[str, Native] = {}
            for parent in parents:
                methods = [one["name"] for one in self._methods(parent, filter_name)]
                place = (self.definitions, self.program, self.programs)
                workers[parent] = stack.enter_context(Native(*place, parent, filter_name, methods))
            yield workers

    def _first_insn_count(self, parent: str, method: str) -> int:
        terms = self.definitions["first_insn"]
        for fewer in terms["fewer"]:
            if fewer["parent"] == parent and fewer.get("method", method) == method:
                terms = fewer
                break
        return int(terms["per_round"][self.scale])

    def _first_insn(self, filter_name: str) -> None:
        terms = self.definitions["first_insn"]
        program = program_path(self.definitions, terms["program"], self.programs)
        states = {entry["name"]: entry for entry in self.definitions["parent"]}
        parents = self._chosen("parent", list(states))
        with self._workers(parents, filter_name) as workers:
            for parent, worker in workers.items():
                methods = self._methods(parent, filter_name)
                worker.check_descriptors([one["name"] for one in methods if one.get("only_stdio")])
            for number in range(terms["rounds"][self.scale]):
                # Each round starts with a different worker, so that no worker always follows the
                # busy threads.
                first = number % len(parents)
                for parent in [*parents[first:], *parents[:first]]:
                    for search in states[parent].get("search", [False]):
                        self._first_insn_block(
                            workers[parent], parent, filter_name, program, search
                        )

    def _first_insn_block(
        self, worker: Native, parent: str, filter_name: str, program: str, search: bool
    ) -> None:
        turns = [
            _turn(one, self._first_insn_count(parent, one["name"]))
            for one in self._methods(parent, filter_name, search)
        ]
        taken, busy = worker.samples("FirstInstruction", program, turns, search=search)
        name = self.definitions["first_insn"]["program"]
        for method, samples in taken.items():
            self._push(Key("first_insn", method, filter_name, parent, name, search), samples)
            self.progress.advance(len(samples))
        if busy is not None:
            self._push(Key("busy_share", "(busy)", filter_name, parent, name, search), [busy])

    def _lifecycle(self, filter_name: str) -> None:
        terms = self.definitions["lifecycle"]
        parent = terms["parent"]
        counts = "per_round" if filter_name == UNFILTERED else "per_round_filtered"
        # Methods for plain spawns only are not part of this suite.
        chosen = [one for one in self.definitions["method"] if not one.get("plain")]
        turns = [_turn(one, terms[counts][self.scale]) for one in chosen]
        paths = {
            name: program_path(self.definitions, name, self.programs) for name in terms["programs"]
        }
        with self._workers([parent], filter_name) as workers:
            for _ in range(terms["rounds"][self.scale]):
                for name, path in paths.items():
                    if not Path(path).exists():
                        continue
                    taken, _ = workers[parent].samples("Lifecycle", path, turns)
                    for method, samples in taken.items():
                        self._push(Key("lifecycle", method, filter_name, parent, name), samples)
                        self.progress.advance(len(samples))

    def _parallel(self, filter_name: str) -> None:
        terms = self.definitions["parallel"]
        parent, name, calls = terms["parent"], terms["program"], terms["calls_per_thread"]
        measured = {one["name"] for one in self._methods(parent, filter_name)}
        methods = [method for method in terms["methods"] if method in measured]
        program = program_path(self.definitions, name, self.programs)
        with self._workers([parent], filter_name) as workers:
            for number in range(terms["rounds"][self.scale]):
                first = number % len(methods)
                for method in [*methods[first:], *methods[:first]]:
                    count = calls[self.scale]
                    rate = workers[parent].rate(program, method, terms["threads"], count)
                    self._push(Key("parallel", method, filter_name, parent, name), [rate])
                    self.progress.advance(terms["threads"] * count)


def _turn(method: dict[str, Any], samples: int) -> dict[str, Any]:
    """Returns the part of a method in a block."""
    apart = method.get("apart", False)
    return {"method": method["name"], "samples": samples, "apart": apart}
