# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver's side: worker processes of a backend (or the C floor), kept over all rounds."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.errors import BenchError
from common.pipe import Worker, environment
from common.session import Setting

from .backends import FLOOR
from .calls import share


@dataclass
class Timing:
    """One slice on one backend."""

    calls: int
    seconds: float
    cpu_seconds: float
    started: Counter[str] = field(default_factory=Counter)


class Fleet:
    """The worker processes of one backend in one harness and split."""

    def __init__(
        self, setting: Setting, harness: str, backend: str, workers: int, in_flight: int
    ) -> None:
        self.backend = backend
        self._workers: list[Worker] = []
        what = f"{backend} under {harness}, {workers}x{in_flight}"
        env = environment("agent")
        if backend == FLOOR:
            command = setting.floor_command(in_flight)
        else:
            name = f"{harness}-{backend}-{in_flight}"
            command = setting.worker_command(
                "agent", name, harness=harness, backend=backend, in_flight=in_flight
            )
        try:
            for number in range(workers):
                self._workers.append(Worker(f"{what}, worker {number}", command, env))
        except BaseException:
            self.abandon()
            raise

    def wait_ready(self) -> None:
        """Returns once every worker has its harness and backend."""
        for worker in self._workers:
            worker.hear("hello")

    def run(self, part: Sequence[str]) -> Timing:
        """Runs one slice on all workers at once; the time is from "go" to the last worker's end."""
        count = len(self._workers)
        for number, worker in enumerate(self._workers):
            worker.tell(do="prepare", calls=share(part, number, count))
        for worker in self._workers:
            worker.hear("ready")
        begin_ns = time.monotonic_ns()
        for worker in self._workers:
            worker.tell(do="go")
        replies = [worker.hear("end_ns") for worker in self._workers]
        timing = Timing(
            calls=sum(reply["calls"] for reply in replies),
            seconds=(max(reply["end_ns"] for reply in replies) - begin_ns) / 1e9,
            cpu_seconds=sum(reply["cpu_s"] for reply in replies),
        )
        for reply in replies:
            timing.started.update(reply["started"])
        if timing.calls != len(part):
            raise BenchError(f"{self.backend}: {len(part)} calls asked, {timing.calls} made")
        return timing

    def finish(self) -> None:
        """Ends the workers in good order."""
        for worker in self._workers:
            worker.finish()

    def abandon(self) -> None:
        """Ends them in any order."""
        for worker in self._workers:
            worker.abandon()
