# SPDX-License-Identifier: MIT OR Apache-2.0
"""Output and input of a running program, by asyncio's streams and by a spawnfd job.

A call starts the program, moves the data, checks every byte of it, and waits for the program's end.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from subprocess import DEVNULL, PIPE
from typing import Any

from .errors import BenchError
from .methods import Answer, AsyncCall, import_spawnfd

LINE = 80
ROUND_TRIPS = 2_000
BULK = 100 << 20
CHUNK = 64 << 10
LINES = 100_000

Stream = Callable[[], Awaitable[None]]


def _wrong(what: str) -> BenchError:
    return BenchError(f"stream {what}: the program's output arrived changed or incomplete")


class Data:
    """The files that the programs copy, and their contents."""

    def __init__(self, kind: str) -> None:
        # The bulk file repeats this block, whose period is no power of two. Comparing a chunk with
        # a slice of two blocks takes little time.
        block = bytes(range(251)) * 4000
        self.blocks = 2 * block
        self.lines = [b"%*d\n" % (LINE - 1, number) for number in range(LINES)]
        bulk = block * (BULK // len(block) + 1)
        content = {"bulk": bulk[:BULK], "lines": b"".join(self.lines)}
        self.file = tempfile.NamedTemporaryFile(prefix="spawnfd-bench-")  # noqa: SIM115
        self.file.write(content.get(kind, b""))
        self.file.flush()

    def has(self, chunk: bytes, position: int) -> bool:
        """Whether the bulk file has this chunk at a position."""
        begin = position % (len(self.blocks) // 2)
        return self.blocks[begin : begin + len(chunk)] == chunk


def asyncio_streams(data: Data, cwd: str, env: Mapping[str, str]) -> dict[str, Stream]:
    """asyncio.create_subprocess_exec and its StreamReader and StreamWriter, with default limits."""

    async def start(*argv: str, stdin: int = DEVNULL) -> Any:
        return await asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=PIPE, stderr=PIPE, cwd=cwd, env=env
        )

    async def rtt() -> None:
        program = await start("cat", stdin=PIPE)
        for line in data.lines[:ROUND_TRIPS]:
            program.stdin.write(line)
            await program.stdin.drain()
            if await program.stdout.readline() != line:
                raise _wrong("rtt")
        program.stdin.close()
        await program.wait()

    async def bulk() -> None:
        program, position = await start("cat", data.file.name), 0
        while chunk := await program.stdout.read(CHUNK):
            if not data.has(chunk, position):
                raise _wrong("bulk")
            position += len(chunk)
        if await program.wait() or position != BULK:
            raise _wrong("bulk")

    async def lines() -> None:
        program, count = await start("cat", data.file.name), 0
        async for line in program.stdout:
            if line != data.lines[count]:
                raise _wrong("lines")
            count += 1
        if await program.wait() or count != LINES:
            raise _wrong("lines")

    return {"rtt": rtt, "bulk": bulk, "lines": lines}


def spawnfd_streams(
    data: Data, cwd: str, env: Mapping[str, str], start: Callable[..., Any] | None = None
) -> dict[str, Stream]:
    """spawnfd.start, or the start() of a connection, with events() and write()."""
    start = start or import_spawnfd().start

    async def rtt() -> None:
        async with start(["cat"], stdin="stream", cwd=cwd, env=env) as job:
            events = job.events(lines=True)
            for line in data.lines[:ROUND_TRIPS]:
                await job.write(line)
                if (await anext(events)).bytes != line:
                    raise _wrong("rtt")
            job.close_stdin()
            await job.result()

    async def bulk() -> None:
        position = 0
        async with start(["cat", data.file.name], cwd=cwd, env=env) as job:
            async for event in job.events():
                chunk = event.bytes
                if not data.has(chunk, position):
                    raise _wrong("bulk")
                position += len(chunk)
            if not (await job.result()).ok or position != BULK:
                raise _wrong("bulk")

    async def lines() -> None:
        count = 0
        async with start(["cat", data.file.name], cwd=cwd, env=env) as job:
            async for event in job.events(lines=True):
                if event.bytes != data.lines[count]:
                    raise _wrong("lines")
                count += 1
            if not (await job.result()).ok or count != LINES:
                raise _wrong("lines")

    return {"rtt": rtt, "bulk": bulk, "lines": lines}


def make_call(streams: Callable[[Data], Mapping[str, Stream]]) -> AsyncCall:
    """Returns a call whose argv is the kind of a stream. It checks the data itself."""
    made: dict[str, Stream] = {}

    async def call(argv: list[str]) -> Answer:
        (kind,) = argv
        if kind not in made:
            made[kind] = streams(Data(kind))[kind]
        await made[kind]()
        return 0, b"", b""

    return call
