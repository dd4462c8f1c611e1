# SPDX-License-Identifier: MIT OR Apache-2.0
"""The launch suite: drives the worker processes of bench-launch."""

import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common.pipe import Worker

from .quantity import Measure, Offer

DEFINITIONS_FILE = Path(__file__).resolve().parents[2] / "native" / "definitions.toml"
OURS = "ours"
# The number of calls in a block. It is small, so that little time passes between the blocks of a
# pair. Larger parents cost more before and after a block, so their blocks have more calls.
CALLS = {"fds10000": 60, "fds10000late": 60, "threads64": 100}
OTHER_CALLS = 20
PARALLEL_CALLS = 25
FIRST_INSTRUCTION = "first-instruction"
END_S = 60


class Native(Worker):
    """A worker of bench-launch. It exits at the end of its stdin."""

    def finish(self) -> None:
        """Closes the worker's stdin, and reaps the worker."""
        self._stdin.close()
        self._process.wait(timeout=END_S)


@dataclass(frozen=True)
class Key:
    """The origin of a time, in the terms of definitions.toml."""

    suite: str
    parent: str
    method: str
    filter: str = "none"
    program: str = "static"

    @property
    def quantity(self) -> str:
        """The quantity's name."""
        return f"launch {self.suite} {self.parent} {self.filter} {self.program}"


class Launch:
    """The launch ids: first instruction, whole life, starts per second."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self._program = program
        # The programs are directly in the scratch directory, so that their paths are as deep as
        # /usr/bin.
        self._programs = scratch
        self._definitions = tomllib.loads(DEFINITIONS_FILE.read_text(encoding="utf-8"))
        self._keys = dict(_ours(self._definitions))

    def offers(self) -> Sequence[Offer]:
        """Returns the ids that have at least one side of ours."""
        return [
            Offer(id_, key.quantity, "1/s", "more", PARALLEL_CALLS)
            if key.suite == "parallel"
            else Offer(id_, key.quantity, "us", "less", CALLS.get(key.parent, OTHER_CALLS))
            for id_, key in self._keys.items()
        ]

    @contextmanager
    def open(self, quantity: str) -> Iterator[Measure]:
        """Starts a worker with the state of the quantity's parent."""
        key = next(key for key in self._keys.values() if key.quantity == quantity)
        with self._worker(key) as worker:
            worker.receive("Done")
            worker.send(CheckDescriptors={"promising": [OURS]})
            worker.receive("Done")

            def measure(calls: int) -> float:
                return self._block(worker, key, calls)

            measure(OTHER_CALLS)
            yield measure

    def _worker(self, key: Key) -> Native:
        if not (self._programs / FIRST_INSTRUCTION).exists():
            subprocess.run(
                [str(self._program), "--install", str(self._programs)], check=True, timeout=60
            )
        environment = self._definitions["environment"]
        parent = next(p for p in self._definitions["parent"] if p["name"] == key.parent)
        role = {
            "parent": parent,
            "filter": key.filter,
            "methods": [OURS],
            "programs": str(self._programs),
        }
        path = ":".join([*environment["search_path"], str(self._programs)])
        command = [str(self._program), "--worker", json.dumps(role)]
        return Native(key.quantity, command, {**environment["variables"], "PATH": path})

    def _block(self, worker: Worker, key: Key, calls: int) -> float:
        program = self._definitions["programs"][key.program]
        if program == "@static":
            program = str(self._programs / FIRST_INSTRUCTION)
        if key.suite == "parallel":
            threads = self._definitions["parallel"]["threads"]
            order = {"program": program, "method": OURS, "threads": threads, "calls": calls}
            worker.send(Parallel=order)
            return float(worker.receive("Rate")["Rate"])
        turns = [{"method": OURS, "samples": calls, "apart": False}]
        if key.suite == "lifecycle":
            worker.send(Lifecycle={"program": program, "turns": turns})
        else:
            worker.send(FirstInstruction={"program": program, "search": False, "turns": turns})
        return float(median(worker.receive("Samples")["Samples"]["taken"][OURS]) / 1e3)


def _ours(definitions: Mapping[str, Any]) -> Iterator[tuple[str, Key]]:
    """Yields our side of each ratio. If both sides are ours, yields the numerator."""
    for ratio in definitions["ratio"]:
        for side in (ratio["over"], ratio["under"]):
            if side["method"] == OURS and side["suite"] != "snapshot":
                yield ratio["id"], Key(**side)
                break
