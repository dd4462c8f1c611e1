# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs on event loops: closed loops, native cancellation, several loops, and count of wakeups."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
import sniffio
import spawnfd as sf
import trio
import trio.testing
from conftest import LOOPS, RunLoop, children, wait_until
from patience import TIMEOUT_S, Gate, eventually, ignores_sigterm, in_threads
from spawnfd import _adapter, _loop, _spawnfd, _trio
from test_job import wait_for_output


def is_engine_at_rest() -> bool:
    """Returns whether the engine has handled all events: its thread sleeps or does not exist."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name == "spawnfd-engine" and rest.split()[0] != "S":
                return False
    return True


async def test_asyncio_cancellation_without_anyio(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A program that does not use anyio has not imported it.
    monkeypatch.delitem(sys.modules, "anyio")
    ready, grace = tmp_path / "ready", 0.4

    async def inside(jobs: list[sf.Job]) -> None:
        async with sf.start(ignores_sigterm(ready), grace=grace) as job:
            jobs.append(job)
            await job.result()

    async def cancel(task: asyncio.Task[Any]) -> None:
        while not ready.exists():
            await asyncio.sleep(0.01)
        ready.unlink()
        begun = time.monotonic()
        for _ in range(3):
            # A second cancellation does not shorten the wait for the program's end.
            task.cancel()
            await asyncio.sleep(0.05)
            assert not task.done() or time.monotonic() - begun >= grace
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun >= grace

    jobs: list[sf.Job] = []
    await cancel(asyncio.create_task(inside(jobs)))
    result = await jobs[0].wait(0)
    assert result is not None
    assert (result.signal, result.text) == (9, "ready\n")

    await cancel(asyncio.create_task(sf.run_async(ignores_sigterm(ready), grace=grace)))


async def test_cancelling_during_exit_still_waits_for_the_program(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    leaving = asyncio.Event()

    async def leave() -> None:
        line = f"trap '' TERM; echo ready; {gate.wait}"
        async with sf.start(sf.sh(line), grace=1000) as job:
            await wait_for_output(job, "ready")
            leaving.set()

    task = asyncio.create_task(leave())
    await leaving.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_job_moves_between_loops() -> None:
    async def begin() -> sf.Job:
        return await sf.start(["cat"], stdin="stream")

    job, written = asyncio.run(begin()), ""

    async def go_on() -> None:
        await job.write(b"x")
        nonlocal written
        written += "x"
        await wait_for_output(job, written)
        assert await job.wait(0.05) is None

    asyncio.run(go_on())
    trio.run(go_on)

    async def end() -> None:
        assert (await job.stop()).stdout == b"xx"

    asyncio.run(end())


def step(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, object]) -> Any:
    task = loop.create_task(coroutine)
    loop.call_later(0.1, loop.stop)
    loop.run_forever()
    return task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["run", "result", "events", "write"])
def test_closing_a_loop_kills_the_programs_of_its_tasks(how: str) -> None:
    async def inside() -> None:
        if how == "run":
            await sf.run_async(["sleep", "60"])
        async with sf.start(["sleep", "60"], stdin="stream") as job:
            if how == "result":
                await job.result()
            elif how == "events":
                async for _ in job.events():
                    pass
            else:
                await job.write(bytes(1 << 20))

    loop = asyncio.new_event_loop()
    complaints: list[object] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    task = step(loop, inside())
    assert not task.done()
    loop.close()
    # Destroying the coroutine of the task kills the program.
    del task, loop
    gc.collect()
    assert complaints == ["Task was destroyed but it is pending!"]


def test_job_that_outlives_its_loop() -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> sf.Job:
        return await sf.start(["sleep", "60"])

    job = loop.run_until_complete(begin())
    loop.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        job.wait().send(None)
    del job, loop
    gc.collect()


def test_start_without_await_starts_nothing() -> None:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        sf.start(["no-such-program"])


def test_loops_in_threads() -> None:
    async def echo(turn: int) -> None:
        assert (await sf.run_async(["echo", str(turn)])).text == f"{turn}\n"

    def work(run: RunLoop) -> None:
        async def main() -> None:
            for turn in range(20):
                async with sf.start(["echo", str(turn)]) as job, anyio.create_task_group() as group:
                    group.start_soon(echo, turn)
                    assert [event.text async for event in job.events()] == [f"{turn}\n"]

        for _ in range(2):
            run(main)

    in_threads(*(partial(work, LOOPS[name]) for name in ["asyncio", "trio"] * 2))


async def test_many_results_need_few_wakeups(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = 0, _spawnfd.begin

    def counted_begin(*arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        return begin(*arguments)

    monkeypatch.setattr(_spawnfd, "begin", counted_begin)

    def counting(adapter: Any) -> Any:
        count = [0]
        drain = adapter.drain

        def counted() -> None:
            count[0] += 1
            drain()

        adapter.loop.remove_reader(adapter.queue.fileno())
        adapter.loop.add_reader(adapter.queue.fileno(), counted)
        return count

    before = children()
    reader, writer = os.pipe()
    jobs = [await sf.start(["cat"], stdin=reader) for _ in range(20)]
    waiting = [asyncio.create_task(job.result()) for job in jobs]
    runs = [asyncio.create_task(sf.run_async(["cat"], stdin=reader)) for _ in range(20)]
    adapter: Any = _loop.current_adapter()
    # The loop starts the programs in batches.
    while begun < len(runs):
        await asyncio.sleep(0.001)
    os.close(reader)
    count = counting(adapter)
    # The loop is blocked here while all programs end.
    os.close(writer)
    assert eventually(lambda: children() == before)
    assert eventually(is_engine_at_rest)
    results = await asyncio.gather(*waiting, *runs)
    assert all(result.ok for result in results)
    assert count[0] <= 2


def test_exception_of_a_handler_during_drain_loses_no_result() -> None:
    class Future:
        """A future in which a signal handler raises once, before or after it stores the result."""

        def __init__(self, early: bool) -> None:
            self.early, self.raised, self.results = early, False, list[object]()

        def done(self) -> bool:
            return bool(self.results)

        def interrupt(self) -> None:
            if not self.raised:
                self.raised = True
                raise KeyboardInterrupt

        def set_result(self, result: object) -> None:
            if self.early:
                self.interrupt()
            self.results.append(result)
            self.interrupt()

    queue, started = _spawnfd.Queue(False), list[_spawnfd.ActiveRun]()
    futures = [Future(number % 2 == 0) for number in range(10)]
    pending = dict(enumerate(futures))
    reader, writer = os.pipe()
    for key in pending:
        _spawnfd.begin(None, ["cat"], {"stdin": reader}, None, None, started)
        started[key].done.listen(queue, key)
    os.close(reader)
    os.close(writer)
    # Most results, if not all, arrive in one batch.
    while children():
        time.sleep(0.01)
    interrupted, deadline = 0, time.monotonic() + TIMEOUT_S
    while pending and time.monotonic() < deadline:
        queue.block(1)
        try:
            queue.drain(pending)
        except KeyboardInterrupt:
            interrupted += 1
    assert [len(future.results) for future in futures] == [1] * 10
    assert interrupted == 10


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_replaced_queue_descriptor_is_noticed(
    loop: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The waiters still get their results or EBADF, and later runs use a new descriptor."""
    reader, writer = os.pipe()
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    monkeypatch.setattr(_loop, "CHECK_INTERVAL", 0.2)

    async def main() -> None:
        adapter: Any = _loop.current_adapter()
        number = adapter.queue.fileno()
        job = await sf.start(["sleep", "1000"])
        before = children()
        ended = asyncio.create_task(sf.run_async(["cat"], stdin=reader))
        running = asyncio.create_task(sf.run_async(["sleep", "1000"]))
        waiting = asyncio.create_task(job.wait())
        while len(adapter.pending) < 3:
            await asyncio.sleep(0.001)
        os.close(reader)
        with theirs.open("r+b", buffering=0) as file:
            file.seek(3)
            os.dup2(file.fileno(), number, inheritable=False)
            # These calls block the loop until one result is there, and for longer than
            # CHECK_INTERVAL.
            os.close(writer)
            assert eventually(lambda: len(children() - before) == 1)
            assert eventually(is_engine_at_rest)
            time.sleep(0.3)
            assert (await asyncio.wait_for(ended, 20)).ok
            for lost in (running, waiting):
                with pytest.raises(OSError, match="file descriptor") as caught:
                    await asyncio.wait_for(lost, 20)
                assert caught.value.errno == errno.EBADF
            assert (await asyncio.wait_for(job.stop(), 20)).stop == "cancelled"
            del adapter, caught
            gc.collect()
            assert file.tell() == 3
        # The library has left this number to the application.
        os.close(number)

    LOOPS[loop](main)
    assert theirs.read_text() == "theirs"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_blocked_loop_delays_neither_output_nor_timeouts(loop: str) -> None:
    async def main() -> None:
        results: list[sf.Result] = []

        async def run(line: str, **options: Any) -> None:
            results.append(await sf.run_async(sf.sh(line), **options))

        # The guard starts with the first run.
        await run("true")
        before = children()
        for turn in range(8):
            results.clear()
            async with anyio.create_task_group() as group:
                group.start_soon(run, "head -c 1000000 /dev/zero")
                group.start_soon(partial(run, "exec sleep 1000", timeout=0.05))
                # The loop is blocked at another moment in each turn.
                await anyio.sleep(0.002 + turn * 0.001)
                assert eventually(lambda: children() == before)
            assert sorted(result.stop for result in results) == ["exited", "timeout"]
            assert max(result.seen_bytes for result in results) == 1_000_000

    LOOPS[loop](main)


async def test_loop_blocked_for_seconds_gets_all_results() -> None:
    runs = [asyncio.create_task(sf.run_async(["echo", str(number)])) for number in range(20)]
    for pause in (0.0, 0.001, 0.03, 3.0):
        await asyncio.sleep(0.005)
        time.sleep(pause)
    results = await asyncio.gather(*runs)
    assert [result.text for result in results] == [f"{number}\n" for number in range(20)]


async def test_port_released_while_starts_are_queued() -> None:
    adapter: Any = _loop.current_adapter()
    adapter.gate.started = _adapter.STARTS_PER_ITERATION
    run = asyncio.create_task(sf.run_async(["true"]))
    await asyncio.sleep(0)
    adapter._unwatch()
    assert not adapter.watched
    assert (await asyncio.wait_for(run, 20)).ok


def test_trio_has_one_port_per_run() -> None:
    async def main() -> None:
        assert isinstance(_loop.current_adapter(), _trio._TrioAdapter)
        assert _loop.current_adapter() is _loop.current_adapter()

    trio.run(main)
    trio.run(main)


async def test_partially_imported_trio_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trio", "sniffio", "anyio"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert (await sf.run_async(["true"])).ok
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(sf.run_async(["sleep", "60"]), 0.05)


def test_trio_without_in_trio_task(monkeypatch: pytest.MonkeyPatch) -> None:
    # trio before 0.23 does not have in_trio_task().
    monkeypatch.delattr(trio.lowlevel, "in_trio_task")

    async def main() -> None:
        assert (await sf.run_async(["true"])).ok

    asyncio.run(main())
    trio.run(main)


def test_asyncio_within_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with monkeypatch.context() as patch:
            # trio-asyncio sets this name.
            patch.setattr(sniffio.thread_local, "name", "asyncio")
            with pytest.raises(RuntimeError, match="no running event loop"):
                _loop.current_adapter()
        assert isinstance(_loop.current_adapter(), _trio._TrioAdapter)

    trio.run(main)


async def test_trio_within_asyncio() -> None:
    async def inner() -> None:
        assert isinstance(_loop.current_adapter(), _trio._TrioAdapter)
        assert (await sf.run_async(["true"])).ok

    trio.run(inner)
    assert (await sf.run_async(["true"])).ok


@pytest.mark.parametrize("where", ["a generator", "a system task", "two tasks and a generator"])
def test_trio_stops_jobs_after_the_main_task(where: str) -> None:
    ended: list[str] = []
    kept: list[AsyncGenerator[None]] = []

    async def stop(job: sf.Job) -> None:
        with trio.move_on_after(20, shield=True):
            ended.append((await job.stop()).stop)

    async def generator() -> AsyncGenerator[None]:
        job = await sf.start(["sleep", "1000"])
        try:
            yield
        finally:
            await stop(job)
            with trio.move_on_after(20, shield=True):
                ended.append((await sf.run_async(["true"])).stop)

    async def task(job: sf.Job) -> None:
        try:
            await trio.sleep_forever()
        finally:
            await stop(job)

    async def main() -> None:
        if "generator" in where:
            kept.append(generator())
            await kept[0].__anext__()
        for _ in range(where.count("task")):
            trio.lowlevel.spawn_system_task(task, await sf.start(["sleep", "1000"]))
        if "two" in where:
            trio.lowlevel.spawn_system_task(task, await sf.start(["sleep", "1000"]))
        await trio.lowlevel.checkpoint()

    trio.run(main)
    stopped = {"a generator": 1, "a system task": 1}.get(where, 3)
    assert sorted(ended) == ["cancelled"] * stopped + ["exited"] * ("generator" in where)


def test_trio_waits_for_jobs_after_the_main_task() -> None:
    ended: list[str] = []

    async def task(job: sf.Job) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(20, shield=True):
                assert await job.wait(0.01) is None
                ended.append((await job.stop()).stop)

    async def main() -> None:
        trio.lowlevel.spawn_system_task(task, await sf.start(["sleep", "1000"]))
        await trio.lowlevel.checkpoint()

    # The order in which trio ends system tasks is random.
    for _ in range(10):
        trio.run(main)
    assert ended == ["cancelled"] * 10


def test_trio_second_interrupt_ends_the_wait(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    before = children()

    async def interrupt() -> None:
        await wait_until(ready.exists)
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            await trio.testing.wait_all_tasks_blocked()

    async def main() -> None:
        trio.lowlevel.spawn_system_task(interrupt)
        await sf.run_async(ignores_sigterm(ready), grace=1000)

    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main)
        assert time.monotonic() - begun < 2 * TIMEOUT_S
    finally:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)


def test_trio_passes_on_exceptions_of_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(adapter: _trio._TrioAdapter, *_: int) -> None:
        monkeypatch.undo()
        await trio.lowlevel.wait_readable(adapter.queue.fileno())
        raise SystemExit("asked to end")

    async def main() -> None:
        monkeypatch.setattr(_trio._TrioAdapter, "_wait_and_drain", interrupted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sf.run_async, ["sleep", "1000"])
            # It must not end before its task waits for it.
            nursery.start_soon(sf.run_async, ["sleep", "0.2"])

    begun = time.monotonic()
    with pytest.raises(BaseException, match="Trio nursery") as caught:
        trio.run(main)
    assert time.monotonic() - begun < 2 * TIMEOUT_S
    raised: Any = caught.value
    assert [type(error) for error in raised.exceptions] == [SystemExit]
