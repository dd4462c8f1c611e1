# SPDX-License-Identifier: MIT OR Apache-2.0
"""A worker process: one method. It reads one order per line from stdin. pipe.py is the other side.

    driver                                worker
                                          {"hello": true}
    {"do": "prepare", "calls": [names]}   {"ready": true}
    {"do": "go", "rate": _}               {"begin_ns": _, "end_ns": _, "cpu_s": _, "calls": _,
                                           "ns": [_], "late_us": [_], "started": {}}
    {"do": "finish"}                      {"finished": true}, and it exits

Only the method runs between the two times. The worker checks the answers after it reads the clock.
Between two orders a worker is idle: all processes are parked before it answers.
Any failure is reported as one line {"error": "..."}, with exit status 1.
"""

import gc
import json
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from . import methods, probes
from .definitions import PLAIN, Parent, Terms
from .errors import BenchError
from .methods import Answer, Runner
from .reference import Reference

# Seconds that children may take to end. spawnfd's guard process ends one second after its last
# tree.
LINGER = 10.0
SPARE_DESCRIPTORS = 256

Job = Mapping[str, Any]
# Creates the runner of a worker from its terms, the working directory and the environment.
Make = Callable[[Terms, str, Mapping[str, str]], Runner]


def send(out: TextIO, **fields: Any) -> None:
    """Sends one line to the driver."""
    out.write(json.dumps(fields) + "\n")
    out.flush()


def check_leftovers(who: str, files_after_first: int | None = None, few: int = 0) -> None:
    """Raises BenchError if children are left, or more than `few` descriptors were added.

    The count of descriptors starts after the first round.

    The library may keep descriptors for each call in flight and each tool, and the first round may
    not have used all tools. A leak would be one descriptor for each call.
    """
    if files_after_first is not None and probes.open_files() > files_after_first + few:
        raise BenchError(f"{who}: {probes.open_files()} fds open, {files_after_first} before")
    until = time.monotonic() + LINGER
    while (left := probes.children()) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        raise BenchError(f"{who}: leftover children: {', '.join(left)}")


class Burden:
    """The memory and descriptors of a parent. This object keeps them as long as it lives."""

    def __init__(self, parent: Parent) -> None:
        if parent.touch_mib:
            self._memory = mmap.mmap(-1, parent.touch_mib << 20, flags=mmap.MAP_PRIVATE)
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
            self._memory[:: mmap.PAGESIZE] = b"1" * (len(self._memory) // mmap.PAGESIZE)
        if parent.descriptors:
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            wanted = parent.descriptors + SPARE_DESCRIPTORS
            if most < wanted:
                raise BenchError(f"parent {parent.name}: a limit of {most} open files is too low")
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            null = os.open(os.devnull, os.O_RDONLY)
            self._descriptors = [null, *(os.dup(null) for _ in range(parent.descriptors - 1))]


def _check(who: str, requested: Sequence[Reference], answers: Sequence[Answer]) -> None:
    if len(answers) != len(requested):
        raise BenchError(f"{who}: {len(requested)} calls, {len(answers)} answers")
    for reference, answer in zip(requested, answers, strict=True):
        if wrong := reference.difference(*answer):
            raise BenchError(f"preset {reference.name}, method {who}: {wrong}")


def serve(make: Make, job: Job, out: TextIO) -> None:
    """Executes the driver's orders until "finish" or the end of stdin."""
    terms = Terms.from_plain(job)
    references = {one["name"]: Reference.from_plain(one) for one in job["references"]}
    who = f"{terms.method.name} ({terms.harness})" if terms.harness else terms.method.name
    burden = Burden(terms.parent) if terms.parent.library == "absent" else None
    runner = make(terms, job["cwd"], job["env"])
    if terms.parent.library == "called":
        first = references[PLAIN]
        _check(who, [first], runner.run([list(first.argv)]).answers)
    burden = burden or Burden(terms.parent)
    requested: list[Reference] = []
    files_after_first: int | None = None
    send(out, hello=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "prepare":
            requested = [references[name] for name in order["calls"]]
            requested = requested[:1] * terms.untimed + requested
            gc.collect()
            send(out, ready=True)
        elif order["do"] == "go":
            calls = [list(reference.argv) for reference in requested]
            cpu = probes.cpu_seconds()
            made = runner.run(calls, terms.untimed, order["rate"])
            # The untimed calls, and what was parked for them, cost CPU time too.
            runner.settle()
            timed = len(calls) - terms.untimed
            cpu = (probes.cpu_seconds() - cpu) * timed / len(calls)
            _check(who, requested, made.answers)
            send(
                out,
                begin_ns=made.begin_ns,
                end_ns=made.end_ns,
                cpu_s=cpu,
                calls=timed,
                ns=made.ns,
                late_us=made.late_us,
                started=dict(runner.started),
            )
            runner.started.clear()
            files_after_first = files_after_first or probes.open_files()
        elif order["do"] == "finish":
            runner.close()
            check_leftovers(who, files_after_first, 2 * terms.in_flight + 2 * len(references))
            del burden
            send(out, finished=True)
            return


def report_errors(serve: Callable[[], None]) -> int:
    """Runs a process that serves a driver, and returns its exit status.

    Any failure is reported as one line {"error": "..."}, with exit status 1.
    """
    # The driver ends its workers itself, so SIGINT has no effect here. With SIG_IGN in place of
    # this handler, the tools would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        serve()
    except Exception as error:  # the driver must learn of every failure
        kind = "" if isinstance(error, BenchError) else f"{type(error).__name__}: "
        send(sys.stdout, error=f"{kind}{error}")
        return 1
    return 0


def run_worker(serve: Callable[[Job, TextIO], None]) -> int:
    """The main function of a worker. Only the driver starts it, with the path of a job file."""
    path = Path(sys.argv[1])
    return report_errors(lambda: serve(json.loads(path.read_text(encoding="utf-8")), sys.stdout))


def main(make: Make = methods.make) -> int:
    """The main function of a worker that makes calls."""
    return run_worker(lambda job, out: serve(make, job, out))


if __name__ == "__main__":
    sys.exit(main())
