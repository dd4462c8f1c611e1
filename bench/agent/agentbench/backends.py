# SPDX-License-Identifier: MIT OR Apache-2.0
"""The compared backends, which start a program; each is one small class.

To add one, write a class with `call`, and add it to BACKENDS. Backends of `kind` "ours" are
compared with the better of those of `kind` "platform". `mode` is the last part of the ratio's id.
Every backend starts its child with the same argv, cwd and environment, with /dev/null as stdin, and
captures all of stdout and stderr separately.
"""

import asyncio
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from common import asyncio_calls, warm
from common.asyncio_calls import Answer
from common.errors import BenchError

TIMEOUT_S = 30


class Backend:
    """Runs one call at a time for each caller. The worker creates it in its event loop."""

    kind: ClassVar[str] = "platform"
    mode: ClassVar[str] = "cold"
    label: ClassVar[str]

    def __init__(self, env: Mapping[str, str], in_flight: int) -> None:
        self.env = dict(env)
        self.started: Counter[str] = Counter()

    async def call(self, argv: list[str], cwd: str) -> Answer:
        """Runs the program to its end."""
        raise NotImplementedError

    def prepare(self, calls: Iterable[tuple[str, ...]]) -> None:
        """Prepares for these calls."""

    def settle(self) -> None:
        """Replaces used processes.

        The worker calls this at the end of each slice, after its timing.
        """

    def close(self) -> None:
        """Releases the backend's resources."""


class AsyncioExec(Backend):
    """asyncio.create_subprocess_exec, with children watched by pidfds.

    The pidfd watcher is the default from Python 3.12 on. 3.11 starts a thread for each child.
    """

    label = "asyncio exec"

    def __init__(self, env: Mapping[str, str], in_flight: int) -> None:
        super().__init__(env, in_flight)
        asyncio_calls.watch_by_pidfd(asyncio.get_running_loop())

    async def call(self, argv: list[str], cwd: str) -> Answer:
        return await asyncio_calls.call(argv, cwd, self.env)


class AsyncioExecThreaded(AsyncioExec):
    """asyncio exec with the default watcher of Python 3.11: one waiting thread for each child."""

    label = "asyncio exec, thread watcher"

    def __init__(self, env: Mapping[str, str], in_flight: int) -> None:
        Backend.__init__(self, env, in_flight)
        if sys.version_info >= (3, 12):
            raise BenchError("asyncio-threaded exists up to Python 3.11 only")
        asyncio.set_child_watcher(asyncio.ThreadedChildWatcher())


class SubprocessThreads(Backend):
    """subprocess.run in a pool that has one thread for each call in flight."""

    label = "subprocess in threads"

    def __init__(self, env: Mapping[str, str], in_flight: int) -> None:
        super().__init__(env, in_flight)
        self._pool = ThreadPoolExecutor(in_flight, "call")

    def _run(self, argv: list[str], cwd: str) -> Answer:
        done = subprocess.run(
            argv, cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.returncode, done.stdout, done.stderr

    async def call(self, argv: list[str], cwd: str) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, argv, cwd)

    def close(self) -> None:
        self._pool.shutdown()


class Spawnfd(Backend):
    """spawnfd.run_async: a supervised run with a timeout, started cold."""

    kind = "ours"
    label = "spawnfd"

    def __init__(self, env: Mapping[str, str], in_flight: int) -> None:
        super().__init__(env, in_flight)
        spawnfd = import_spawnfd()
        self._run_async = spawnfd.run_async
        self._env = spawnfd.Env.only([])
        for name, value in self.env.items():
            self._env = self._env.set(name, value)

    async def call(self, argv: list[str], cwd: str) -> Answer:
        result = await self._run_async(argv, cwd=cwd, env=self._env, timeout=TIMEOUT_S)
        self.started[result.started] += 1
        return result.code, result.stdout, result.stderr


class SpawnfdWarm(Spawnfd):
    """Warm.run_async: the same supervised run, with programs parked before."""

    depth: ClassVar[int]
    trusted: ClassVar[bool] = False

    def __init__(self, env: Mapping[str, str], in_flight: int) -> None:
        super().__init__(env, in_flight)
        self._warm = warm.make(import_spawnfd(), self.mode, trusted=self.trusted)
        self._run_async = self._warm.run_async

    def prepare(self, calls: Iterable[tuple[str, ...]]) -> None:
        for argv in {argv[0]: argv for argv in calls}.values():
            warm.park(self._warm, argv, self.depth, self.env)
        self.settle()

    def settle(self) -> None:
        warm.settle(self._warm)

    def close(self) -> None:
        self._warm.close()


class SpawnfdReserve(SpawnfdWarm):
    """Processes that each become one program."""

    mode = "reserve"
    label = "spawnfd reserve"
    depth = 2


class SpawnfdFork(SpawnfdWarm):
    """One process for each program, with some children forked in advance."""

    mode = "fork"
    label = "spawnfd fork"
    depth = 4


class SpawnfdAuto(SpawnfdWarm):
    """The mode of each program is the library's choice. It may fork, as all inputs are trusted."""

    mode = "auto"
    label = "spawnfd auto"
    depth = SpawnfdFork.depth
    trusted = True


def import_spawnfd() -> Any:
    """Imports the package under test. Its absence is an error, not a skipped column."""
    try:
        spawnfd = importlib.import_module("spawnfd")
    except ImportError as error:
        raise BenchError(
            f"the spawnfd package cannot be imported by {sys.executable} ({error}); "
            "build it into this environment, or use --without spawnfd"
        ) from error
    return spawnfd


BACKENDS: dict[str, type[Backend]] = {
    "asyncio": AsyncioExec,
    "asyncio-threaded": AsyncioExecThreaded,
    "threads": SubprocessThreads,
    "spawnfd": Spawnfd,
    "reserve": SpawnfdReserve,
    "fork": SpawnfdFork,
    "auto": SpawnfdAuto,
}
DEFAULT_BACKENDS = ("asyncio", "threads", "spawnfd", "reserve", "fork", "auto")
FLOOR = "floor"


def label_of(name: str) -> str:
    """Returns a backend's display name."""
    return "C floor" if name == FLOOR else BACKENDS[name].label


def kind_of(name: str) -> str:
    """Returns platform, ours or floor."""
    return FLOOR if name == FLOOR else BACKENDS[name].kind
