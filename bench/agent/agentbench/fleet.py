# SPDX-License-Identifier: MIT OR Apache-2.0
"""The driver's side: worker processes of a backend (or the C floor), kept over all rounds."""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import floor
from common.errors import BenchError
from common.pipe import Worker
from common.session import Setting

from .backends import FLOOR
from .calls import share

BENCH = Path(__file__).resolve().parents[2]


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
        try:
            for number in range(workers):
                if backend == FLOOR:
                    command, env = self._floor_command(setting, in_flight)
                else:
                    command, env = self._python_command(setting, harness, backend, in_flight)
                self._workers.append(Worker(f"{what}, worker {number}", command, env))
        except BaseException:
            self.abandon()
            raise

    @staticmethod
    def _python_command(
        setting: Setting, harness: str, backend: str, in_flight: int
    ) -> tuple[list[str], dict[str, str]]:
        job = setting.scratch / f"job-{harness}-{backend}-{in_flight}.json"
        if not job.exists():
            job.write_text(
                json.dumps(
                    {
                        "harness": harness,
                        "backend": backend,
                        "in_flight": in_flight,
                        "cwd": str(setting.cwd),
                        "env": dict(setting.env),
                        "references": [ref.plain() for ref in setting.references.values()],
                    }
                ),
                encoding="utf-8",
            )
        paths = [str(BENCH), str(BENCH / "agent"), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        return [sys.executable, "-m", "agentbench.worker", str(job)], env

    @staticmethod
    def _floor_command(setting: Setting, in_flight: int) -> tuple[list[str], dict[str, str]]:
        if setting.floor_program is None:
            raise BenchError("the C floor was not built")
        calls = setting.scratch / "floor.calls"
        if not calls.exists():
            calls.write_bytes(
                floor.call_list(setting.references.values(), setting.env, setting.cwd)
            )
        return [str(setting.floor_program), str(calls), str(in_flight)], dict(os.environ)

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
