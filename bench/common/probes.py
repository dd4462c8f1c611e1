# SPDX-License-Identifier: MIT OR Apache-2.0
"""A worker's own state: CPU time, leftover children, open descriptors."""

import os
import resource
from pathlib import Path


def cpu_seconds() -> float:
    """Returns the user and system time of this process and of its reaped children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def children() -> list[str]:
    """Returns the pids of all children of all threads."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "children").read_text().split()
        except OSError:
            continue
    return found


def open_files() -> int:
    """Returns the number of this process's open descriptors."""
    return len(os.listdir("/proc/self/fd"))
