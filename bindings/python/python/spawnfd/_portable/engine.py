# SPDX-License-Identifier: MIT OR Apache-2.0
"""The thread that drives all runs: it reads, writes, keeps deadlines and reaps."""

from __future__ import annotations

import atexit
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from spawnfd._portable.platforms import block_signals
from spawnfd._portable.wakeups import LOCK


class Driven(Protocol):
    """A run, as the engine's thread sees it. The thread holds LOCK in each call."""

    def begin(self, engine: Engine) -> None:
        """Begins to watch the descriptors of the run."""

    def tick(self, now: float) -> None:
        """Does what is due."""

    def deadline(self) -> float | None:
        """Returns the time.monotonic() of the next tick; None if no time is due."""

    def is_over(self) -> bool:
        """Whether the engine may forget the run."""
        ...

    def kill_at_exit(self) -> None:
        """Kills the program, because the interpreter ends."""


class Engine:
    """Drives runs in a thread, which ends with the last run."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._orders: deque[Callable[[], object]] = deque()
        self._runs: set[Driven] = set()
        self._is_over = False
        self.thread = threading.Thread(target=self._main, name="spawnfd-engine", daemon=True)

    def call(self, order: Callable[[], object]) -> None:
        """Lets the thread make a call."""
        self._orders.append(order)
        # A full socket wakes the thread, too. The thread of a closed one has ended.
        with suppress(OSError):
            self._writer.send(b"x")

    def watch(self, file: Any, events: int, ready: Callable[[], object]) -> None:
        """Calls `ready` while the file is ready for `events` (of selectors)."""
        self._selector.register(file, events, ready)

    def unwatch(self, file: Any) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(file)

    def _main(self) -> None:
        block_signals()
        timeout: float | None = None
        while True:
            ready = self._selector.select(timeout)
            with LOCK:
                self._serve(ready)
                if self._is_over:
                    return
                dues = [due for run in self._runs if (due := run.deadline()) is not None]
            timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
            if self._orders:
                timeout = 0

    def _serve(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        with suppress(OSError):
            self._reader.recv(4096)
        while self._orders:
            self._orders.popleft()()
            if self._is_over:
                return
        for key, _ in ready:
            # An earlier call may have closed the file.
            if key.data is not None and self._selector.get_map().get(key.fd) == key:
                key.data()
        now = time.monotonic()
        for run in list(self._runs):
            due = run.deadline()
            if due is not None and due <= now:
                run.tick(now)
            if run.is_over():
                self._runs.discard(run)
        if not self._runs and not self._orders:
            self._close()

    def _close(self) -> None:
        global _engine
        self._is_over, _engine = True, None
        self._selector.close()
        self._reader.close()
        self._writer.close()

    def add(self, run: Driven) -> None:
        """Begins to drive a run. The caller holds LOCK."""
        self._runs.add(run)
        self.call(lambda: run.begin(self))

    def stop(self) -> None:
        """Kills all programs, and ends the thread. The caller holds LOCK."""
        for run in self._runs:
            run.kill_at_exit()
        self.call(self._close)


# The engine of this process, and the latest one, whose thread may not have ended yet.
_engine: Engine | None = None
_latest: Engine | None = None


def add(run: Driven) -> Engine:
    """Begins to drive a run, and returns the engine that does."""
    global _engine, _latest
    with LOCK:
        engine = _engine
        if engine is None:
            engine = Engine()
            engine.add(run)
            engine.thread.start()
            _engine = _latest = engine
        else:
            engine.add(run)
        return engine


def end_idle_threads() -> None:
    """Returns once the thread of an engine without runs has ended."""
    with LOCK:
        thread = _latest.thread if _engine is None and _latest is not None else None
    if thread is not None:
        thread.join()


def _after_fork() -> None:
    # The thread exists only in the parent.
    global _engine, _latest
    _engine = _latest = None
    LOCK.release()


def _at_exit() -> None:
    with LOCK:
        engine = _engine
        if engine is None:
            return
        engine.stop()
    # The end of the interpreter freezes daemon threads. A frozen one would keep the lock.
    engine.thread.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=_after_fork
    )
atexit.register(_at_exit)
