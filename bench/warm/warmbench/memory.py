# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory of parked processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import probes, warm

from .definitions import Call

KIB = 1024


def smaps(pid: str) -> dict[str, int]:
    """Returns KiB by kind, from smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def measure(call: Call, mode: str, processes: int, env: Mapping[str, str]) -> list[dict[str, int]]:
    """Returns private, proportional (PSS) and resident KiB of each process parked for the call."""
    import spawnfd

    before = set(probes.children())
    own: Any = warm.make(spawnfd, mode)
    try:
        warm.park(own, call.argv, processes, env)
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
