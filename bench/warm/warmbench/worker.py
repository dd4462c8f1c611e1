# SPDX-License-Identifier: MIT OR Apache-2.0
"""A worker process: one method. It reads one order per line from stdin.

    driver                                worker
                                          {"hello": true}
    {"do": "run", "call": _, "count": _,
     "rate": _}                           {"ns": [_], "seconds": _, "cpu_s": _, "started": {}}
    {"do": "memory", "call": _, ...}      {"kib": [{"private": _, "pss": _, "rss": _}]}
    {"do": "finish"}                      {"finished": true}, and it exits

Between two orders a worker is idle: all processes are parked before it answers.
Any failure is reported as one line {"error": "..."}, with exit status 1.
"""

import gc
import json
import sys
from typing import Any, TextIO

from common import probes
from common.errors import BenchError
from common.reference import Reference
from common.worker import check_leftovers, run_worker, send

from . import memory
from .definitions import Call, Method, tuples
from .methods import Runner


def serve(job: dict[str, Any], references: dict[str, Reference], out: TextIO) -> None:
    """Executes the driver's orders until "finish" or the end of stdin."""
    calls = {entry["name"]: Call(**tuples(entry)) for entry in job["calls"]}
    method = Method(**job["method"])
    runner = Runner(method, calls, job["cwd"], job["env"], **job["terms"])
    send(out, hello=True)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "run":
            call = calls[order["call"]]
            gc.collect()
            cpu = probes.cpu_seconds()
            block = runner.run(call, order["count"], order["rate"])
            runner.settle()
            # The untimed calls of the block, and what was parked for them, cost CPU time too.
            cpu = (probes.cpu_seconds() - cpu) * len(block.ns) / len(block.answers)
            for answer in block.answers:
                if wrong := references[call.name].difference(*answer):
                    raise BenchError(f"call {call.name}, method {method.name}: {wrong}")
            started, runner.started = dict(runner.started), type(runner.started)()
            send(out, ns=block.ns, seconds=block.seconds, cpu_s=cpu, started=started)
        elif order["do"] == "memory":
            call = calls[order["call"]]
            found = memory.measure(call, order["mode"], order["processes"], job["env"])
            send(out, kib=found)
        elif order["do"] == "finish":
            runner.close()
            check_leftovers(method.name)
            send(out, finished=True)
            return


if __name__ == "__main__":
    sys.exit(run_worker(serve))
