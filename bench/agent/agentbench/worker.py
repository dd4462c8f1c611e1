# SPDX-License-Identifier: MIT OR Apache-2.0
"""A worker process: one harness and one backend. It reads one order per line from stdin.

    driver                                worker
                                          {"hello": true}
    {"do": "prepare", "calls": [names]}   {"ready": true}
    {"do": "go"}                          {"end_ns": _, "cpu_s": _, "calls": _, "started": {}}
    {"do": "finish"}                      {"finished": true}, and it exits

Only the harness runs between "go" and end_ns. The worker checks the answers after end_ns.
Any failure is reported as one line {"error": "..."}, with exit status 1.
"""

import asyncio
import gc
import json
import sys
import time
from typing import Any, TextIO

from common import probes
from common.errors import BenchError
from common.reference import Reference
from common.worker import check_leftovers, run_worker, send

from .backends import BACKENDS
from .harness import make_harness


async def serve(job: dict[str, Any], references: dict[str, Reference], out: TextIO) -> None:
    """Executes the driver's orders until "finish" or the end of stdin."""
    backend = BACKENDS[job["backend"]](job["env"], job["in_flight"])
    backend.prepare(reference.argv for reference in references.values())
    harness = make_harness(job["harness"], backend, job["cwd"], job["in_flight"])
    await harness.open()
    names: list[str] = []
    files_after_first: int | None = None
    send(out, hello=True)
    # Reading blocks the event loop on purpose: between rounds a worker must not use CPU time.
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "prepare":
            names = order["calls"]
            gc.collect()
            send(out, ready=True)
        elif order["do"] == "go":
            slice_argv = [list(references[name].argv) for name in names]
            cpu = probes.cpu_seconds()
            answers = await harness.run(slice_argv)
            end_ns = time.monotonic_ns()
            # The CPU time, but not the round's time, includes the replacements of used processes.
            backend.settle()
            cpu = probes.cpu_seconds() - cpu
            _check(names, answers, references, job)
            started, backend.started = dict(backend.started), type(backend.started)()
            send(out, end_ns=end_ns, cpu_s=cpu, calls=len(answers), started=started)
            files_after_first = files_after_first or probes.open_files()
        elif order["do"] == "finish":
            await harness.close()
            backend.close()
            few = 2 * job["in_flight"] + 2 * len(references)
            check_leftovers(job["backend"], files_after_first, few)
            send(out, finished=True)
            return


def _check(
    names: list[str],
    answers: list[tuple[int, bytes, bytes]],
    references: dict[str, Reference],
    job: dict[str, Any],
) -> None:
    if len(answers) != len(names):
        raise BenchError(f"{job['backend']}: {len(names)} calls, {len(answers)} answers")
    for name, answer in zip(names, answers, strict=True):
        wrong = references[name].difference(*answer)
        if wrong:
            raise BenchError(f"preset {name}, backend {job['backend']} ({job['harness']}): {wrong}")


if __name__ == "__main__":
    sys.exit(run_worker(lambda *arguments: asyncio.run(serve(*arguments))))
