# SPDX-License-Identifier: MIT OR Apache-2.0
"""A Warm for a benchmark's worker: bounds that no benchmark reaches, filled before it is used."""

from collections.abc import Mapping
from typing import Any

from .errors import BenchError

MEMORY_BYTES = 4 << 30
PROCESSES = 512
IDLE_S = 3600.0
FILL_S = 60.0


def make(spawnfd: Any, mode: str) -> Any:
    """An empty Warm that evicts nothing by itself."""
    if not hasattr(spawnfd, "Warm"):
        raise BenchError("this spawnfd has no Warm")
    return spawnfd.Warm(mode=mode, memory=MEMORY_BYTES, processes=PROCESSES, idle=IDLE_S)


def park(
    warm: Any,
    spawnfd: Any,
    program: str,
    depth: int,
    env: Mapping[str, str],
    prefix: tuple[str, ...] = (),
) -> None:
    """Has a program parked, inside its sandbox if it has one."""
    options = {"sandbox": spawnfd.Sandbox(list(prefix))} if prefix else {}
    warm.add(program, depth=depth, env=env, **options)


def settle(warm: Any) -> None:
    """Waits until all that was used has been replaced."""
    if not warm.fill(timeout=FILL_S):
        raise BenchError(f"not parked within {FILL_S:.0f} s: {warm.stats()}")
