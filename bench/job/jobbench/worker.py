# SPDX-License-Identifier: MIT OR Apache-2.0
"""A worker process: one method. It reads one order per line from stdin.

    driver                                worker
                                          {"hello": true}
    {"do": "prepare", "calls": [names]}   {"ready": true}
    {"do": "go"}                          {"begin_ns": _, "end_ns": _, "cpu_s": _, "calls": _,
                                           "late_us": [_], "ns": [_]}
    {"do": "finish"}                      {"finished": true}, and it exits

Only the method runs between the two times. The worker checks the answers after it reads the clock.
Any failure is reported as one line {"error": "..."}, with exit status 1.
"""

import gc
import json
import mmap
import os
import resource
import sys
import time
from typing import Any, TextIO

from common import probes
from common.asyncio_calls import Answer
from common.errors import BenchError
from common.reference import Reference
from common.worker import check_leftovers, run_worker, send

from . import methods
from .definitions import PLAIN, Method, Parent
from .streams import Streams

SPARE_DESCRIPTORS = 256


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


def _check(method: str, requested: list[Reference], answers: list[Answer]) -> None:
    for reference, answer in zip(requested, answers, strict=True):
        wrong = reference.difference(*answer)
        if wrong:
            raise BenchError(f"preset {reference.name}, method {method}: {wrong}")


def serve(job: dict[str, Any], references: dict[str, Reference], out: TextIO) -> None:
    """Executes the driver's orders until "finish" or the end of stdin."""
    method, parent = Method(**job["method"]), Parent(**job["parent"])
    if job["stream"]:
        serve_streams(job, method, out)
        return
    runner = methods.make(method, job["cwd"], job["env"], job["in_flight"], job["tick_us"])
    if parent.library_first:
        first = references[PLAIN]
        _check(method.name, [first], runner.run([list(first.argv)]))
    burden = Burden(parent)
    requested: list[Reference] = []
    files_after_first: int | None = None
    send(out, hello=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "prepare":
            requested = [references[name] for name in order["calls"]]
            gc.collect()
            send(out, ready=True)
        elif order["do"] == "go":
            calls = [list(reference.argv) for reference in requested]
            cpu = probes.cpu_seconds()
            begin_ns = time.monotonic_ns()
            answers = runner.run(calls)
            end_ns = time.monotonic_ns()
            cpu = probes.cpu_seconds() - cpu
            _check(method.name, requested, answers)
            send(
                out,
                begin_ns=begin_ns,
                end_ns=end_ns,
                cpu_s=cpu,
                calls=len(answers),
                late_us=runner.late_us(),
                ns=runner.ns,
            )
            files_after_first = files_after_first or probes.open_files()
        elif order["do"] == "finish":
            runner.close()
            few = 2 * job["in_flight"] + 2 * len(references)
            check_leftovers(method.name, files_after_first, few)
            del burden
            send(out, finished=True)
            return


def serve_streams(job: dict[str, Any], method: Method, out: TextIO) -> None:
    """Executes the driver's orders for a stream. The method itself checks what arrives."""
    runner = Streams(method.way, job["stream"], job["cwd"], job["env"])
    kinds: list[str] = []
    send(out, hello=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "prepare":
            kinds = order["calls"]
            gc.collect()
            send(out, ready=True)
        elif order["do"] == "go":
            cpu = probes.cpu_seconds()
            begin_ns = time.monotonic_ns()
            calls = runner.run(kinds)
            end_ns = time.monotonic_ns()
            cpu = probes.cpu_seconds() - cpu
            send(out, begin_ns=begin_ns, end_ns=end_ns, cpu_s=cpu, calls=calls)
        elif order["do"] == "finish":
            runner.close()
            send(out, finished=True)
            return


if __name__ == "__main__":
    sys.exit(run_worker(serve))
