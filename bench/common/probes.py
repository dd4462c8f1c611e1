# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a worker says about itself: time used, children left behind, descriptors open."""

import os
import resource
from pathlib import Path


def cpu_seconds() -> float:
    """User and system time of this process and of the children it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def children() -> list[str]:
    """Pids of children that were left behind, of any thread."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "children").read_text().split()
        except OSError:
            continue
    return found


def open_files() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
