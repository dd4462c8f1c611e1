# SPDX-License-Identifier: MIT OR Apache-2.0
"""A Warm for a benchmark's worker, with limits that no benchmark reaches."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from .definitions import Call
from .errors import BenchError

MEMORY_BYTES = 4 << 30
PROCESSES = 512
IDLE_S = 3600.0
FILL_S = 60.0
CODE = ("-e", "-p")


def make(spawnfd: Any, mode: str, *, trusted: bool = False) -> Any:
    """An empty Warm that never ends processes because of its limits.

    With `trusted`, a Warm in mode auto may fork.
    """
    options = {"trusted": True} if trusted else {}
    return spawnfd.Warm(mode=mode, memory=MEMORY_BYTES, processes=PROCESSES, idle=IDLE_S, **options)


def park(warm: Any, call: Call, depth: int, env: Mapping[str, str], cwd: str) -> None:
    """Adds a call's program to the Warm, in its sandbox, with its entry point or its imports."""
    options: dict[str, Any] = {"entry": call.entry} if call.entry else {}
    if call.preimport:
        options["preimport"] = list(call.preimport)
    if call.in_directory:
        options["cwd"] = cwd
    if call.prefix:
        from spawnfd import Sandbox

        options = {"sandbox": Sandbox(call.prefix), "cwd": cwd}
    # Node.js must get -e or -p when it starts, which is before it parks. spawnfd knows Node.js by
    # the same names.
    is_node = PurePath(call.argv[0]).name in ("node", "nodejs")
    args = [word for word in call.argv[1:2] if is_node and word in CODE]
    warm.add(call.argv[0], depth=depth, env=env, args=args, **options)


def settle(warm: Any) -> None:
    """Waits until all used processes have been replaced. Programs that cannot park start cold."""
    if not warm.fill(timeout=FILL_S) and not warm.stats().cannot:
        raise BenchError(f"not parked within {FILL_S:.0f} s: {warm.stats()}")
