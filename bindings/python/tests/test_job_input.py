# SPDX-License-Identifier: MIT OR Apache-2.0
"""Input of jobs: streams and terminals."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop
from patience import Gate
from session_support import Start
from test_job import two_loops, wait_for_output


@two_loops
async def test_write_blocks_while_the_pipe_is_full(run_loop: RunLoop, tmp_path: Path) -> None:
    large = bytes(range(256)) * 8000
    gate = Gate(tmp_path)
    command = sf.sh(f"{gate.wait}; cat | wc -c")
    async with sf.start(command, stdin="stream") as job:
        written = False

        async def write() -> None:
            nonlocal written
            await job.write(memoryview(large))
            written = True

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            await anyio.sleep(0.2)
            assert not written
            gate.open()
        assert written
        job.close_stdin()
        assert (await job.result()).text == f"{len(large)}\n"
    async with sf.start(["sleep", "60"], stdin="stream") as job:
        with anyio.move_on_after(0.1) as scope:
            await job.write(large)
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            group.start_soon(job.stop)
            # The write blocks until stop() closes the pipe.
            with pytest.raises(BrokenPipeError):
                await job.write(large)


@two_loops
async def test_write_without_a_stream_is_an_error(start: Start) -> None:
    async with start(["sleep", "60"]) as job:
        with pytest.raises(ValueError, match="stdin="):
            await job.write(b"x")
        with pytest.raises(ValueError, match="terminal"):
            job.resize(1, 1)
        with pytest.raises(ValueError, match="signal: 99"):
            job.signal(99)


@two_loops
async def test_concurrent_writes_are_refused(run_loop: RunLoop) -> None:
    async with (
        sf.start(["sleep", "60"], stdin="stream") as job,
        anyio.create_task_group() as group,
    ):

        async def write() -> None:
            with pytest.raises(BrokenPipeError):
                await job.write(bytes(1 << 20))

        group.start_soon(write)
        await anyio.sleep(0.1)
        with pytest.raises(RuntimeError, match=r"another write\(\) of this job"):
            await job.write(b"x")
        await job.stop()


@two_loops
async def test_terminal_input_and_size(start: Start) -> None:
    line = "stty -echo; stty size; read line; stty size; echo got $line; cat"
    async with start(sf.sh(line), terminal=(33, 77)) as job:
        first = await wait_for_output(job, "33 77\r\n")
        with pytest.raises(ValueError, match="columns must be >= 0, got -1"):
            job.resize(5, -1)
        with pytest.raises(ValueError, match="data: 'utf-8' codec can't encode"):
            await job.write("\ud800")
        job.resize(5, 6)
        await job.write("hello\n")
        assert (await wait_for_output(job, "got hello\r\n", first.next)).text.startswith("5 6\r\n")
        job.close_stdin()
        result = await job.result()
        assert result.ok
        assert result.stderr == b""
