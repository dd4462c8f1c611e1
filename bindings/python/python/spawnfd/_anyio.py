# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job's input and output as an anyio byte stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from spawnfd import _spawnfd
from spawnfd._streams import LostOutputError


class JobStream(ByteStream):
    """Receives a job's standard output, and sends to its standard input."""

    def __init__(
        self,
        core: _spawnfd.Job,
        events: AsyncIterator[_spawnfd.Event],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._core, self._write = core, write
        self._events: AsyncIterator[_spawnfd.Event] | None = events
        self._received = b""

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """Returns the next bytes of standard output, at least one and at most `max_bytes`."""
        await checkpoint()
        if self._events is None:
            raise anyio.ClosedResourceError
        while not self._received:
            try:
                event = await anext(self._events)
            except StopAsyncIteration:
                raise anyio.EndOfStream from None
            if event.lost:
                raise anyio.BrokenResourceError from LostOutputError(event.lost)
            if event.stream == "stdout":
                self._received = event.bytes
        data, self._received = self._received[:max_bytes], self._received[max_bytes:]
        return data

    async def send(self, item: bytes) -> None:
        """Writes all bytes to the program's input."""
        await checkpoint()
        if self._events is None:
            raise anyio.ClosedResourceError
        try:
            await self._write(item)
        except BrokenPipeError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """Ends the program's input."""
        self._core.close_stdin()
        await checkpoint()

    async def aclose(self) -> None:
        """Ends the program's input, and receives no more output."""
        self._events = None
        self._core.close_stdin()
        await checkpoint()
