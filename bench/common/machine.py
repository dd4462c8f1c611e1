# SPDX-License-Identifier: MIT OR Apache-2.0
"""Facts about the machine and the programs, recorded with the figures."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from .errors import BenchError

VULNERABILITIES = Path("/sys/devices/system/cpu/vulnerabilities")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
BUSY_SHARE = 0.2
BUSY_SAMPLE_S = 0.5
# Memory that a benchmark with large parents leaves free.
SPARE_MIB = 1024
VERSIONED = ("rg", "git", "node", "python", "bash")


def _field(path: str, key: str) -> str:
    try:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    except OSError:
        pass
    return "unknown"


def _mitigations() -> dict[str, str]:
    try:
        entries = {entry.name: entry.read_text().strip() for entry in VULNERABILITIES.iterdir()}
    except OSError:
        return {}
    return {name: text for name, text in sorted(entries.items()) if text != "Not affected"}


def free_mib() -> int:
    """Returns the MiB of memory that are available without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) // 1024
    raise BenchError("/proc/meminfo has no MemAvailable")


def huge_pages() -> str:
    """Returns the kernel's setting of transparent huge pages. The active word is in brackets."""
    try:
        return HUGE_PAGES.read_text().strip()
    except OSError:
        return "unknown"


def _version(program: str) -> str:
    command = [program, "--version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return (done.stdout or done.stderr).split("\n", 1)[0].strip()


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def filesystem_of(path: Path) -> str:
    """Returns the type of a path's file system, from mountinfo."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1]
    except (OSError, ValueError):
        pass
    return "unknown"


def _cpu_ticks() -> tuple[int, int]:
    """Returns the ticks of all CPUs since boot: total, and idle."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def busy_share() -> float:
    """Returns the share of the CPUs that other processes use during half a second."""
    all_before, idle_before = _cpu_ticks()
    time.sleep(BUSY_SAMPLE_S)
    all_after, idle_after = _cpu_ticks()
    return 1 - (idle_after - idle_before) / max(all_after - all_before, 1)


def machine_is_busy(facts: Mapping[str, object]) -> bool:
    """Returns whether other processes used more than BUSY_SHARE of the CPUs when the run began."""
    share = facts.get("busy_before", 0.0)
    return isinstance(share, float) and share > BUSY_SHARE


def host() -> dict[str, object]:
    """Returns the facts about the machine and the run."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "mitigations": _mitigations(),
        "mem": _field("/proc/meminfo", "MemTotal"),
        "os": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        "hypervisor": "hypervisor" in _field("/proc/cpuinfo", "flags").split(),
        "busy_before": round(busy_share(), 3),
        "load_before": round(os.getloadavg()[0], 2),
        "command": shlex.join(sys.orig_argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def describe(
    tools: Mapping[str, str], workspace: Path, packages: Iterable[str]
) -> dict[str, object]:
    """Returns the facts that a reader needs to judge or repeat the run."""
    return {
        **host(),
        "workspace_fs": filesystem_of(workspace),
        "python": f"{platform.python_version()} ({sys.executable})",
        "packages": {name: _package(name) for name in packages},
        "spawnfd_module": getattr(sys.modules.get("spawnfd"), "__file__", None) or "not loaded",
        **{tool: _version(tools[tool]) for tool in VERSIONED},
        "tools": dict(tools),
    }
