# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job's input and output as asyncio streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from spawnfd import _spawnfd
from spawnfd._types import as_bytes

# The transport asks its protocol to pause while more bytes than this wait to be written.
_WRITE_HIGH = 65_536


class LostOutputError(OSError):
    """Output was dropped before the stream was opened, so the stream cannot be complete."""

    def __init__(self, lost: int) -> None:
        super().__init__(
            f"{lost} bytes of output were dropped before the stream was opened; start the job "
            "with hold=True"
        )


class _JobTransport(asyncio.Transport):
    """Connects a job's standard output to a reader, and its standard input to a protocol."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        core: _spawnfd.Job,
        events: AsyncIterator[_spawnfd.Event],
        write: Callable[[bytes], Awaitable[None]],
        reader: asyncio.StreamReader,
        protocol: asyncio.StreamReaderProtocol,
    ) -> None:
        super().__init__({"pid": core.pid})
        self._loop, self._core, self._write = loop, core, write
        self._reader, self._protocol = reader, protocol
        self._unsent = bytearray()
        self._eof = self._closing = self._lost = self._paused = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._sending: asyncio.Task[None] | None = None
        reader.set_transport(self)
        self._receiving = loop.create_task(self._receive(events))

    async def _receive(self, events: AsyncIterator[_spawnfd.Event]) -> None:
        try:
            async for event in events:
                if event.lost:
                    raise LostOutputError(event.lost)
                if event.stream == "stdout" and event.bytes:
                    self._reader.feed_data(event.bytes)
                await self._may_read.wait()
            self._reader.feed_eof()
        except OSError as error:
            self._reader.set_exception(error)

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def write(self, data: Any) -> None:
        if self._lost:
            return
        if self._eof:
            raise RuntimeError("write(): the input is closed")
        left = as_bytes(data)
        if self._sending is None and left:
            try:
                left = left[self._core.write(left[:_WRITE_HIGH]) or 0 :]
            except BrokenPipeError as error:
                self._connection_lost(error)
                return
        if left:
            self._unsent += left
            if len(self._unsent) > _WRITE_HIGH and not self._paused:
                self._paused = True
                self._protocol.pause_writing()
            if self._sending is None:
                self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._unsent:
                data = bytes(self._unsent)
                self._unsent.clear()
                await self._write(data)
            if self._paused:
                self._paused = False
                self._protocol.resume_writing()
        except BrokenPipeError as error:
            self._connection_lost(error)
        finally:
            self._sending = None
        if self._eof:
            self._core.close_stdin()

    def write_eof(self) -> None:
        self._eof = True
        if self._sending is None:
            self._core.close_stdin()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Ends the input after the data that has been written. The reader still gets all output."""
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._finishing = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        if self._sending is not None:
            await asyncio.wait([self._sending])
        self._connection_lost(None)

    def abort(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        self.close()

    def _connection_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)


def asyncio_streams(
    core: _spawnfd.Job,
    events: AsyncIterator[_spawnfd.Event],
    write: Callable[[bytes], Awaitable[None]],
    limit: int,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects streams with a job's events() and write(); see Job.asyncio_streams()."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    # The writer needs a protocol that ends separately from the reader, so it gets an unused reader.
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop)
    transport = _JobTransport(loop, core, events, write, reader, protocol)
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
