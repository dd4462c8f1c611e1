# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver's side: the worker processes of a backend, or of the C floor, for all rounds."""

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
    """The timing of one slice on one backend."""

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
        """Waits until every worker has its harness and backend."""
        for worker in self._workers:
            worker.receive("hello")

    def run(self, part: Sequence[str]) -> Timing:
        """Runs one slice on all workers at once. The time ends with the last worker."""
        count = len(self._workers)
        for number, worker in enumerate(self._workers):
            worker.send(do="prepare", calls=share(part, number, count))
        for worker in self._workers:
            worker.receive("ready")
        begin_ns = time.monotonic_ns()
        for worker in self._workers:
            worker.send(do="go")
        replies = [worker.receive("end_ns") for worker in self._workers]
        timing = Timing(
            calls=sum(reply["calls"] for reply in replies),
            seconds=(max(reply["end_ns"] for reply in replies) - begin_ns) / 1e9,
            cpu_seconds=sum(reply["cpu_s"] for reply in replies),
        )
        for reply in replies:
            timing.started.update(reply["started"])
        if timing.calls != len(part):
            raise BenchError(f"{self.backend}: {len(part)} calls requested, {timing.calls} made")
        return timing

    def finish(self) -> None:
        """Finishes and reaps the workers."""
        for worker in self._workers:
            worker.finish()

    def abandon(self) -> None:
        """Kills and reaps the workers."""
        for worker in self._workers:
            worker.abandon()
