# SPDX-License-Identifier: MIT OR Apache-2.0
"""A worker process: one harness, one backend, told what to do line by line on stdin.

    driver                                worker
                                          {"hello": true}
    {"do": "prepare", "calls": [names]}   {"ready": true}
    {"do": "go"}                          {"end_ns": _, "cpu_s": _, "calls": _, "started": {}}
    {"do": "finish"}                      {"finished": true}, and it exits

Between "go" and end_ns nothing but the harness runs; answers are checked after the clock was read.
Any failure is one line {"error": "..."} and exit status 1.
"""

import asyncio
import gc
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from .backends import BACKENDS
from .errors import BenchError
from .harness import make_harness
from .reference import Reference


def read_job(path: Path) -> tuple[dict[str, Any], dict[str, Reference]]:
    """The job file: settings, and the calls with their right answers."""
    job = json.loads(path.read_text(encoding="utf-8"))
    references = {
        entry["name"]: Reference(
            name=entry["name"],
            argv=tuple(entry["argv"]),
            code=entry["code"],
            stdout=entry["stdout"].encode("latin-1"),
            stderr=entry["stderr"].encode("latin-1"),
        )
        for entry in job["references"]
    }
    return job, references


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _children() -> list[str]:
    """Pids of children that were left behind, of any thread."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "children").read_text().split()
        except OSError:
            continue
    return found


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _tell(out: TextIO, **fields: Any) -> None:
    out.write(json.dumps(fields) + "\n")
    out.flush()


async def serve(job: dict[str, Any], references: dict[str, Reference], out: TextIO) -> None:
    """Follows the driver's lines to "finish" or the end of stdin."""
    backend = BACKENDS[job["backend"]](job["env"], job["in_flight"])
    harness = make_harness(job["harness"], backend, job["cwd"], job["in_flight"])
    await harness.open()
    names: list[str] = []
    files_after_first: int | None = None
    _tell(out, hello=True)
    # Reading blocks the event loop on purpose: between rounds a worker does nothing at all.
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "prepare":
            names = order["calls"]
            gc.collect()
            _tell(out, ready=True)
        elif order["do"] == "go":
            slice_argv = [list(references[name].argv) for name in names]
            cpu = _cpu_seconds()
            answers = await harness.run(slice_argv)
            end_ns = time.monotonic_ns()
            cpu = _cpu_seconds() - cpu
            _check(names, answers, references, job)
            started, backend.started = dict(backend.started), type(backend.started)()
            _tell(out, end_ns=end_ns, cpu_s=cpu, calls=len(answers), started=started)
            files_after_first = files_after_first or _open_files()
        elif order["do"] == "finish":
            await harness.close()
            backend.close()
            # A backend may keep some fds for each call in flight, and for each tool, of which the
            # first round of a worker need not have met all; a leak is one for each call made.
            allowed = (files_after_first or 0) + 2 * job["in_flight"] + 2 * len(references)
            if files_after_first is not None and _open_files() > allowed:
                raise BenchError(
                    f"{job['backend']}: {_open_files()} fds open, {files_after_first} before"
                )
            if left := _children():
                raise BenchError(f"{job['backend']}: children left behind: {', '.join(left)}")
            _tell(out, finished=True)
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


def main() -> int:
    """`python -m agentbench.worker JOB`; the driver is the only caller."""
    # The driver ends its workers itself. A handler, not SIG_IGN: the tools would inherit that.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    job, references = read_job(Path(sys.argv[1]))
    try:
        asyncio.run(serve(job, references, sys.stdout))
    except Exception as error:  # the driver must learn of any failure, whatever it is
        kind = "" if isinstance(error, BenchError) else f"{type(error).__name__}: "
        _tell(sys.stdout, error=f"{kind}{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
