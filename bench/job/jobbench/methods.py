# SPDX-License-Identifier: MIT OR Apache-2.0
"""Methods to make captured calls from Python. Each runs a list of calls to its end.

All start the child with the same argv, working directory and environment, with /dev/null as stdin,
capture all of stdout and stderr separately, and have no timeout.
"""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from common import asyncio_calls
from common.asyncio_calls import Answer
from common.errors import BenchError
from common.floor import FLOOR, SESSION_FLOOR, SESSION_PIPE_FLOOR, SUBREAPER_FLOOR

from .definitions import Method
from .heartbeat import Heartbeat
from .repl import Repl

Call = Callable[[list[str]], Answer]
AsyncCall = Callable[[list[str]], Awaitable[Answer]]


def subprocess_run(cwd: str, env: dict[str, str]) -> Call:
    """subprocess.run."""

    def call(argv: list[str]) -> Answer:
        done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode, done.stdout, done.stderr

    return call


def create_subprocess_exec(cwd: str, env: dict[str, str]) -> AsyncCall:
    """asyncio.create_subprocess_exec and communicate."""

    return partial(asyncio_calls.call, cwd=cwd, env=env)


def _spawnfd(env: dict[str, str]) -> tuple[Any, Any]:
    """Returns the package, and the environment as its Env, which a caller creates once."""
    import spawnfd

    prepared = spawnfd.Env.empty()
    for name, value in env.items():
        prepared = prepared.set(name, value)
    return spawnfd, prepared


def spawnfd_run(cwd: str, env: dict[str, str]) -> Call:
    """spawnfd.run."""
    spawnfd, prepared = _spawnfd(env)

    def call(argv: list[str]) -> Answer:
        result = spawnfd.run(argv, cwd=cwd, env=prepared)
        return result.code, result.stdout, result.stderr

    return call


def spawnfd_run_async(cwd: str, env: dict[str, str]) -> AsyncCall:
    """spawnfd.run_async."""
    spawnfd, prepared = _spawnfd(env)

    async def call(argv: list[str]) -> Answer:
        result = await spawnfd.run_async(argv, cwd=cwd, env=prepared)
        return result.code, result.stdout, result.stderr

    return call


BLOCKING = {"subprocess.run": subprocess_run, "spawnfd.run": spawnfd_run}
AWAITED = {
    "create_subprocess_exec": create_subprocess_exec,
    "spawnfd.run_async": spawnfd_run_async,
}
# Ways that run in a worker of their own: a program in C, or the program in Rust.
FLOORS = (FLOOR, SESSION_FLOOR, SESSION_PIPE_FLOOR, SUBREAPER_FLOOR)
NATIVE = ("native.run", "native.session")


class Blocking:
    """Makes calls in this thread, or in one thread for each call in flight."""

    def __init__(self, call: Call, in_flight: int) -> None:
        self.ns: list[int] = []  # no single calls are measured
        self._call = call
        self._pool = ThreadPoolExecutor(in_flight) if in_flight > 1 else None

    def run(self, calls: Sequence[list[str]]) -> list[Answer]:
        """Makes the calls; answers come in their order."""
        return list((self._pool.map if self._pool else map)(self._call, calls))

    def late_us(self) -> list[int]:
        """Returns an empty list, because there is no event loop."""
        return []

    def close(self) -> None:
        """Ends the threads."""
        if self._pool:
            self._pool.shutdown()


class Awaited:
    """Makes calls on one event loop, by one coroutine for each call in flight."""

    def __init__(self, call: AsyncCall, in_flight: int, method: Method, tick_us: int) -> None:
        self.ns: list[int] = []
        self._call = call
        self._in_flight = in_flight
        self._runner = asyncio.Runner(loop_factory=_loop_factory(method.loop))
        if method.watcher == "pidfd":
            asyncio_calls.watch_by_pidfd(self._runner.get_loop())
        self._heartbeat = Heartbeat(self._runner.get_loop(), tick_us) if tick_us else None

    def run(self, calls: Sequence[list[str]]) -> list[Answer]:
        """Makes the calls; answers come in their order."""
        return self._runner.run(self._lanes(calls))

    async def _lanes(self, calls: Sequence[list[str]]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        jobs = iter(enumerate(calls))
        self.ns = []

        async def lane() -> None:
            for index, argv in jobs:
                begin = time.monotonic_ns()
                answers[index] = await self._call(argv)
                self.ns.append(time.monotonic_ns() - begin)

        if self._heartbeat:
            self._heartbeat.start()
        await asyncio.gather(*(lane() for _ in range(self._in_flight)))
        if self._heartbeat:
            self._heartbeat.stop()
        return [answers[index] for index in range(len(calls))]

    def late_us(self) -> list[int]:
        """Returns the delay of each tick in the last run."""
        return self._heartbeat.late_us if self._heartbeat else []

    def close(self) -> None:
        """Closes the loop."""
        if self._heartbeat:
            self._heartbeat.close()
        self._runner.close()


def _loop_factory(loop: str | None) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def make(
    method: Method, cwd: str, env: dict[str, str], in_flight: int, tick_us: int
) -> Blocking | Awaited | Repl:
    """Creates a method's runner."""
    if method.way == "pexpect.replwrap":
        return Repl(cwd, env)
    if method.way in BLOCKING:
        return Blocking(BLOCKING[method.way](cwd, env), in_flight)
    if method.way in AWAITED:
        return Awaited(AWAITED[method.way](cwd, env), in_flight, method, tick_us)
    raise BenchError(f"unknown method {method.way!r}")
