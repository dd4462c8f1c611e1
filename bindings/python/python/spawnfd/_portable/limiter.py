# SPDX-License-Identifier: MIT OR Apache-2.0
"""Limiter, which bounds concurrent runs, and the waits for its permits."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from typing import Literal

from spawnfd._portable.arguments import integer
from spawnfd._portable.wakeups import LOCK, Owned, Wakeup


class Limiter(Owned):
    """Bounds the number of concurrent runs: `run(argv, limiter=limiter)`, and the like.

    Before it starts its program, a run waits for a permit, first come, first served. It keeps the
    permit until its Result is available. Any number of threads and event loops can share a limiter.
    A forked process begins with the same limit and all permits free.
    """

    __slots__ = ("_limit", "_running", "_waiting")
    __module__ = "spawnfd"

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = integer(limit, "limit")
        self._running = 0
        self._waiting: deque[PermitRequest] = deque()

    def _renew(self) -> None:
        if self.is_forked_copy():
            self.__init__(self._limit)  # type: ignore[misc]

    @property
    def limit(self) -> int:
        """How many runs may be active at once."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        limit = integer(value, "limit")
        with LOCK:
            self._renew()
            self._limit = limit
            self._grant()

    @property
    def running(self) -> int:
        """How many runs are active."""
        with LOCK:
            self._renew()
            return self._running

    @property
    def waiting(self) -> int:
        """How many runs wait for a permit."""
        with LOCK:
            self._renew()
            return len(self._waiting)

    def _request(self, request: PermitRequest) -> None:
        with LOCK:
            self._renew()
            self._waiting.append(request)
            self._grant()

    def _withdraw(self, request: PermitRequest) -> None:
        with LOCK:
            if not self.is_forked_copy():
                with suppress(ValueError):
                    self._waiting.remove(request)

    def _release(self) -> None:
        with LOCK:
            if not self.is_forked_copy():
                self._running -= 1
                self._grant()

    def _grant(self) -> None:
        while self._waiting and self._running < self._limit:
            request = self._waiting.popleft()
            self._running += 1
            request.permit = Permit(self)
            request.ready.fire()

    def __repr__(self) -> str:
        return f"<spawnfd.Limiter limit={self.limit} running={self.running} waiting={self.waiting}>"


class Permit:
    """One place of a limiter. Dropping the object gives the place back."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: Limiter) -> None:
        self._limiter: Limiter | None = limiter

    def release(self) -> None:
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter._release()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()


class PermitRequest:
    """A request for a permit, which it has once it is granted. No limiter: granted at once."""

    __slots__ = ("_limiter", "permit", "ready")

    def __init__(self, limiter: Limiter | None) -> None:
        self._limiter = limiter
        self.permit: Permit | None = None
        self.ready = Wakeup()
        if limiter is not None:
            limiter._request(self)

    def is_granted(self) -> Literal[True] | None:
        return True if self._limiter is None or self.permit is not None else None

    def take(self) -> Permit | None:
        """Transfers the permit to a run."""
        with LOCK:
            self._limiter, permit = None, self.permit
            self.permit = None
            return permit

    def cancel(self) -> None:
        """Cancels the request, or gives the permit back."""
        with LOCK:
            limiter, self._limiter = self._limiter, None
            if limiter is not None:
                limiter._withdraw(self)
            permit, self.permit = self.permit, None
            if permit is not None:
                permit.release()

    def __enter__(self) -> PermitRequest:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cancel()
