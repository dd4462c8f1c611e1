# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every test leaves no process, no descriptor and no zombie."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import spawnfd as sf
import trio
import uvloop
from patience import EVER

# nohup and shells without job control ignore these, and programs would inherit that.
for number, action in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, action)

Go = Callable[[Callable[[], Awaitable[Any]]], Any]

LOOPS: dict[str, Go] = {
    "asyncio": lambda main: asyncio.run(main()),  # type: ignore[arg-type]
    "uvloop": lambda main: uvloop.run(main()),  # type: ignore[arg-type]
    "trio": trio.run,
    "anyio-asyncio": partial(anyio.run, backend="asyncio"),
    "anyio-trio": partial(anyio.run, backend="trio"),
}


def descriptors() -> tuple[dict[int, str], int]:
    """What is open: the target of each number; and how many pidfds, which may change their numbers.

    But for the socket pairs the core keeps for as many spawns as there have been at once.
    """
    found: dict[int, str] = {}
    pidfds = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:") and is_kept_pair(int(name)):
                continue
            # Those of one guard are given up when the next one's are there, and lie elsewhere.
            if target.startswith("/memfd:spawnfd-trees"):
                continue
            if target == "anon_inode:[pidfd]":
                pidfds += 1
                continue
            found[int(name)] = target
        except OSError:
            continue
    return found, pidfds


async def comes(condition: Callable[[], object]) -> None:
    """Waits until it is true, on any event loop."""
    with anyio.fail_after(EVER):
        while not condition():
            await anyio.sleep(0.01)


def is_kept_pair(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as end:
        return (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)


def is_alive(pid: int) -> bool:
    """Whether it has not ended. It may go between the opening of its file and the reading."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def threads() -> list[str]:
    """The names of all threads; one that has been waited for may still be there for a moment."""
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    return found


def children() -> set[int]:
    """The pids of all children, zombies too."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def running() -> list[int]:
    """The children that have not ended."""
    return [pid for pid in children() if is_alive(pid)]


@pytest.fixture(scope="session", autouse=True)
def warmed_up() -> Iterator[None]:
    """What the core keeps for the next spawn of a thread is there before anything is compared."""
    sf.run(["/bin/true"])
    with ThreadPoolExecutor(24) as pool:
        for run in [pool.submit(sf.run, ["/bin/sleep", "0.05"]) for _ in range(48)]:
            run.result()
    # A thread that starts programs warm keeps what it compares.
    with sf.Warm() as warm:
        warm.add("/bin/true")
        warm.fill()
        warm.run(["/bin/true"])
    # The guard of process trees leaves a table and a pidfd.
    sf.run(["/bin/true"], tree="guard")
    while children():
        time.sleep(0.01)
    # libuv keeps pipes of its own.
    for run_on in LOOPS.values():
        run_on(partial(anyio.sleep, 0))
    # The collections around each test skip the objects that exist now.
    gc.collect()
    gc.freeze()
    yield
    # Hypothesis asks the collector for references as the session ends.
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left(warmed_up: None) -> Iterator[None]:
    """Compares before and after, and gives what ends by itself (the engine's thread) time to."""

    def now() -> tuple[dict[int, str], int, set[int]]:
        sf.TemplateCache.shared().clear()
        gc.collect()
        return *descriptors(), children()

    before, *others = now()
    yield
    # What ends by itself does so within a second, unless the machine has other things to do.
    deadline = time.monotonic() + EVER
    while True:
        after, *left = now()
        if (after == before and left == others) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    changed = sorted(set(after.items()) ^ set(before.items()))
    assert (changed, left) == ([], others)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds what is skipped to the list that `make test` ends with."""
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {report.nodeid} {reason}\n")


# With it, the whole product: `make test-all`.
FULL = bool(os.environ.get("SPAWNFD_FULL"))
# Parameters by whose values a test differs little: how it is started, and the event loop.
AXES = ("way", "mode", "go")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what only `make test-all` runs.

    That is what is marked `full`; and of the values of an axis, all but one for each test. Tests
    take turns: the value is chosen by a hash of the test's other parameters.
    """
    if FULL or any("::" in argument for argument in config.args):
        return
    values: dict[str, set[str]] = {}
    for item in items:
        for others, value in axes_of(item):
            values.setdefault(others, set()).add(value)

    def is_chosen(item: pytest.Item) -> bool:
        return not item.get_closest_marker("full") and all(
            value == sorted(values[others])[zlib.crc32(others.encode()) % len(values[others])]
            for others, value in axes_of(item)
        )

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = [item for item in items if is_chosen(item)]


def axes_of(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """For each axis of a test: the test's name without its value, and the value."""
    callspec: Any = getattr(item, "callspec", None)
    parameters: dict[str, object] = callspec.params if callspec else {}
    for axis in AXES:
        if (value := parameters.get(axis)) is not None:
            yield item.nodeid.replace(str(value), axis, 1), str(value)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """An executable script that can be changed."""
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\necho one\n")
    path.chmod(0o755)
    return path


@pytest.fixture(params=LOOPS)
def go(request: pytest.FixtureRequest) -> Go:
    """Runs a coroutine function, on every event loop; anyio's own functions work on all of them."""
    return LOOPS[request.param]
