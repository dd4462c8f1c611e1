# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sessions and jobs in both forms, for tests that are coroutine functions.

For the blocking form, an adapter makes the methods of SyncSession and SyncJob awaitable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import spawnfd as sf
from patience import TIMEOUT_S

Open = Callable[..., Any]
Start = Callable[..., Any]


class Awaitables:
    """Makes the blocking methods of a SyncSession or SyncJob awaitable."""

    METHODS = (
        "run",
        "side_command",
        "start",
        "close",
        "wait",
        "wait_for",
        "result",
        "stop",
        "write",
    )

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        return partial(self._call, value) if name in self.METHODS else value

    async def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        value = method(*args, **options)
        return Awaitables(value) if isinstance(value, sf.SyncJob) else value

    def events(self, **options: Any) -> AsyncEvents:
        return AsyncEvents(self.target.events(**options))

    def __repr__(self) -> str:
        return repr(self.target)

    def __await__(self) -> Generator[Any, Any, Awaitables]:
        yield from anyio.sleep(0).__await__()
        return self

    async def __aenter__(self) -> Awaitables:
        self.target.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.target.__exit__(*error)


class AsyncEvents:
    """Iterates over the events of a SyncJob in a coroutine."""

    def __init__(self, events: Iterator[sf.Event]) -> None:
        self.events = events

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> sf.Event:
        for event in self.events:
            return event
        raise StopAsyncIteration


def starter(form: str) -> Start:
    """Returns `start`, or in the form "sync" a function that adapts the job of `start_sync`."""
    if form == "async":
        return sf.start
    return lambda *args, **options: Awaitables(sf.start_sync(*args, **options))


def opener(form: str, shell: str) -> Open:
    """Returns a function that opens a session in the form "async" or "sync"."""

    def open_session(program: Any = shell, *args: Any, **options: Any) -> Any:
        if form == "async":
            return sf.Session(program, *args, **options)
        return Awaitables(sf.SyncSession(program, *args, **options))

    return open_session


async def stdout(session: Any, command: str | Path, **options: Any) -> str:
    """Returns the output of a command that succeeds."""
    result = await session.run(command, timeout=TIMEOUT_S, **options)
    assert (result.ok, result.stderr) == (True, b""), result
    return str(result.text)
