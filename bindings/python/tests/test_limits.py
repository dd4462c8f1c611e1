# SPDX-License-Identifier: MIT OR Apache-2.0
"""Limits of a run's resources, and of the number of concurrent runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop, wait_until
from patience import TIMEOUT_S, eventually, signal_handler
from test_options import Run, each_run

BURN = sf.sh("while :; do :; done")
# Options of a run that uses no cgroup.
GUARD: dict[str, Any] = {"tree": "guard"}


@each_run
def test_cgroup_enforces_the_cpu_time_if_the_run_has_one(run: Run) -> None:
    result = run(BURN, limits=sf.Limits(cpu_time=0.5))
    assert result.stop == "limit"
    enforcer = "cgroup" if result.tree == "cgroup" else "rlimit"
    assert result.limits["cpu_time"] == enforcer
    assert f"limit='cpu_time ({enforcer})'" in repr(result).replace('"', "'")


LONELY_USER = """
import os, resource, subprocess, sys
import spawnfd as sf
user = 1_000_000_000 + os.getpid()
os.setgroups([])
os.setgid(user)
os.setuid(user)
"""

AT_THE_LIMIT = (
    LONELY_USER
    + """
resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
assert subprocess.run(["true"]).returncode == 0
print(*(sf.run(["true"], tree=tree).check().tree for tree in (None, "group", "auto")))
"""
)

AFTER_A_RUN = (
    LONELY_USER
    + """
for start in (lambda: sf.spawn(["true"]).wait(), lambda: subprocess.run(["true"]).returncode):
    # The run leaves an idle guard and idle threads.
    resource.setrlimit(resource.RLIMIT_NPROC, (10, 10))
    sf.run(["true"], tree="guard").check()
    resource.setrlimit(resource.RLIMIT_NPROC, (2, 10))
    print(start())
    sf.install()
"""
)


@pytest.mark.skipif(os.getuid() != 0, reason="changes its user id")
def test_run_succeeds_with_the_last_free_process() -> None:
    result = sf.run([sys.executable, "-c", AT_THE_LIMIT], timeout=TIMEOUT_S)
    assert (result.text, result.stderr) == ("group group group\n", b""), result
    result = sf.run([sys.executable, "-c", AFTER_A_RUN], timeout=TIMEOUT_S)
    assert (result.text, result.stderr) == ("0\n0\n", b""), result


@pytest.mark.skipif(os.getuid() != 0, reason="RLIMIT_NPROC limits users other than root")
@each_run
def test_pids(run: Run) -> None:
    limits = sf.Limits(pids=5, enforce="best-effort")
    line = sf.sh("for i in 1 2 3 4 5 6 7; do sleep 1000 & done; wait")
    result = run(line, limits=limits, **GUARD)
    assert (result.stop, result.limit, result.signal) == ("limit", "pids (watch)", 9)


def test_limiter_attributes() -> None:
    limiter = sf.Limiter(2)
    assert (limiter.limit, limiter.running, limiter.waiting) == (2, 0, 0)
    limiter.limit = 8
    assert repr(limiter) == "<spawnfd.Limiter limit=8 running=0 waiting=0>"
    for wrong, error in ((-1, ValueError), ("x", TypeError), (True, TypeError)):
        with pytest.raises(error, match="limit"):
            sf.Limiter(wrong)  # type: ignore[arg-type]
        with pytest.raises(error, match="limit"):
            limiter.limit = wrong  # type: ignore[assignment]
    assert limiter.limit == 8


@each_run
def test_run_waits_for_the_limiter(run: Run) -> None:
    limiter = sf.Limiter(1)
    results: list[sf.Result] = []
    with sf.start_sync(["cat"], stdin="stream", limiter=limiter) as holder:
        thread = threading.Thread(
            target=lambda: results.append(run(["echo", "1"], limiter=limiter, timeout=TIMEOUT_S))
        )
        thread.start()
        assert eventually(lambda: limiter.waiting == 1)
        assert limiter.running == 1
        holder.close_stdin()
        assert holder.result().ok
    thread.join()
    assert results[0].text == "1\n"
    assert (limiter.running, limiter.waiting) == (0, 0)


@each_run
def test_refused_run_releases_the_limiter(run: Run) -> None:
    limiter = sf.Limiter(1)
    kept: list[BaseException] = []
    for options in ({"cwd": "/nonexistent"}, {"grace": -1}, {"no": 1}):
        with pytest.raises((OSError, ValueError, TypeError)) as caught:
            run(["true"], limiter=limiter, **options)
        kept.append(caught.value)
    assert eventually(lambda: limiter.running == 0)
    with pytest.raises(TypeError, match=r"limiter: expected spawnfd\.Limiter"):
        run(["true"], limiter=3)


@pytest.mark.parametrize("run", [sf.run, sf.start_sync])
def test_exception_of_a_handler_leaves_the_limiter_queue(run: Callable[..., Any]) -> None:
    limiter = sf.Limiter(0)

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not interrupted.is_set():
            interrupted.set()
            raise Interrupted

    interrupted = threading.Event()
    with signal_handler(signal.SIGALRM, interrupt):
        try:
            with pytest.raises(Interrupted):  # noqa: PT012 # it may come at once
                signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
                run(["true"], limiter=limiter)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_many_tasks_respect_the_limit(run_loop: RunLoop) -> None:
    limiter = sf.Limiter(3)
    most = 0
    order: list[int] = []

    async def one(number: int) -> None:
        nonlocal most
        result = await sf.run_async(["sh", "-c", f"exit {number}"], limiter=limiter)
        most = max(most, limiter.running)
        assert result.code == number
        order.append(number)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert most <= 3
    assert len(order) == 20
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_jobs_queue_and_cancelled_ones_leave(run_loop: RunLoop) -> None:
    limiter = sf.Limiter(1)
    async with sf.start(["cat"], stdin="stream", limiter=limiter) as holder:
        for run in (sf.run_async, sf.start):
            with anyio.move_on_after(0.05) as scope:
                await run(["true"], limiter=limiter)
            assert scope.cancelled_caught
            assert (limiter.running, limiter.waiting) == (1, 0)
        async with anyio.create_task_group() as group:

            async def other() -> None:
                async with sf.start(["true"], limiter=limiter) as job:
                    assert (await job.result()).ok

            group.start_soon(other)
            await wait_until(lambda: limiter.waiting == 1)
            limiter.limit = 2
        holder.close_stdin()
        assert (await holder.result()).ok
    assert (limiter.running, limiter.waiting) == (0, 0)
