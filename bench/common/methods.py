# SPDX-License-Identifier: MIT OR Apache-2.0
"""Methods to make captured calls from Python. Each runs a block of calls, and times every call.

All start the child with the same argv, working directory and environment, with /dev/null as stdin,
and capture all of stdout and stderr separately.
"""

import asyncio
import importlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from . import warm
from .definitions import Terms
from .errors import BenchError
from .heartbeat import Heartbeat

Answer = tuple[int, bytes, bytes]
OnceCall = Callable[[list[str]], Answer]
AsyncCall = Callable[[list[str]], Awaitable[Answer]]
Argvs = Sequence[list[str]]


@dataclass(frozen=True)
class Made:
    """A block of calls.

    Attributes:
        answers: Of all calls in their order, the untimed ones first.
        ns: The time of each timed call, in any order.
        late_us: The delay of each event of the loop.
    """

    answers: list[Answer]
    ns: list[int]
    begin_ns: int
    end_ns: int
    late_us: list[int] = field(default_factory=list)


class Runner:
    """One method to make calls in this process, with what it keeps between blocks."""

    def __init__(self) -> None:
        # The kinds of start of the timed calls.
        self.started: Counter[str] = Counter()
        self.warm: Any = None

    def run(self, calls: Argvs, untimed: int = 0, rate: float = 0.0) -> Made:
        """Makes the calls, the first ones untimed. With a rate, that many arrive in a second."""
        raise NotImplementedError

    def settle(self) -> None:
        """Waits until all used processes have been replaced."""
        if self.warm is not None:
            warm.settle(self.warm)

    def close(self) -> None:
        """Ends what the method has started."""
        if self.warm is not None:
            self.warm.close()


class Blocking(Runner):
    """Makes calls in this thread, or in one thread for each call in flight."""

    def __init__(self, call: OnceCall, in_flight: int, gap_ms: int) -> None:
        super().__init__()
        self._call = call
        self._gap_s = gap_ms / 1e3
        self._pool = ThreadPoolExecutor(in_flight) if in_flight > 1 else None

    def _timed(self, argv: list[str]) -> tuple[Answer, int]:
        begin = time.monotonic_ns()
        answer = self._call(argv)
        took = time.monotonic_ns() - begin
        if self._gap_s:
            time.sleep(self._gap_s)
        return answer, took

    def run(self, calls: Argvs, untimed: int = 0, rate: float = 0.0) -> Made:
        if rate:
            raise BenchError("only methods on an event loop make calls at a rate")
        make = self._pool.map if self._pool else map
        before = list(make(self._timed, calls[:untimed]))
        self.started.clear()
        begin = time.monotonic_ns()
        made = list(make(self._timed, calls[untimed:]))
        end = time.monotonic_ns()
        return Made([one for one, _ in [*before, *made]], [ns for _, ns in made], begin, end)

    def close(self) -> None:
        super().close()
        if self._pool:
            self._pool.shutdown()


class Awaited(Runner):
    """Makes calls on one event loop, by one coroutine for each call in flight.

    `lanes` has the call of each coroutine.
    """

    def __init__(self, lanes: Sequence[AsyncCall], terms: Terms) -> None:
        super().__init__()
        self._lanes = lanes
        self._gap_s = terms.gap_ms / 1e3
        self._runner = asyncio.Runner(loop_factory=_loop_factory(terms.method.loop))
        loop = self._runner.get_loop()
        if terms.method.watcher:
            _watch(terms.method.watcher, loop)
        self._heartbeat = Heartbeat(loop, terms.tick_us) if terms.tick_us else None
        # All methods make the same calls at the same times in the same round.
        self._rounds: Counter[str] = Counter()

    def run(self, calls: Argvs, untimed: int = 0, rate: float = 0.0) -> Made:
        if not rate:
            return self._runner.run(self._in_lanes(calls, untimed))
        name = " ".join(calls[0])
        self._rounds[name] += 1
        arrivals = random.Random(f"{name} {self._rounds[name]}")
        gaps = [arrivals.expovariate(rate) for _ in calls]
        return self._runner.run(self._arriving(calls, gaps))

    async def _in_lanes(self, calls: Argvs, untimed: int) -> Made:
        answers: dict[int, Answer] = {}
        ns: list[int] = []

        async def lane(call: AsyncCall, jobs: Iterator[tuple[int, list[str]]]) -> None:
            for index, argv in jobs:
                begin = time.monotonic_ns()
                answers[index] = await call(argv)
                ns.append(time.monotonic_ns() - begin)
                if self._gap_s:
                    await asyncio.sleep(self._gap_s)

        async def lanes(jobs: Iterator[tuple[int, list[str]]]) -> None:
            await asyncio.gather(*(lane(call, jobs) for call in self._lanes))

        await lanes(iter(list(enumerate(calls))[:untimed]))
        ns.clear()
        self.started.clear()
        if self._heartbeat:
            self._heartbeat.start()
        begin = time.monotonic_ns()
        await lanes(iter(list(enumerate(calls))[untimed:]))
        end = time.monotonic_ns()
        if self._heartbeat:
            self._heartbeat.stop()
        late_us = self._heartbeat.late_us if self._heartbeat else []
        return Made([answers[index] for index in range(len(calls))], ns, begin, end, late_us)

    async def _arriving(self, calls: Argvs, gaps: Sequence[float]) -> Made:
        """Makes a call after each gap. A call's time begins when it is due."""
        loop = asyncio.get_running_loop()
        ns: list[int] = []
        tasks: list[asyncio.Task[Answer]] = []
        arrived = asyncio.Event()

        async def timed(argv: list[str], due: int) -> Answer:
            answer = await self._lanes[0](argv)
            ns.append(time.monotonic_ns() - due)
            return answer

        def arrive(argv: list[str], due: int) -> None:
            tasks.append(loop.create_task(timed(argv, due)))
            if len(tasks) == len(calls):
                arrived.set()

        def announce() -> None:
            # The loop's own timers are late by up to a millisecond.
            due = time.monotonic_ns()
            for argv, gap in zip(calls, gaps, strict=True):
                due += int(gap * 1e9)
                time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
                loop.call_soon_threadsafe(arrive, argv, due)

        begin = time.monotonic_ns()
        await asyncio.gather(asyncio.to_thread(announce), arrived.wait())
        answers = await asyncio.gather(*tasks)
        return Made(answers, ns, begin, time.monotonic_ns())

    def close(self) -> None:
        super().close()
        if self._heartbeat:
            self._heartbeat.close()
        self._runner.close()


def _loop_factory(loop: str | None) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def _watch(watcher: str, loop: asyncio.AbstractEventLoop) -> None:
    """Makes asyncio of Python 3.11 watch children by pidfd, or by a thread for each child.

    By default, 3.11 uses threads. From 3.12 on, asyncio always uses pidfds.
    """
    if sys.version_info < (3, 12):
        if watcher == "pidfd":
            by_pidfd = asyncio.PidfdChildWatcher()
            by_pidfd.attach_loop(loop)
            asyncio.set_child_watcher(by_pidfd)
    elif watcher != "pidfd":
        raise BenchError("asyncio watches children by threads up to Python 3.11 only")


# ---- single calls ----


def _subprocess(terms: Terms, cwd: str, env: Mapping[str, str]) -> OnceCall:
    user = None if terms.uid < 0 else terms.uid

    def call(argv: list[str]) -> Answer:
        done = subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, user=user
        )
        return done.returncode, done.stdout, done.stderr

    return call


def _create_subprocess_exec(cwd: str, env: Mapping[str, str]) -> AsyncCall:
    async def call(argv: list[str]) -> Answer:
        pipe = asyncio.subprocess.PIPE
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=cwd, env=env, stdin=null, stdout=pipe, stderr=pipe
        )
        stdout, stderr = await process.communicate()
        assert process.returncode is not None
        return process.returncode, stdout, stderr

    return call


def _in_threads(call: OnceCall, in_flight: int) -> AsyncCall:
    """Makes blocking calls of an event loop, in a thread for each call in flight."""
    pool = ThreadPoolExecutor(in_flight, "call")

    async def awaited(argv: list[str]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(pool, call, argv)

    return awaited


def import_spawnfd() -> Any:
    """Imports the package under test. Its absence is an error, not a skipped column."""
    try:
        return importlib.import_module("spawnfd")
    except ImportError as error:
        raise BenchError(
            f"the spawnfd package cannot be imported by {sys.executable} ({error}); "
            "build it into this environment, or leave its methods out by --without"
        ) from error


class Spawnfd:
    """Calls by spawnfd, or by its Warm with the parked programs."""

    def __init__(self, terms: Terms, cwd: str, env: Mapping[str, str]) -> None:
        spawnfd, method = import_spawnfd(), terms.method
        self.warm: Any = None
        self.started: Counter[str] = Counter()
        prepared = spawnfd.Env.empty()
        for name, value in env.items():
            prepared = prepared.set(name, value)
        self._options = {"cwd": cwd, "env": prepared}
        if method.timeout:
            self._options["timeout"] = method.timeout
        if terms.uid >= 0:
            self._options["actions"] = [spawnfd.actions.Uid(terms.uid)]
        if method.mode:
            self.warm = warm.make(spawnfd, method.mode, trusted=method.trusted)
            if method.any:
                self.warm.add_any(depth=max(2, terms.in_flight))
            for park in () if method.any else terms.parks:
                warm.park(self.warm, park, park.depth, env, cwd)
            warm.settle(self.warm)
        self._source = self.warm or spawnfd

    def _answer(self, result: Any) -> Answer:
        self.started[result.started] += 1
        return result.code, result.stdout, result.stderr

    def run(self, argv: list[str]) -> Answer:
        """Makes a call, and waits for its end."""
        return self._answer(self._source.run(argv, **self._options))

    async def run_async(self, argv: list[str]) -> Answer:
        """Makes a call on an event loop."""
        return self._answer(await self._source.run_async(argv, **self._options))


# Creates the runner of calls that are awaited.
MakeAwaited = Callable[[AsyncCall, Terms], Awaited]


def _plain(call: AsyncCall, terms: Terms) -> Awaited:
    return Awaited([call] * terms.in_flight, terms)


def make(
    terms: Terms, cwd: str, env: Mapping[str, str], make_awaited: MakeAwaited = _plain
) -> Runner:
    """Creates a method's runner. Raises BenchError if the method is unknown."""
    way = terms.method.way
    once = _subprocess(terms, cwd, env)
    if way == "subprocess.run":
        return Blocking(once, terms.in_flight, terms.gap_ms)
    if way == "subprocess.threads":
        return make_awaited(_in_threads(once, terms.in_flight), terms)
    if way == "create_subprocess_exec":
        return make_awaited(_create_subprocess_exec(cwd, env), terms)
    if way not in ("spawnfd.run", "spawnfd.run_async"):
        raise BenchError(f"unknown method {way!r}")
    ours = Spawnfd(terms, cwd, env)
    runner: Runner
    if way == "spawnfd.run":
        runner = Blocking(ours.run, terms.in_flight, terms.gap_ms)
    else:
        runner = make_awaited(ours.run_async, terms)
    runner.warm, runner.started = ours.warm, ours.started
    return runner
