# SPDX-License-Identifier: MIT OR Apache-2.0
"""The launch suite: drives the worker processes of bench-launch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from nativebench.worker import Definitions, Key, Native, install, load, program_path

from .quantity import Measure, Offer

OURS = "ours"
# The number of calls in a block. It is small, so that little time passes between the blocks of a
# pair. Larger parents cost more before and after a block, so their blocks have more calls.
CALLS = {"fds10000": 60, "fds10000late": 60, "threads64": 100}
OTHER_CALLS = 20
PARALLEL_CALLS = 25


def _quantity(key: Key) -> str:
    return f"launch {key.suite} {key.parent} {key.filter} {key.program}"


class Launch:
    """The launch ids: first instruction, whole life, starts per second."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self._program = program
        # The programs are directly in the scratch directory, so that their paths are as deep as
        # /usr/bin.
        self._programs = scratch
        self._definitions = load()
        self._keys = dict(_ours(self._definitions))

    def offers(self) -> Sequence[Offer]:
        """Returns the ids that have at least one side of ours."""
        return [
            Offer(id_, _quantity(key), "1/s", "more", PARALLEL_CALLS)
            if key.suite == "parallel"
            else Offer(id_, _quantity(key), "us", "less", CALLS.get(key.parent, OTHER_CALLS))
            for id_, key in self._keys.items()
        ]

    @contextmanager
    def open(self, quantity: str) -> Iterator[Measure]:
        """Starts a worker with the state of the quantity's parent."""
        key = next(key for key in self._keys.values() if _quantity(key) == quantity)
        if not any(self._programs.glob("first-instruction")):
            install(self._program, self._programs)
        place = (self._definitions, self._program, self._programs)
        with Native(*place, key.parent, key.filter, [OURS]) as worker:
            worker.check_descriptors([OURS])

            def measure(calls: int) -> float:
                return self._block(worker, key, calls)

            measure(OTHER_CALLS)
            yield measure

    def _block(self, worker: Native, key: Key, calls: int) -> float:
        program = program_path(self._definitions, key.program, self._programs)
        if key.suite == "parallel":
            threads = self._definitions["parallel"]["threads"]
            return worker.rate(program, OURS, threads, calls)
        turns = [{"method": OURS, "samples": calls, "apart": False}]
        if key.suite == "lifecycle":
            taken, _ = worker.samples("Lifecycle", program, turns)
        else:
            taken, _ = worker.samples("FirstInstruction", program, turns, search=False)
        return median(taken[OURS])


def _ours(definitions: Definitions) -> Iterator[tuple[str, Key]]:
    """Yields our side of each ratio. If both sides are ours, yields the numerator."""
    for ratio in definitions["ratio"]:
        for side in (ratio.over, ratio.under):
            if side.method == OURS and side.suite != "snapshot":
                yield ratio.id, side
                break
