# SPDX-License-Identifier: MIT OR Apache-2.0
"""Event loops closed, cancelled by their own means, several at once; how often they are woken."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sniffio
import spawnfd as sf
import trio
import trio.testing
from conftest import LOOPS, Go, children, comes
from patience import EVER, Gate, deaf, eventually
from spawnfd import _loop, _port, _spawnfd, _trio
from test_job import until


def is_engine_at_rest() -> bool:
    """Whether its thread, if there is one, waits for what comes: all that has come is handed on."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name == "spawnfd-engine" and rest.split()[0] != "S":
                return False
    return True


def test_asyncio_cancels_by_its_own_means(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # As in a program that does not use it.
    monkeypatch.delitem(sys.modules, "anyio")
    ready, grace = tmp_path / "ready", 0.4

    async def inside(jobs: list[sf.Job]) -> None:
        async with sf.start(deaf(ready), grace=grace) as job:
            jobs.append(job)
            await job.result()

    async def cancel(task: asyncio.Task[Any]) -> None:
        while not ready.exists():
            await asyncio.sleep(0.01)
        ready.unlink()
        begun = time.monotonic()
        for _ in range(3):
            # Told again while it waits for the end, it goes on waiting.
            task.cancel()
            await asyncio.sleep(0.05)
            assert not task.done() or time.monotonic() - begun >= grace
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun >= grace

    async def main() -> None:
        jobs: list[sf.Job] = []
        await cancel(asyncio.create_task(inside(jobs)))
        result = await jobs[0].wait(0)
        assert result is not None
        assert (result.signal, result.text) == (9, "ready\n")

        await cancel(asyncio.create_task(sf.run_async(deaf(ready), grace=grace)))

    asyncio.run(main())


def test_cancelled_while_leaving(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    async def main() -> None:
        leaving = asyncio.Event()

        async def leave() -> None:
            line = f"trap '' TERM; echo ready; {gate.wait}"
            async with sf.start(sf.sh(line), grace=1000) as job:
                await until(job, "ready")
                leaving.set()

        task = asyncio.create_task(leave())
        await leaving.wait()
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_wait_for() -> None:
    async def main() -> None:
        job = await sf.start(["sleep", "60"])
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(job.wait(), 0.05)
        assert await job.wait(0) is None
        assert (await job.stop()).signal == 15

    asyncio.run(main())


def test_a_job_goes_from_loop_to_loop() -> None:
    async def begin() -> sf.Job:
        return await sf.start(["cat"], stdin="stream")

    job, written = asyncio.run(begin()), ""

    async def go_on() -> None:
        await job.write(b"x")
        nonlocal written
        written += "x"
        await until(job, written)
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
@pytest.mark.parametrize("how", ["result", "events", "write"])
def test_a_loop_closed_under_its_jobs(how: str) -> None:
    async def inside() -> None:
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
    # The coroutine goes, and with it the program.
    del task, loop
    gc.collect()
    assert complaints == ["Task was destroyed but it is pending!"]


def test_a_loop_closed_and_the_job_held() -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> sf.Job:
        return await sf.start(["sleep", "60"])

    job = loop.run_until_complete(begin())
    loop.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        job.wait().send(None)
    del job, loop
    gc.collect()


def test_never_awaited_starts_nothing() -> None:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        sf.start(["no-such-program"])


def test_loops_in_threads() -> None:
    failures: list[BaseException] = []

    def work(run: Go) -> None:
        async def main() -> None:
            for turn in range(20):
                async with sf.start(["echo", str(turn)]) as job:
                    assert [event.text async for event in job.events()] == [f"{turn}\n"]

        try:
            for _ in range(2):
                run(main)
        except BaseException as error:
            failures.append(error)

    runs = [LOOPS["asyncio"], LOOPS["trio"]] * 2
    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_one_wake_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = 0, _spawnfd.begin

    def counted_begin(*arguments: Any) -> Any:
        nonlocal begun
        begun += 1
        return begin(*arguments)

    monkeypatch.setattr(_spawnfd, "begin", counted_begin)

    def counting(port: Any) -> Any:
        count = [0]
        drain = port._drain

        def counted() -> None:
            count[0] += 1
            drain()

        port.loop.remove_reader(port.queue.fileno())
        port.loop.add_reader(port.queue.fileno(), counted)
        return count

    before = children()
    reader, writer = os.pipe()

    async def main() -> None:
        jobs = [await sf.start(["cat"], stdin=reader) for _ in range(20)]
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        runs = [asyncio.create_task(sf.run_async(["cat"], stdin=reader)) for _ in range(20)]
        port: Any = _loop.here()
        # They are not all started at once.
        while begun < len(runs):
            await asyncio.sleep(0.001)
        os.close(reader)
        count = counting(port)
        # The loop is busy while all of them end.
        os.close(writer)
        assert eventually(lambda: children() == before)
        assert eventually(is_engine_at_rest)
        results = await asyncio.gather(*waiting, *runs)
        assert all(result.ok for result in results)
        assert count[0] <= 2

    asyncio.run(main())


def test_a_handler_that_raises_while_results_are_handed_on() -> None:
    class Future:
        """What a signal handler raises in, once, before or after it knows."""

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

    queue = _spawnfd.Queue()
    futures = [Future(number % 2 == 0) for number in range(10)]
    pending = dict(enumerate(futures))
    for key in pending:
        _spawnfd.begin(queue, key, None, ["true"], {}, None, False)
    # Most of them come in one batch, if not all.
    while children():
        time.sleep(0.01)
    interrupted, deadline = 0, time.monotonic() + EVER
    while pending and time.monotonic() < deadline:
        queue.block(1)
        try:
            queue.drain(pending)
        except KeyboardInterrupt:
            interrupted += 1
    assert [len(future.results) for future in futures] == [1] * 10
    assert interrupted == 10


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_a_loop_listens_to_is_taken(
    loop: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who waits is told all the same, and the next one listens to another descriptor."""
    reader, writer = os.pipe()
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    monkeypatch.setattr(_loop, "UNSEEN", 0.2)

    async def main() -> None:
        port: Any = _loop.here()
        number = port.queue.fileno()
        job = await sf.start(["sleep", "1000"])
        before = children()
        ended = asyncio.create_task(sf.run_async(["cat"], stdin=reader))
        running = asyncio.create_task(sf.run_async(["sleep", "1000"]))
        waiting = asyncio.create_task(job.wait())
        while len(port.pending) < 3:
            await asyncio.sleep(0.001)
        os.close(reader)
        with theirs.open("r+b", buffering=0) as file:
            file.seek(3)
            os.dup2(file.fileno(), number, inheritable=False)
            # The loop is busy until one of them has come, and longer than it may be in the dark.
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
            del port, caught
            gc.collect()
            assert file.tell() == 3
        # It has been left to the application.
        os.close(number)

    LOOPS[loop](main)
    assert theirs.read_text() == "theirs"


def test_a_port_given_up_while_starts_wait() -> None:
    async def main() -> None:
        port: Any = _loop.here()
        port.gate.started = _port.STARTS_A_TURN
        run = asyncio.create_task(sf.run_async(["true"]))
        await asyncio.sleep(0)
        port._rest()
        assert not port.watched
        assert (await asyncio.wait_for(run, 20)).ok

    asyncio.run(main())


def test_trio_has_one_port_a_run() -> None:
    async def main() -> None:
        assert isinstance(_loop.here(), _trio._TrioPort)
        assert _loop.here() is _loop.here()

    trio.run(main)
    trio.run(main)


def test_trio_half_imported_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trio", "sniffio", "anyio"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    async def main() -> None:
        assert (await sf.run_async(["true"])).ok
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sf.run_async(["sleep", "60"]), 0.05)

    asyncio.run(main())


def test_trio_that_does_not_say_whether_it_is_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before 0.23.
    monkeypatch.delattr(trio.lowlevel, "in_trio_task")

    async def main() -> None:
        assert (await sf.run_async(["true"])).ok

    asyncio.run(main())
    trio.run(main)


def test_asyncio_within_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with monkeypatch.context() as patch:
            # As trio-asyncio does it.
            patch.setattr(sniffio.thread_local, "name", "asyncio")
            with pytest.raises(RuntimeError, match="no running event loop"):
                _loop.here()
        assert isinstance(_loop.here(), _trio._TrioPort)

    trio.run(main)


def test_trio_within_asyncio() -> None:
    async def inner() -> None:
        assert isinstance(_loop.here(), _trio._TrioPort)
        assert (await sf.run_async(["true"])).ok

    async def main() -> None:
        trio.run(inner)
        assert (await sf.run_async(["true"])).ok

    asyncio.run(main())


def test_trio_shields_the_end(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    async def main() -> None:
        begun = math.inf
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(sf.run_async, deaf(ready), grace=0.3))
            await comes(ready.exists)
            begun = trio.current_time()
            nursery.cancel_scope.cancel()
        assert nursery.cancel_scope.cancelled_caught
        assert trio.current_time() - begun >= 0.3

    trio.run(main)


@pytest.mark.parametrize("where", ["a generator", "a system task", "two tasks and a generator"])
def test_trio_cleans_up_after_the_main_task(where: str) -> None:
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


def test_trio_waits_again_after_the_main_task() -> None:
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

    # In which order trio ends its own tasks is left to chance.
    for _ in range(10):
        trio.run(main)
    assert ended == ["cancelled"] * 10


def test_trio_interrupted_again_does_not_wait_for_the_end(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    before = children()

    async def interrupt() -> None:
        while not ready.exists():
            await trio.sleep(0.01)
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            await trio.testing.wait_all_tasks_blocked()

    async def main() -> None:
        trio.lowlevel.spawn_system_task(interrupt)
        await sf.run_async(deaf(ready), grace=1000)

    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main)
        assert time.monotonic() - begun < 2 * EVER
    finally:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)


def test_trio_what_a_handler_raises_is_not_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(port: _trio._TrioPort, *_: int) -> None:
        monkeypatch.undo()
        await trio.lowlevel.wait_readable(port.queue.fileno())
        raise SystemExit("asked to end")

    async def main() -> None:
        monkeypatch.setattr(_trio._TrioPort, "_look", interrupted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sf.run_async, ["sleep", "1000"])
            nursery.start_soon(sf.run_async, ["true"])

    begun = time.monotonic()
    with pytest.raises(BaseException, match="Trio nursery") as caught:
        trio.run(main)
    assert time.monotonic() - begun < 2 * EVER
    raised: Any = caught.value
    assert [type(error) for error in raised.exceptions] == [SystemExit]
