# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fixtures of all tests. A test that leaves a process, a zombie or a descriptor fails."""

from __future__ import annotations

import asyncio
import gc
import inspect
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
import portable_exclusions
import pytest
import spawnfd as sf
import trio
import uvloop
from patience import TIMEOUT_S
from session_support import Open, Start, opener, starter
from spawnfd import _spawnfd

# nohup and shells without job control ignore these signals. Child programs would inherit this.
for number, action in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, action)

RunLoop = Callable[[Callable[[], Awaitable[Any]]], Any]

LOOPS: dict[str, RunLoop] = {
    "asyncio": lambda main: asyncio.run(main()),  # type: ignore[arg-type]
    "uvloop": lambda main: uvloop.run(main()),  # type: ignore[arg-type]
    "trio": trio.run,
    "anyio-asyncio": partial(anyio.run, backend="asyncio"),
    "anyio-trio": partial(anyio.run, backend="trio"),
}


def descriptors() -> tuple[dict[int, str], int]:
    """The open descriptors by number, and the count of pidfds, whose numbers may change.

    The core's pool of socket pairs is left out: it grows with the number of concurrent spawns.
    """
    found: dict[int, str] = {}
    pidfds = of_threads = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:") and is_kept_pair(int(name)):
                continue
            # A new guard opens its table before the old guard's is closed: the number changes.
            if target.startswith("/memfd:spawnfd-trees"):
                continue
            # Each thread that has started a program keeps up to three of these until it ends: two
            # of its namespaces, and one of its security label if there is a security module.
            if target.startswith("/proc/") and target.endswith(("/ns", "/attr/current")):
                of_threads += 1
                continue
            if target == "anon_inode:[pidfd]":
                pidfds += 1
                continue
            found[int(name)] = target
        except OSError:
            continue
    assert of_threads <= 3 * len(os.listdir("/proc/self/task"))
    return found, pidfds


async def wait_until(condition: Callable[[], object]) -> None:
    """Waits until the condition is true, on any event loop."""
    with anyio.fail_after(TIMEOUT_S):
        while not condition():
            await anyio.sleep(0.01)


def is_kept_pair(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as end:
        return (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)


def is_alive(pid: int) -> bool:
    """Returns whether the process has not ended yet."""
    # The process may be reaped between the open and the read.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def threads() -> list[str]:
    """Returns the names of all threads. A joined thread may still be listed for a moment."""
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    return found


def children() -> set[int]:
    """Returns the pids of all children, including zombies."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def running() -> list[int]:
    """Returns the pids of the children that have not ended."""
    return [pid for pid in children() if is_alive(pid)]


@pytest.fixture(scope="session", autouse=True)
def warmed_up() -> Iterator[None]:
    """Fills the core's caches before the first test compares descriptors."""
    sf.run(["/bin/true"])
    with ThreadPoolExecutor(24) as pool:
        for run in [pool.submit(sf.run, ["/bin/sleep", "0.05"]) for _ in range(48)]:
            run.result()
    # A thread that starts programs warm keeps descriptors for its comparisons.
    if not sf.portable:
        with sf.Warm() as warm:
            warm.add("/bin/true")
            warm.fill()
            warm.run(["/bin/true"])
    # The guard of process trees keeps a table and a pidfd open.
    _spawnfd.end_idle_threads()
    while children():
        time.sleep(0.01)
    # libuv keeps its own pipes open.
    for run_on in LOOPS.values():
        run_on(partial(anyio.sleep, 0))
    yield
    # At the end of the session, Hypothesis asks the collector for references.
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left(warmed_up: None) -> Iterator[None]:
    """Fails the test if descriptors or children differ afterwards."""

    def now() -> tuple[dict[int, str], int, set[int]]:
        if not sf.portable:
            sf.TemplateCache.shared().clear()
        gc.collect()
        # Idle threads and the guard end by themselves within a second, and by this call at once.
        _spawnfd.end_idle_threads()
        return *descriptors(), children()

    before, *others = now()
    # The collections at the end of the test skip the objects that exist now.
    gc.freeze()
    yield
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        after, *left = now()
        if (after == before and left == others) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    changed = sorted(set(after.items()) ^ set(before.items()))
    assert (changed, left) == ([], others)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends each skipped test to the list that `make test` prints at its end."""
    gathered = os.environ.get("SPAWNFD_SKIPS")
    if report.skipped and gathered and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        with open(gathered, "a") as skips:
            skips.write(f"SKIP {report.nodeid} {reason}\n")


# The portable engine warns once for each process, also for those that tests start.
if sf.portable:
    os.environ["SPAWNFD_PORTABLE_WARNING"] = "0"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignores the files whose tests do not apply to the portable engine."""
    if sf.portable and portable_exclusions.excludes_file(collection_path):
        return True
    return None


def exclude_for_portable(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests that do not apply to the portable engine."""
    unused = portable_exclusions.unused([item.nodeid for item in items])
    if unused and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"portable_exclusions.py: nothing matches {unused}")
    applies = {item.nodeid: not portable_exclusions.matching(item.nodeid) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not applies[item.nodeid]])
    items[:] = [item for item in items if applies[item.nodeid]]


# Set by `make test-all`: runs every value of every axis.
FULL = bool(os.environ.get("SPAWNFD_FULL"))
# Parameters whose value changes a test little: the kind of start, and the event loop.
AXES = ("way", "mode", "run_loop")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests that only `make test-all` runs.

    These are the tests marked `full`, and for each other test all but one value of each axis. A
    hash of the test's other parameters chooses the value, so each value runs in some tests.
    """
    if sf.portable:
        exclude_for_portable(config, items)
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
    """Yields, for each axis of a test, the test's id without the axis's value, and the value."""
    callspec: Any = getattr(item, "callspec", None)
    parameters: dict[str, object] = callspec.params if callspec else {}
    for axis in AXES:
        if (value := parameters.get(axis)) is not None:
            test, _, values = item.nodeid.partition("[")
            yield f"{test}[{values.replace(str(value), axis, 1)}", str(value)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function: on the loop `run_loop` if it has one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run: Any = pyfuncitem.funcargs.get("run_loop", LOOPS["asyncio"])
    names = inspect.signature(pyfuncitem.obj).parameters
    run(partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def make_script(path: Path, text: str) -> Path:
    """Creates an executable file with this text."""
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def command() -> Path:
    """The command `spawnfd`, as `make test` builds it."""
    target = os.environ.get("CARGO_TARGET_DIR") or Path(__file__).parents[3] / "target"
    path = Path(target, "debug", "spawnfd")
    if not path.exists():
        pytest.skip("the command is not built: cargo build -p spawnfd-cli")
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Creates an executable script that a test may change."""
    return make_script(tmp_path / "tool", "#!/bin/sh\necho one\n")


@pytest.fixture(params=LOOPS)
def run_loop(request: pytest.FixtureRequest) -> RunLoop:
    """Returns a function that runs a coroutine function on one event loop.

    A test that is a coroutine function runs on this loop. It may use anyio.
    """
    return LOOPS[request.param]


@pytest.fixture(params=["bash", "dash"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["async", "sync"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(form: str, run_loop: RunLoop) -> Start:
    """Returns a function that starts a job in one form."""
    return starter(form)


@pytest.fixture
def open_session(form: str, shell: str, run_loop: RunLoop) -> Open:
    """Returns a function that opens a session in one form, with one shell."""
    return opener(form, shell)
