# SPDX-License-Identifier: MIT OR Apache-2.0
"""A worker process: one method, told what to do line by line on stdin.

    driver                                worker
                                          {"hello": true}
    {"do": "run", "call": _, "count": _}  {"ns": [_], "seconds": _, "cpu_s": _, "started": {}}
    {"do": "memory", "call": _, ...}      {"kib": [{"private": _, "pss": _, "rss": _}]}
    {"do": "finish"}                      {"finished": true}, and it exits

Between two lines a worker does nothing, and starts nothing: what is to be parked is parked.
Any failure is one line {"error": "..."} and exit status 1.
"""

import gc
import json
import sys
from typing import Any, TextIO

from common import probes
from common.errors import BenchError
from common.reference import Reference
from common.worker import check_leftovers, run_worker, tell

from . import memory
from .definitions import Call, Method
from .methods import Runner


def _call(entry: dict[str, Any]) -> Call:
    return Call(**{**entry, "argv": tuple(entry["argv"]), "prefix": tuple(entry["prefix"])})


def serve(job: dict[str, Any], references: dict[str, Reference], out: TextIO) -> None:
    """Follows the driver's lines to "finish" or the end of stdin."""
    calls = {entry["name"]: _call(entry) for entry in job["calls"]}
    method = Method(**job["method"])
    runner = Runner(method, calls, job["cwd"], job["env"], **job["terms"])
    tell(out, hello=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "run":
            call = calls[order["call"]]
            gc.collect()
            cpu = probes.cpu_seconds()
            block = runner.run(call, order["count"])
            runner.settle()
            cpu = probes.cpu_seconds() - cpu
            for answer in block.answers:
                if wrong := references[call.name].difference(*answer):
                    raise BenchError(f"call {call.name}, method {method.name}: {wrong}")
            started, runner.started = dict(runner.started), type(runner.started)()
            tell(out, ns=block.ns, seconds=block.seconds, cpu_s=cpu, started=started)
        elif order["do"] == "memory":
            call = calls[order["call"]]
            found = memory.measure(call, order["mode"], order["processes"], job["env"])
            tell(out, kib=found)
        elif order["do"] == "finish":
            runner.close()
            check_leftovers(method.name)
            tell(out, finished=True)
            return


if __name__ == "__main__":
    sys.exit(run_worker(serve))
