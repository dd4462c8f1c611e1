# SPDX-License-Identifier: MIT OR Apache-2.0
"""run_async(): behaviour on event loops. test_options.py tests what it shares with run()."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import spawnfd as sf
import trio
from conftest import LOOPS, RunLoop, children, threads, wait_until
from patience import TIMEOUT_S, eventually, growing_timeouts, in_time
from spawnfd import _adapter, _loop, _spawnfd
from spawnfd._types import Args
from test_job_loops import step


async def test_concurrent_large_outputs() -> None:
    size = 3 << 20
    command = ["head", "-c", str(size), "/dev/zero"]
    runs = [sf.run_async(command, keep=(100, 100), marker=None) for _ in range(8)]
    for result in await asyncio.gather(*runs):
        assert result.ok
        assert result.stdout == bytes(200)
        assert result.omitted_bytes == size - 200
    large = os.urandom(2 << 20)
    echoes = [sf.run_async(["cat"], input=large, keep=(2 << 20, 0)) for _ in range(4)]
    assert all(result.stdout == large for result in await asyncio.gather(*echoes))


def test_endless_writer_does_not_starve_other_runs() -> None:
    async def main(timeout: float) -> bool:
        endless = asyncio.create_task(sf.run_async(["yes"], timeout=timeout))
        await asyncio.sleep(0.1)
        for _ in range(20):
            assert (await sf.run_async(["echo", "x"])).text == "x\n"
        ran_meanwhile = not endless.done()
        result = await endless
        assert result.stop == "timeout"
        return ran_meanwhile and result.omitted_bytes > 1 << 20

    assert any(asyncio.run(main(timeout)) for timeout in growing_timeouts(1.0))


def test_blocked_loop_does_not_block_programs(tmp_path: Path) -> None:
    async def main(timeout: float) -> None:
        before = children()
        ended, ready = tmp_path / "ended", tmp_path / "ready"
        ended.unlink(missing_ok=True)
        # The output is more than a pipe holds, so the engine's thread must read it.
        writer = asyncio.create_task(
            sf.run_async(sf.sh(f"head -c 300000 /dev/zero; echo > {ended}"), keep=(300_000, 0))
        )
        sleeper = asyncio.create_task(
            sf.run_async(sf.sh(f": > {ready}; exec sleep 1000"), timeout=timeout)
        )
        await asyncio.sleep(0)
        assert eventually(lambda: ended.exists() and children() == before)
        result = await writer
        assert (result.ok, len(result.stdout)) == (True, 300_000)
        assert (await sleeper).stop == "timeout"

    in_time(tmp_path / "ready", 0.1, lambda timeout: asyncio.run(main(timeout)))


async def test_loop_runs_other_tasks_between_many_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each iteration of the loop starts only a limited number of programs."""
    turn, starts = 0, dict[int, int]()
    begin = _spawnfd.begin

    def counted(*arguments: Any) -> Any:
        starts[turn] = starts.get(turn, 0) + 1
        return begin(*arguments)

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(_spawnfd, "begin", counted)
    counter = asyncio.create_task(count())
    results = await asyncio.gather(*(sf.run_async(["echo", str(i)]) for i in range(60)))
    assert [result.text for result in results] == [f"{i}\n" for i in range(60)]
    counter.cancel()
    assert sum(starts.values()) == 60
    assert max(starts.values()) <= 2 * _adapter.STARTS_PER_ITERATION


async def test_short_programs_start_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While too many programs have started recently, a new one waits until one of them ends."""
    most, begin = 0, _spawnfd.begin

    def counted(*arguments: Any) -> Any:
        nonlocal most
        most = max(most, len(cast(Any, _loop.current_adapter()).pending))
        return begin(*arguments)

    monkeypatch.setattr(_spawnfd, "begin", counted)
    monkeypatch.setattr(_adapter, "RECENT_SECONDS", 60.0)
    monkeypatch.setattr(_adapter, "MAX_RECENT", 5)
    results = await asyncio.gather(*(sf.run_async(["echo", str(i)]) for i in range(60)))
    assert [result.text for result in results] == [f"{i}\n" for i in range(60)]
    assert 2 <= most <= 5


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_programs_that_wait_for_each_other_all_start(loop: str, tmp_path: Path) -> None:
    """The last program is started even if all others run and wait for it."""
    many = 8 * _adapter.MAX_RECENT
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # This descriptor keeps written data in the FIFO while it has no reader.
    kept_open = os.open(fifo, os.O_RDWR)
    ended = 0

    async def one(last: bool) -> None:
        nonlocal ended
        line = f"yes go | head -n {many - 1} > fifo" if last else "read line < fifo"
        result = await sf.run_async(sf.sh(line), cwd=tmp_path, timeout=2 * TIMEOUT_S)
        assert result.ok
        ended += 1

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for i in range(many):
                group.start_soon(one, i == many - 1)

    LOOPS[loop](main)
    os.close(kept_open)
    assert ended == many


async def test_long_running_programs_do_not_delay_starts() -> None:
    """Programs that have run for a while do not count as recently started."""
    many = 2 * _adapter.MAX_RECENT
    long = [asyncio.create_task(sf.run_async(["sleep", "60"])) for _ in range(many)]
    adapter: Any = _loop.current_adapter()
    while len(adapter.pending) < many:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    for _ in range(3):
        assert (await sf.run_async(["true"])).ok
        await asyncio.sleep(0.01)
    # The next start does not wait.
    assert adapter.gate.try_enter(adapter)
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)


async def test_runs_cancelled_in_the_start_queue() -> None:
    tasks = [asyncio.create_task(sf.run_async(["echo", str(i)])) for i in range(30)]
    await asyncio.sleep(0)
    for task in tasks[10:20]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[10:20])
    texts = [result.text for result in results if isinstance(result, sf.Result)]
    assert texts == [f"{i}\n" for i in range(30) if not 10 <= i < 20]


def test_trio_task_cancelled_in_the_start_queue_frees_its_place() -> None:
    """The gate must not admit a cancelled task: trio does not tell the gate of the task's end."""

    async def main() -> None:
        many = 3 * _adapter.MAX_RECENT
        async with trio.open_nursery() as nursery:
            for _ in range(many):
                nursery.start_soon(partial(sf.run_async, ["sleep", "60"], grace=0))
            adapter: Any = _loop.current_adapter()
            while not adapter.gate.waiting:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        with trio.fail_after(20):
            assert (await sf.run_async(["true"])).ok
        assert not adapter.gate._admitted

    trio.run(main)


async def test_coroutine_closed_in_the_start_queue_frees_its_place() -> None:
    adapter: Any = _loop.current_adapter()
    adapter.gate.started = _adapter.STARTS_PER_ITERATION
    many = 2 * _adapter.MAX_RECENT
    runs = [sf.run_async(["sleep", "60"]) for _ in range(many)]
    for run in runs:
        cast(Any, run).send(None)
    assert len(adapter.gate.waiting) == many
    for run in runs:
        cast(Any, run).close()
    assert (await asyncio.wait_for(sf.run_async(["true"]), 20)).ok
    assert not adapter.gate._admitted


def test_timeouts_expire_independently() -> None:
    async def main(most: float) -> bool:
        times = [most, most / 5, most / 2]
        runs = [sf.run_async(["sleep", "1000"], timeout=timeout) for timeout in times]
        results = await asyncio.gather(sf.run_async(["true"]), *runs)
        assert [result.stop for result in results] == ["exited", "timeout", "timeout", "timeout"]
        walls = [result.wall for result in results[1:]]
        assert all(wall >= timeout for wall, timeout in zip(walls, times, strict=True))
        # A run with a shorter timeout ends first, although another run started before it.
        return walls[1] < walls[2] < walls[0]

    assert any(asyncio.run(main(most)) for most in growing_timeouts(0.5))


# This script creates a file once it runs, and prints a line on SIGTERM.
TRAPS = "trap 'echo trapped; exit 3' TERM; echo out; touch {}; while :; do sleep 0.05; done"


async def run_and_catch(argv: Args, caught: list[BaseException]) -> None:
    """Appends the exception that the run raises, and raises it again."""
    try:
        await sf.run_async(argv, grace=60)
    except BaseException as error:
        caught.append(error)
        raise


def result_of(error: BaseException) -> sf.Result:
    assert isinstance(error, (asyncio.CancelledError, trio.Cancelled))
    result = cast(Any, error).result
    assert isinstance(result, sf.Result)
    return result


async def test_cancellation_carries_the_result(run_loop: RunLoop, tmp_path: Path) -> None:
    ready, caught = tmp_path / "ready", list[BaseException]()

    async with anyio.create_task_group() as group:
        group.start_soon(run_and_catch, sf.sh(TRAPS.format(ready)), caught)
        await wait_until(ready.exists)
        group.cancel_scope.cancel()
    assert group.cancel_scope.cancelled_caught
    [error] = caught
    result = result_of(error)
    assert (result.stop, result.code, result.text) == ("cancelled", 3, "out\ntrapped\n")


async def test_last_of_several_cancellations_carries_the_result(tmp_path: Path) -> None:
    ready, caught = tmp_path / "ready", list[BaseException]()

    task = asyncio.create_task(run_and_catch(sf.sh(TRAPS.format(ready)), caught))
    await wait_until(ready.exists)
    for text in ("first", "second"):
        task.cancel(text)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError, match="second"):
        await task
    [error] = caught
    assert result_of(error).text == "out\ntrapped\n"


@pytest.mark.parametrize("first", ["the result", "the cancellation"])
async def test_cancelled_when_the_result_arrives(first: str) -> None:
    caught: list[BaseException] = []
    # The guard starts with the first run.
    await sf.run_async(["true"])
    before = children()
    # The program must not end before the task waits for it.
    task = asyncio.create_task(run_and_catch(sf.sh("sleep 0.2; echo out"), caught))
    adapter: Any = _loop.current_adapter()
    while not adapter.pending:
        await asyncio.sleep(0)
    # A thread of the library takes the place of the blocked loop until the program has ended. Then
    # the loop has not read the result, and the task does not run between the two calls below.
    assert eventually(lambda: children() == before)
    assert select.select([adapter.queue.fileno()], [], [], 20)[0]
    both: list[Any] = [adapter.drain, task.cancel]
    for one in both if first == "the result" else reversed(both):
        one()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not adapter.pending
    [error] = caught
    assert (result_of(error).ok, result_of(error).text) == (True, "out\n")


async def test_closed_coroutine_leaves_no_pending_result() -> None:
    coroutine = sf.run_async(["sleep", "60"])
    coroutine.send(None)
    adapter: Any = _loop.current_adapter()
    assert len(adapter.pending) == 1
    coroutine.close()
    assert not adapter.pending


async def test_cancelling_at_every_moment() -> None:
    for turn in range(40):
        task = asyncio.create_task(sf.run_async(["true"]))
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        await asyncio.sleep(turn / 20_000)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.result().ok


async def test_exception_right_after_the_start_kills_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler may raise after the native call returned and before its result is stored."""
    begin, before = _spawnfd.begin, children()

    def interrupted(*arguments: Any) -> None:
        begin(*arguments)
        raise InterruptedError

    monkeypatch.setattr(_spawnfd, "begin", interrupted)
    with pytest.raises(InterruptedError):
        await sf.run_async(["sleep", "60"])
    assert eventually(lambda: children() == before)


async def test_wait_for_timeout_kills_the_program() -> None:
    with pytest.raises(asyncio.TimeoutError) as caught:
        await asyncio.wait_for(sf.run_async(["sleep", "60"]), 0.1)
    # Before 3.11, an awaited task raises a new exception.
    if sys.version_info >= (3, 11):
        assert caught.value.__context__ is not None
        assert result_of(caught.value.__context__).stop == "cancelled"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout() is new in Python 3.11")
async def test_asyncio_timeout_kills_the_program() -> None:
    with pytest.raises(asyncio.TimeoutError) as caught:
        async with asyncio.timeout(0.1):  # pyright: ignore
            await sf.run_async(["sleep", "60"])
    # In 3.11.2 __cause__ is None.
    assert caught.value.__context__ is not None
    assert result_of(caught.value.__context__).stop == "cancelled"


def test_run_async_without_await_starts_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    sf.run_async(["touch", str(marker)]).close()
    assert not marker.exists()


def test_closed_loops_leave_no_descriptor() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(sf.run_async(["true"]))
        # The loop keeps watching one descriptor of the library, for its next runs.
        assert len(loop._selector.get_map()) == 2  # type: ignore[attr-defined]
        loop.close()
        loops.append(loop)


def test_program_that_ends_after_its_loop_is_reaped() -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: None)
    before = children()
    reader, writer = os.pipe()
    task = step(loop, sf.run_async(["cat"], stdin=reader))
    os.close(reader)
    loop.close()
    os.close(writer)
    assert eventually(lambda: children() == before)
    assert not task.done()
    del task, loop
    gc.collect()


def test_loops_of_two_threads_interleave() -> None:
    """One loop runs while a run of another thread's loop is pending."""

    async def outer() -> None:
        task = asyncio.ensure_future(sf.run_async(["sleep", "0.1"]))
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: asyncio.run(inner()))
        thread.start()
        assert (await task).ok
        assert (await sf.run_async(["true"])).ok
        thread.join()

    async def inner() -> None:
        assert (await sf.run_async(["echo", "x"])).ok

    asyncio.run(outer())


async def test_run_after_the_engine_thread_ended() -> None:
    for _ in range(2):
        assert (await sf.run_async(["true"])).ok
        # The idle engine thread ends within this time.
        await asyncio.sleep(0.7)
    assert eventually(lambda: "spawnfd-engine" not in threads())


def test_sync_and_async_share_docstrings() -> None:
    assert sf.run_async.__doc__ == sf.run.__doc__
    assert sf.Template.run_async.__doc__ == sf.Template.run.__doc__
    assert sf.Child.wait_async.__doc__ == sf.Child.wait.__doc__
