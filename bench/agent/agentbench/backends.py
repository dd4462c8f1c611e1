# SPDX-License-Identifier: MIT OR Apache-2.0
"""The compared backends, which start a program. Each is a method of bench/common/methods.py.

To add one, add a method. Methods of spawnfd are compared with the better of those of the platform.
spawnfd runs with a timeout of 30 s, as an agent would.
"""

from common.definitions import Method
from common.floor import FLOOR

EXEC, RUN_ASYNC = "create_subprocess_exec", "spawnfd.run_async"
TIMEOUT_S = 30
METHODS = (
    # The pidfd watcher is the default from Python 3.12 on. 3.11 starts a thread for each child.
    Method("asyncio", "asyncio exec", EXEC, watcher="pidfd"),
    Method("asyncio-threaded", "asyncio exec, thread watcher", EXEC, watcher="threads"),
    Method("threads", "subprocess in threads", "subprocess.threads"),
    # A supervised run, started cold.
    Method("spawnfd", "spawnfd", RUN_ASYNC, timeout=TIMEOUT_S),
    # Processes that each become one program.
    Method("reserve", "spawnfd reserve", RUN_ASYNC, mode="reserve", timeout=TIMEOUT_S),
    # One process for each program, with some children forked in advance.
    Method("fork", "spawnfd fork", RUN_ASYNC, mode="fork", timeout=TIMEOUT_S),
    # The mode of each program is the library's choice. It may fork, as all inputs are trusted.
    Method("auto", "spawnfd auto", RUN_ASYNC, mode="auto", trusted=True, timeout=TIMEOUT_S),
    Method(FLOOR, "C floor", FLOOR),
)
BACKENDS = {method.name: method for method in METHODS}
DEFAULT_BACKENDS = ("asyncio", "threads", "spawnfd", "reserve", "fork", "auto")
# The processes that are parked for each program.
DEPTHS = {"reserve": 2, "fork": 4, "auto": 4}


def label_of(name: str) -> str:
    """Returns a backend's display name."""
    return BACKENDS[name].title


def kind_of(name: str) -> str:
    """Returns platform, ours or floor."""
    if name == FLOOR:
        return FLOOR
    return "ours" if BACKENDS[name].way == RUN_ASYNC else "platform"


def mode_of(name: str) -> str:
    """Returns the last part of the ids of a backend's ratios."""
    return BACKENDS[name].mode or "cold"
