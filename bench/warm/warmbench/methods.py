# SPDX-License-Identifier: MIT OR Apache-2.0
"""Methods to make captured calls. Each runs a block of the same call, and times every call.

All start the child with the same argv, working directory and environment, with /dev/null as stdin,
capture all of stdout and stderr separately, and have no timeout.
"""

import asyncio
import random
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from common import asyncio_calls, warm
from common.asyncio_calls import Answer
from common.errors import BenchError

from .definitions import Call, Method

Once = Callable[[Call], Answer]
Awaited = Callable[[Call], Awaitable[Answer]]
COLD = "clone"


@dataclass(frozen=True)
class Block:
    """The answers of all calls in any order, the time of each timed call, and their total time."""

    answers: list[Answer]
    ns: list[int]
    seconds: float


class Runner:
    """One method to make calls, with its parked processes."""

    def __init__(
        self,
        method: Method,
        calls: Mapping[str, Call],
        cwd: str,
        env: Mapping[str, str],
        in_flight: int,
        gap_ms: int,
        touched_mib: int = 0,
        uid: int = -1,
    ) -> None:
        self._method = method
        self._cwd = cwd
        self._env = dict(env)
        self._in_flight = in_flight
        self._gap_s = gap_ms / 1e3
        self._uid = uid
        self._touched = bytearray(b"\1") * (touched_mib << 20)
        self._warm: Any = None
        self.started: Counter[str] = Counter()
        # All methods make the same calls at the same times in the same round.
        self._rounds: Counter[str] = Counter()
        if method.way in ("run", "run_async"):
            self._prepare(calls)
        self._pool = ThreadPoolExecutor(in_flight) if method.name == "threads" else None
        self._asyncio = asyncio.Runner()
        asyncio_calls.watch_by_pidfd(self._asyncio.get_loop())

    def _prepare(self, calls: Mapping[str, Call]) -> None:
        import spawnfd

        self._spawnfd: Any = spawnfd
        self._actions = [spawnfd.actions.Uid(self._uid)] if self._uid >= 0 else []
        self._prepared = spawnfd.Env.empty()
        for name, value in self._env.items():
            self._prepared = self._prepared.set(name, value)
        if self._method.mode:
            self._warm = warm.make(spawnfd, self._method.mode)
            if self._method.any:
                self._warm.add_any(depth=max(2, self._in_flight))
            for call in () if self._method.any else calls.values():
                # In mode fork, one process is forked in advance for each call in flight.
                ahead = self._in_flight if self._method.mode == "fork" else 1
                depth = max(call.depth, ahead)
                warm.park(
                    self._warm,
                    call.argv,
                    depth,
                    self._env,
                    call.prefix,
                    self._cwd,
                    call.entry,
                    call.in_directory,
                    call.preimport,
                )
            self.settle()

    # ---- one call ----

    def _subprocess(self, call: Call) -> Answer:
        done = subprocess.run(
            [*call.prefix, *call.argv],
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            user=None if self._uid < 0 else self._uid,
        )
        return done.returncode, done.stdout, done.stderr

    def _answer(self, result: Any) -> Answer:
        self.started[result.started] += 1
        return result.code, result.stdout, result.stderr

    def _run(self, call: Call) -> Answer:
        run = (self._warm or self._spawnfd).run
        argv = [*call.prefix, *call.argv]
        made = run(argv, cwd=self._cwd, env=self._prepared, actions=self._actions)
        return self._answer(made)

    async def _run_async(self, call: Call) -> Answer:
        run = (self._warm or self._spawnfd).run_async
        argv = [*call.prefix, *call.argv]
        return self._answer(await run(argv, cwd=self._cwd, env=self._prepared))

    async def _exec(self, call: Call) -> Answer:
        return await asyncio_calls.call([*call.prefix, *call.argv], self._cwd, self._env)

    # ---- a block of calls ----

    def run(self, call: Call, count: int, rate: float = 0.0) -> Block:
        """Makes `count` calls, `in_flight` at once; with a rate, that many arrive in a second.

        Without pauses between the calls, other calls first use up what is parked.
        """
        once: dict[str, Once] = {"subprocess.run": self._subprocess, "run": self._run}
        awaited: dict[str, Awaited] = {
            "create_subprocess_exec": self._exec,
            "run_async": self._run_async,
        }
        if rate:
            self._rounds[call.name] += 1
            arrivals = random.Random(f"{call.name} {self._rounds[call.name]}")
            gaps = [arrivals.expovariate(rate) for _ in range(count)]
            return self._asyncio.run(self._arriving(awaited[self._method.way], call, gaps))
        if self._method.way in awaited:
            return self._asyncio.run(self._lanes(awaited[self._method.way], call, count))
        if self._method.way in once:
            return self._one_by_one(once[self._method.way], call, count)
        raise BenchError(f"unknown method {self._method.way!r}")

    def _one_by_one(self, once: Once, call: Call, count: int) -> Block:
        def timed(_: int) -> tuple[Answer, int]:
            begin = time.perf_counter_ns()
            answer = once(call)
            took = time.perf_counter_ns() - begin
            if self._gap_s:
                time.sleep(self._gap_s)
            return answer, took

        calls = self._pool.map if self._pool else map
        before = [answer for answer, _ in calls(timed, range(self._calls_before))]
        self.started.clear()
        begin = time.perf_counter_ns()
        made = list(calls(timed, range(count)))
        seconds = (time.perf_counter_ns() - begin) / 1e9
        answers = before + [answer for answer, _ in made]
        return Block(answers, [took for _, took in made], seconds)

    async def _lanes(self, once: Awaited, call: Call, count: int) -> Block:
        answers: list[Answer] = []
        ns: list[int] = []

        async def lane(numbers: Iterator[int]) -> None:
            for _ in numbers:
                begin = time.perf_counter_ns()
                answer = await once(call)
                ns.append(time.perf_counter_ns() - begin)
                answers.append(answer)
                if self._gap_s:
                    await asyncio.sleep(self._gap_s)

        async def lanes(count: int) -> None:
            numbers = iter(range(count))
            await asyncio.gather(*(lane(numbers) for _ in range(self._in_flight)))

        await lanes(self._calls_before)
        ns.clear()
        self.started.clear()
        begin = time.perf_counter_ns()
        await lanes(count)
        return Block(answers, ns, (time.perf_counter_ns() - begin) / 1e9)

    async def _arriving(self, once: Awaited, call: Call, gaps: Sequence[float]) -> Block:
        """Makes a call after each gap. A call's time begins when it is due."""
        loop = asyncio.get_running_loop()
        ns: list[int] = []
        tasks: list[asyncio.Task[Answer]] = []
        arrived = asyncio.Event()

        async def timed(due: int) -> Answer:
            answer = await once(call)
            ns.append(time.perf_counter_ns() - due)
            return answer

        def arrive(due: int) -> None:
            tasks.append(loop.create_task(timed(due)))
            if len(tasks) == len(gaps):
                arrived.set()

        def announce() -> None:
            # The loop's own timers are late by up to a millisecond.
            due = time.perf_counter_ns()
            for gap in gaps:
                due += int(gap * 1e9)
                time.sleep(max(0, due - time.perf_counter_ns()) / 1e9)
                loop.call_soon_threadsafe(arrive, due)

        begin = time.perf_counter_ns()
        await asyncio.gather(asyncio.to_thread(announce), arrived.wait())
        answers = await asyncio.gather(*tasks)
        return Block(answers, ns, (time.perf_counter_ns() - begin) / 1e9)

    @property
    def _calls_before(self) -> int:
        """The number of untimed calls before a block, which use up what is parked."""
        return 0 if self._gap_s else 2 * self._in_flight

    def settle(self) -> None:
        """Waits until all used processes have been replaced."""
        if self._warm is not None:
            warm.settle(self._warm)

    def close(self) -> None:
        """Ends the parked processes, the pool and the loop."""
        if self._warm is not None:
            self._warm.close()
        if self._pool:
            self._pool.shutdown()
        self._asyncio.close()
