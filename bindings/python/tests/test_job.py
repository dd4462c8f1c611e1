# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs in both forms, on every event loop."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop, is_alive, wait_until
from patience import Gate, ignores_sigterm
from session_support import Start

# A test of behaviour that does not depend on the loop uses one loop of each kind.
two_loops = pytest.mark.parametrize("run_loop", ["asyncio", "trio"], indirect=True)

IGNORES_SIGTERM = sf.sh("trap '' TERM; echo ready; while :; do sleep 0.01; done")


async def wait_for_end(pid: int) -> None:
    """Waits for a killed descendant. The job waits for its program only."""
    await wait_until(lambda: not is_alive(pid))


async def wait_for_output(job: Any, text: str, since: int = 0) -> sf.Chunk:
    """Waits until a job has printed the text."""
    await wait_until(lambda: text in job.read(since).text)
    return job.read(since)


async def test_streaming(start: Start) -> None:
    line = sf.sh("for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.05; done; printf x")
    found: dict[str | None, list[str]] = {"stdout": [], "stderr": []}
    async with start(line, timeout=600) as job:
        async for event in job.events(lines=True):
            found[event.stream].append(event.text)
            assert (event.bytes, event.lost) == (event.text.encode(), 0)
        result = await job.result()
    assert found["stdout"] == ["out 1\n", "out 2\n", "out 3\n", "x"]
    assert found["stderr"] == ["err 1\n", "err 2\n", "err 3\n"]
    assert result.ok
    assert await job.result() is result
    assert result.text == "".join(found["stdout"])


async def test_background_job_reads_and_writes(start: Start) -> None:
    job = await start(sf.sh("echo one; read line; echo two $line; cat"), stdin="stream")
    first = await wait_for_output(job, "one\n")
    assert (first.text, first.bytes, first.next, first.lost) == ("one\n", b"one\n", 4, 0)
    assert await job.wait(0.05) is None
    assert await job.wait(0) is None
    await job.write(b"more\n")
    await job.write("täxt")
    assert (await wait_for_output(job, "täxt", first.next)).text == "two more\ntäxt"
    job.close_stdin()
    with pytest.raises(BrokenPipeError):
        await job.write(b"x")
    result = await job.wait(20)
    assert result is not None
    assert (result.code, result.text) == (0, "one\ntwo more\ntäxt")
    assert job.read(first.next).text == "two more\ntäxt"
    assert "ended" in repr(job)


async def test_stop_waits_for_the_grace_period(start: Start) -> None:
    polite = await start(sf.sh("trap 'echo bye; exit 7' TERM; echo ready; sleep 60 & wait"))
    await wait_for_output(polite, "ready")
    result = await polite.stop(grace=20)
    assert (result.stop, result.code, result.text) == ("cancelled", 7, "ready\nbye\n")
    assert await polite.stop() is result

    ignoring = await start(IGNORES_SIGTERM)
    await wait_for_output(ignoring, "ready")
    begun = time.monotonic()
    assert (await ignoring.stop(grace=0.2)).signal == 9
    assert time.monotonic() - begun >= 0.2

    stopped = await start(sf.sh("echo ready; kill -STOP $$"))
    await wait_for_output(stopped, "ready")
    assert (await stopped.stop(grace=20)).signal == 15


def held(start: Start) -> dict[str, bool]:
    """The options with which a program waits for a reader of its events.

    The task that starts a job counts as a reader. Of a thread nobody knows whether it will read.
    """
    return {} if start is sf.start else {"hold": True}


@two_loops
async def test_a_slow_consumer_slows_the_program(start: Start) -> None:
    size = 3_000_000
    async with start(["head", "-c", str(size), "/dev/zero"], window=1, **held(start)) as job:
        seen, events = 0, job.events()
        assert await job.wait(0.3) is None
        async for event in events:
            seen += len(event.bytes)
            assert event.lost == 0
        assert seen == size
        assert (await job.result()).ok


@two_loops
async def test_unread_output_drops_the_oldest(start: Start) -> None:
    size = 3_000_000
    job = await start(sf.sh(f"head -c {size} /dev/zero; echo end"), window=100_000)
    assert (await job.result()).ok
    events = [event async for event in job.events()]
    assert events[0].stream is None
    assert events[0].lost > 2_500_000
    assert sum(event.lost + len(event.bytes) for event in events) == size + 4
    assert events[-1].text.endswith("end\n")
    assert "lost=" in repr(events[0])
    chunk = job.read(5)
    assert chunk.lost == size + 4 - 100_000 - 5
    assert (len(chunk.bytes), chunk.next) == (100_000, size + 4)


@two_loops
async def test_hold_blocks_the_program_until_events_are_read(start: Start) -> None:
    size = 3_000_000
    async with start(["head", "-c", str(size), "/dev/zero"], window=1, hold=True) as job:
        await anyio.sleep(0.2)
        assert sum([len(event.bytes) async for event in job.events()]) == size


@two_loops
async def test_break_lets_the_program_go_on(start: Start) -> None:
    line = sf.sh("echo ready; head -c 3000000 /dev/zero; echo; echo end")
    async with start(line, window=1, **held(start)) as job:
        async for event in job.events(lines=True):
            assert event.text == "ready\n"
            break
        assert (await job.result()).ok
        rest = [event async for event in job.events(lines=True)]
        assert rest[-1].text == "end\n"
        assert any(event.lost for event in rest)


@two_loops
async def test_characters_split_across_chunks_are_decoded(start: Start) -> None:
    line = sf.sh(r"printf 'a\360\237'; read x; printf '\246\200b'; read x; printf '\303'")
    texts: list[str] = []
    async with start(line, stdin="stream") as job:
        async for event in job.events():
            texts.append(event.text)
            if len(texts) <= 2:
                await job.write("\n")
    assert "".join(texts) == "a🦀b\ufffd"
    assert len(texts) == 4


@two_loops
async def test_long_lines_are_split(start: Start) -> None:
    async with start(["printf", "abcdefgh\r\ni\n"]) as job:
        texts = [event.text async for event in job.events(lines=True, max_line=5)]
    assert texts == ["abcde", "fgh\r\n", "i\n"]


@two_loops
async def test_events_let_other_tasks_run(run_loop: RunLoop) -> None:
    seen = 0
    async with sf.start(["yes"]) as job, anyio.create_task_group() as group:

        async def other() -> None:
            await wait_until(lambda: seen > 100)
            group.cancel_scope.cancel()

        group.start_soon(other)
        async for event in job.events(lines=True):
            assert event.text == "y\n"
            seen += 1
            assert seen < 100_000_000
    assert seen > 100


@two_loops
async def test_signals(start: Start) -> None:
    line = "trap 'echo got' USR1; echo ready; while :; do sleep 0.02; done"
    job = await start(sf.sh(line))
    await wait_for_output(job, "ready")
    job.signal(10)
    await wait_for_output(job, "got")
    job.signal(15, tree=True)
    result = await job.result()
    assert (result.stop, result.signal) == ("exited", 15)
    job.signal(15)
    line = "trap 'echo got; exit 3' INT; echo ready; while :; do sleep 0.02; done"
    job = await start(sf.sh(line))
    await wait_for_output(job, "ready")
    job.interrupt()
    result = await job.result()
    assert (result.stop, result.code, result.text) == ("exited", 3, "ready\ngot\n")


async def test_leaving_the_block_kills_the_tree(start: Start) -> None:
    async with start(sf.sh("sleep 60 & echo $!; wait")) as job:
        child = int((await wait_for_output(job, "\n")).text)
    await wait_for_end(child)
    result = await job.result()
    assert (result.stop, result.signal, result.text) == ("cancelled", 15, f"{child}\n")

    with suppress(ZeroDivisionError):
        async with start(IGNORES_SIGTERM, grace=0.1) as job:
            await wait_for_output(job, "ready")
            raise ZeroDivisionError
    assert (await job.result()).signal == 9

    job = await start(["sleep", "60"])
    async with job:
        pass
    await wait_for_end(job.pid)


async def test_closing_a_generator_stops_its_job(run_loop: RunLoop) -> None:
    async def lines(waits: bool) -> AsyncGenerator[sf.Job]:
        async with sf.start(IGNORES_SIGTERM, grace=0.1) as job:
            try:
                async for _ in job.events():
                    yield job
            finally:
                if waits:
                    await job.stop()

    for waits in (True, False):
        generator = lines(waits)
        job = await anext(generator)
        await generator.aclose()
        result = await job.wait(0 if waits else 20)
        assert result is not None
        assert result.stop == "cancelled"


async def test_cancelling_kills_the_tree_and_keeps_the_output(run_loop: RunLoop) -> None:
    jobs: list[sf.Job] = []
    with anyio.CancelScope() as scope:
        async with sf.start(IGNORES_SIGTERM, grace=0.3) as job:
            jobs.append(job)
            async for _ in job.events():
                scope.cancel()
    assert scope.cancelled_caught
    (job,) = jobs
    result = await job.wait(0)
    assert result is not None
    assert (result.stop, result.signal, result.text) == ("cancelled", 9, "ready\n")


@two_loops
async def test_cancelled_wait_leaves_the_program_running(run_loop: RunLoop) -> None:
    job = await sf.start(sf.sh("read line; echo x"), stdin="stream")
    with anyio.move_on_after(0.1) as scope:
        await job.wait()
    assert scope.cancelled_caught
    await job.write("\n")
    assert (await job.result()).text == "x\n"


async def test_cancelling_at_every_moment(run_loop: RunLoop) -> None:
    async def once(turn: int) -> None:
        with anyio.move_on_after(turn / 10_000):
            async with sf.start(["cat"], stdin="stream", grace=1) as job:
                await job.write(b"x\n")
                async for event in job.events(lines=True):
                    assert event.text == "x\n"
                    break
                job.close_stdin()
                assert (await job.result()).ok
                if turn % 2:
                    await job.stop()

    for turn in range(60):
        await once(turn)


async def test_cancelling_run_async_kills_the_program(run_loop: RunLoop, tmp_path: Path) -> None:
    assert (await sf.run_async(["cat"], input=b"x")).stdout == b"x"
    with pytest.raises(FileNotFoundError):
        await sf.run_async(["no-such-program"])
    pids, ready, begun = tmp_path / "pids", tmp_path / "ready", math.inf
    async with anyio.create_task_group() as group:
        line = sf.sh(f"sleep 600 & echo $! $$ > {pids}; {ignores_sigterm(ready)[-1]}")
        group.start_soon(partial(sf.run_async, line, grace=0.3))
        await wait_until(ready.exists)
        begun = time.monotonic()
        group.cancel_scope.cancel()
    assert group.cancel_scope.cancelled_caught
    assert time.monotonic() - begun >= 0.3
    for ended in pids.read_text().split():
        await wait_for_end(int(ended))


async def test_many_at_once(run_loop: RunLoop) -> None:
    async def one(number: int) -> None:
        async with sf.start(["echo", str(number)]) as job:
            assert [event.text async for event in job.events()] == [f"{number}\n"]
        assert (await sf.run_async(["echo", str(number)])).text == f"{number}\n"

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one, number)


@two_loops
async def test_several_tasks_wait_for_one_job(run_loop: RunLoop) -> None:
    job = await sf.start(["sleep", "0.2"])
    results: list[sf.Result] = []

    async def wait() -> None:
        results.append(await job.result())

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(wait)
    assert results == [await job.result()] * 5


@two_loops
async def test_detached_job_runs_on(start: Start, tmp_path: Path) -> None:
    marker, gate = tmp_path / "marker", Gate(tmp_path)
    async with start(sf.sh(f"{gate.wait}; echo > {marker}")) as job:
        job.detach()
    assert await job.wait(0) is None
    del job
    gc.collect()
    gate.open()
    await wait_until(marker.exists)


@two_loops
async def test_dropping_a_job_kills_its_program(start: Start) -> None:
    job = await start(["sleep", "60"])
    pid = job.pid
    del job
    await anyio.sleep(0)
    gc.collect()
    await wait_for_end(pid)


@two_loops
async def test_start_errors(start: Start) -> None:
    with pytest.raises(FileNotFoundError):
        await start(["no-such-program"])
    with pytest.raises(TypeError, match="argv"):
        async with start("ls"):
            pass
    actions = [sf.actions.Umask(0), sf.actions.Chdir("/no")]
    job = await start(["true"], actions=actions)
    with pytest.raises(sf.SpawnError) as caught:
        await job.result()
    assert caught.value.action == 1
    assert "failed" in repr(job)
    assert [event async for event in job.events()] == []
    with pytest.raises(FileNotFoundError):
        async with start(["true"], actions=actions) as job:
            assert [event async for event in job.events()] == []
    with pytest.raises(ZeroDivisionError):
        async with start(["true"], actions=actions):
            raise ZeroDivisionError


@two_loops
async def test_templates(run_loop: RunLoop) -> None:
    async with sf.Template("/bin/echo").start(["x"]) as job:
        assert (await job.result()).text == "x\n"
    job = await sf.TemplateCache(2).start(["echo", "y"])
    assert (await job.result()).text == "y\n"
