# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory of parked processes, measured by a worker process of its own.

driver                                worker
                                      {"kib": [{"private": _, "pss": _, "rss": _}]} for each use
{"do": "finish"}                      {"finished": true}, and it exits
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from common import probes, warm
from common.definitions import Call, Definitions, call_from_plain
from common.methods import import_spawnfd
from common.pipe import Worker, environment
from common.session import Setting
from common.worker import Job, check_leftovers, run_worker, send


@dataclass(frozen=True)
class MemoryUse:
    """The memory of each process that is parked for a call, in KiB."""

    call: str
    mode: str
    kib: list[dict[str, int]] = field(default_factory=list)


def smaps(pid: str) -> dict[str, int]:
    """Returns KiB by kind, from smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def inspect(call: Call, mode: str, processes: int, job: Job) -> list[dict[str, int]]:
    """Returns private, proportional (PSS) and resident KiB of each process parked for the call."""
    before = set(probes.children())
    own: Any = warm.make(import_spawnfd(), mode)
    try:
        warm.park(own, call, processes, job["env"], job["cwd"])
        warm.settle(own)
        found: list[dict[str, int]] = []
        for pid in set(probes.children()) - before:
            try:
                kinds = smaps(pid)
            except (PermissionError, ProcessLookupError):
                # Only root may inspect an undumpable process. Another child of the Warm may have
                # ended.
                continue
            private = kinds["Private_Clean"] + kinds["Private_Dirty"] + kinds.get("Swap", 0)
            found.append({"private": private, "pss": kinds["Pss"], "rss": kinds["Rss"]})
        return found
    finally:
        own.close()


def serve(job: Job, out: TextIO) -> None:
    """Measures one call and mode after the other."""
    for use in job["uses"]:
        call = call_from_plain(use["call"])
        send(out, kib=inspect(call, use["mode"], use["processes"], job))
    sys.stdin.readline()
    check_leftovers("memory")
    send(out, finished=True)


def measure(
    definitions: Definitions, calls: Mapping[str, Call], setting: Setting
) -> list[MemoryUse]:
    """Returns the memory of the parked processes for each call and mode."""
    memory = definitions.memory
    modes = (("reserve", memory.processes), ("fork", 1))
    uses = [
        (calls[name], mode, processes)
        for name in memory.calls
        if name in calls
        for mode, processes in modes
    ]
    plain = [
        {"call": asdict(call), "mode": mode, "processes": processes}
        for call, mode, processes in uses
    ]
    job = setting.job_file("memory", uses=plain)
    command = [sys.executable, "-m", "warmbench.memory", str(job)]
    with Worker("memory", command, environment("warm")) as worker:
        return [MemoryUse(call.name, mode, worker.receive("kib")["kib"]) for call, mode, _ in uses]


if __name__ == "__main__":
    sys.exit(run_worker(serve))
