# SPDX-License-Identifier: MIT OR Apache-2.0
"""Output while a job runs: reading in the event loop, patterns, silence, and byte streams."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
from typing import Any

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop, wait_until
from patience import TIMEOUT_S
from session_support import Start


def read_pipes() -> set[str]:
    """Returns the pipes that this process has open for reading without blocking."""
    pipes: set[str] = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith("pipe:") and not os.get_blocking(int(number)):
                pipes.add(name)
        except OSError:
            continue
    return pipes


async def test_lines_echo_through_write_and_events(run_loop: RunLoop) -> None:
    async with sf.start(["cat"], stdin="stream") as job:
        events = job.events(lines=True)
        for number in range(500):
            await job.write(f"line {number}\n")
            assert (await anext(events)).text == f"line {number}\n"
        job.close_stdin()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert (await job.result()).text.endswith("line 499\n")


@pytest.mark.parametrize("size", [1, 4095, 65_536, 1_000_000])
async def test_output_of_any_size_arrives_whole(run_loop: RunLoop, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    async with sf.start(["cat"], stdin="stream", keep=(2 << 20, 0)) as job:
        received = b""

        async def write() -> None:
            await job.write(data)
            job.close_stdin()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            async for event in job.events():
                received += event.bytes
        assert received == data
        assert (await job.result()).stdout == data


async def test_a_slow_consumer_blocks_the_program(run_loop: RunLoop) -> None:
    async with sf.start(["yes"], window=70_000) as job:
        events = job.events()
        await anext(events)
        seen = -1
        while seen != job.read(0).next:
            seen = job.read(0).next
            await anyio.sleep(0.1)
        # The iterator, the queue and the pipe hold at most this much.
        assert seen <= 70_000 + 3 * 65_536 + 262_144
        async for event in events:
            assert not event.lost
            if job.read(0).next > 4 * seen:
                break


async def test_the_engine_reads_again_after_the_iterator_is_dropped(run_loop: RunLoop) -> None:
    async with sf.start(sf.sh("echo one; read line; seq 1 50000"), stdin="stream") as job:
        async for event in job.events():
            assert event.text == "one\n"
            break
        await job.write("\n")
        result = await job.result()
        assert (result.ok, result.seen_bytes) == (True, 4 + 288_894)


async def test_an_iterator_dropped_in_another_thread_leaves_the_loop_intact() -> None:
    loop = asyncio.get_running_loop()
    async with sf.start(["cat"], stdin="stream") as job:
        held = [job.events()]
        await job.write("one\n")
        assert (await anext(held[0])).text == "one\n"
        await asyncio.to_thread(held.clear)
        await job.write("two\n")
        await wait_until(lambda: job.read(0).text == "one\ntwo\n")
        async for event in job.events():
            assert event.text == "two\n"
            break
    # The numbers of the closed descriptors can be watched again.
    read, write = os.pipe()
    readable = asyncio.Event()
    loop.add_reader(read, readable.set)
    os.write(write, b"x")
    await asyncio.wait_for(readable.wait(), TIMEOUT_S)
    loop.remove_reader(read)
    os.close(read)
    os.close(write)


def test_two_loops_can_read_one_job_by_turns() -> None:
    async def start() -> sf.Job:
        return await sf.start(["cat"], stdin="stream", hold=True)

    job = asyncio.run(start())
    events = job.events(lines=True)

    async def one(number: int) -> None:
        await job.write(f"{number}\n")
        assert (await anext(events)).text == f"{number}\n"

    for number in range(4):
        asyncio.run(one(number))
    asyncio.run(job.stop(0))  # type: ignore[arg-type]


async def test_two_iterators_of_one_job_both_continue(run_loop: RunLoop) -> None:
    async with sf.start(["cat"], stdin="stream") as job:
        first, second = job.events(lines=True), job.events(lines=True)
        await job.write("1\n")
        assert (await anext(first)).text == "1\n"
        found: list[str] = []

        async def take() -> None:
            found.append((await anext(second)).text)

        for number in range(2, 5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                await anyio.sleep(0.02)
                await job.write(f"{number}\n")
        del first
        gc.collect()
        for number in range(5, 8):
            await job.write(f"{number}\n")
            await take()
        assert found == [f"{number}\n" for number in range(2, 8)]


def test_a_stopped_loop_does_not_block_the_program() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def begin() -> tuple[sf.Job, Any]:
        job = await sf.start(sf.sh("echo one; read x; seq 1 100000"), stdin="stream")
        events = job.events(lines=True)
        assert (await anext(events)).text == "one\n"
        return job, events

    async def end(job: sf.Job) -> None:
        await job.write("\n")
        result = await job.wait(TIMEOUT_S)
        assert result is not None
        assert result.ok

    job, events = first.run_until_complete(begin())
    del events
    second.run_until_complete(end(job))
    first.close()
    second.close()


def test_pipes_are_closed_after_the_end_of_an_unfinished_iteration() -> None:
    before = read_pipes()

    async def main() -> None:
        async with sf.start(["yes"]) as job:
            async for event in job.events():
                assert event.bytes
                break
            held = job.events()
            await anext(held)
        await wait_until(lambda: job.read(0).next > 0)
        del held

    asyncio.run(main())
    gc.collect()
    assert read_pipes() <= before


async def test_long_lines_are_marked_partial(start: Start) -> None:
    line = sf.sh("head -c 70000 /dev/zero | tr '\\0' x; echo; echo short; printf open")
    async with start(line) as job:
        found = [(len(event.bytes), event.partial) async for event in job.events(lines=True)]
    assert found == [(65_536, True), (4_465, False), (6, False), (4, False)]
    async with start(line) as job:
        events = job.events(lines=True, max_line=100_000)
        found = [(len(event.bytes), event.partial) async for event in events]
    assert found == [(70_001, False), (6, False), (4, False)]


async def test_wait_for_returns_the_match_and_its_end(start: Start) -> None:
    script = "echo starting; echo 'port 8080' >&2; read line; echo $line; exec sleep 1000"
    async with start(sf.sh(script), stdin="stream") as job:
        started = await job.wait_for("starting", TIMEOUT_S)
        assert started == sf.OutputMatch("starting", None, 8)
        port = await job.wait_for(re.compile(r"port (\d+)"), TIMEOUT_S)
        assert port
        assert port.match is not None
        assert (port.text, port.match[1]) == ("port 8080", "8080")
        assert await job.wait_for("starting", 0.05) is None
        assert await job.wait_for("starting", 0, since=0) == started
        await job.write("größer\n")
        assert await job.wait_for(re.compile(rb"gr.+r"), TIMEOUT_S)
        assert await job.wait_for("absent", 0.05) is None
        assert await job.wait(0) is None


async def test_wait_for_finds_a_pattern_that_arrives_in_pieces(start: Start) -> None:
    pieces = "for i in r e a d y; do printf $i; sleep 0.02; done; exec sleep 1000"
    for pattern in ["ready", b"ready", re.compile("r.+y"), re.compile(b"r.+y")]:
        async with start(sf.sh(pieces)) as job:
            found = await job.wait_for(pattern, TIMEOUT_S)
            assert found
            assert (found.text, found.next) == ("ready", 5)


async def test_wait_for_counts_bytes_before_invalid_text(start: Start) -> None:
    async with start(sf.sh(r"printf '\377ä\376x'")) as job:
        found = await job.wait_for(re.compile("ä.x"), TIMEOUT_S)
        assert found
        assert (found.text, found.next) == ("ä\N{REPLACEMENT CHARACTER}x", 5)


async def test_wait_for_tells_which_pattern_matched_first(start: Start) -> None:
    script = "echo ready 7; read x; echo failed; exec sleep 1000"
    patterns = ["failed", re.compile(r"ready (\d)"), b"rea"]
    async with start(sf.sh(script), stdin="stream") as job:
        found = await job.wait_for(patterns, TIMEOUT_S)
        assert found
        assert found.match
        assert (found.which, found.text, found.match[1]) == (1, "ready 7", "7")
        assert await job.wait_for(patterns, 0.05) is None
        await job.write("\n")
        found = await job.wait_for(tuple(patterns), TIMEOUT_S)
        assert found
        assert (found.which, found.text, found.match) == (0, "failed", None)


async def test_wait_for_ends_with_the_output(start: Start) -> None:
    async with start(sf.sh("echo one")) as job:
        assert await job.wait_for("two") is False
        assert await job.wait_for("one")
        assert await job.wait_for(["two", "three"], 0) is False


async def test_wait_for_raises_the_error_of_a_failed_start(start: Start) -> None:
    missing = [sf.actions.Open("/nonexistent", 3)]
    job = await start(["true"], actions=missing)
    with pytest.raises(FileNotFoundError, match="/nonexistent"):
        await job.wait_for("x")


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        (3, TypeError, "pattern: expected str, bytes or re.Pattern, not int"),
        ("", ValueError, "pattern must not be empty"),
        ([], ValueError, "pattern: expected at least one pattern"),
        (["x", 3], TypeError, "pattern: expected str, bytes or re.Pattern, not int"),
    ],
)
def test_wait_for_refuses_a_bad_pattern(pattern: Any, error: type[Exception], message: str) -> None:
    with sf.start_sync(["sleep", "1000"], grace=0) as job, pytest.raises(error, match=message):
        job.wait_for(pattern)


async def test_wait_returns_after_silence(start: Start) -> None:
    async with start(sf.sh("echo one; exec sleep 1000"), grace=0) as job:
        assert await job.wait_for("one", TIMEOUT_S)
        assert await job.wait(idle_timeout=0.1) is None
        assert await job.wait(TIMEOUT_S, idle_timeout=0.1) is None
        assert await job.wait(0.1, idle_timeout=TIMEOUT_S) is None
        with pytest.raises(ValueError, match="idle_timeout must be >= 0, got -1"):
            await job.wait(idle_timeout=-1)


async def test_idle_timeout_ends_a_silent_program(run_loop: RunLoop) -> None:
    result = await sf.run_async(sf.sh("echo begun; exec sleep 1000"), idle_timeout=0.2)
    assert (result.stop, result.signal, result.text) == ("idle_timeout", 15, "begun\n")
    with pytest.raises(sf.ExitError, match=r"wrote no output for 0\.2 s and was killed by SIGTERM"):
        result.check()


def test_output_postpones_the_idle_timeout() -> None:
    # Each pause is far shorter than the timeout, and all pauses together are longer.
    result = sf.run(sf.sh("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done"), idle_timeout=1)
    assert result.ok
    assert result.wall >= 1.6


async def test_asyncio_streams_carry_a_conversation() -> None:
    script = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    python = ["/usr/bin/python3", "-c", script]
    async with sf.start(python, stdin="stream", stderr="inherit") as job:
        reader, writer = job.asyncio_streams()
        assert writer.get_extra_info("pid") == job.pid
        for number in range(100):
            writer.write(f"line {number}\n".encode())
            await writer.drain()
            assert await reader.readline() == f"LINE {number}\n".encode()
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert (await job.result()).ok


async def test_asyncio_streams_wait_for_a_slow_program() -> None:
    data = os.urandom(1 << 20)
    async with sf.start(["cat"], stdin="stream") as job:
        reader, writer = job.asyncio_streams()

        async def write() -> None:
            for begin in range(0, len(data), 100_000):
                writer.write(data[begin : begin + 100_000])
                await writer.drain()
            writer.close()

        writing = asyncio.create_task(write())
        assert await reader.readexactly(len(data)) == data
        await writing


async def test_asyncio_writer_reports_a_program_that_has_ended() -> None:
    async with sf.start(["true"], stdin="stream") as job:
        reader, writer = job.asyncio_streams()
        assert await reader.read() == b""
        await job.result()

        async def write() -> None:
            while True:
                writer.write(b"x")
                await writer.drain()

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            await asyncio.wait_for(write(), TIMEOUT_S)


async def test_anyio_stream_carries_a_conversation(run_loop: RunLoop) -> None:
    async with sf.start(["cat"], stdin="stream") as job, job.anyio_stream() as stream:
        await stream.send(b"one")
        assert await stream.receive(2) == b"on"
        assert await stream.receive() == b"e"
        await stream.send_eof()
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        await stream.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await stream.receive()
        with pytest.raises(anyio.ClosedResourceError):
            await stream.send(b"x")


def test_descriptors_kept_for_reuse_are_closed_after_a_burst() -> None:
    def sockets() -> int:
        count = 0
        for number in os.listdir("/proc/self/fd"):
            # The engine's thread closes descriptors meanwhile.
            with contextlib.suppress(FileNotFoundError):
                count += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        return count

    async def burst() -> None:
        await asyncio.gather(*(sf.run_async(["true"]) for _ in range(60)))
        jobs = [await sf.start(["sleep", "0.05"], tree="group") for _ in range(30)]
        await asyncio.gather(*(job.result() for job in jobs))
        await wait_until(lambda: sockets() <= before + 4)

    before = sockets()
    asyncio.run(burst())
