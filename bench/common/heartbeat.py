# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures how late an event loop handles events that occur at known times."""

import asyncio
import ctypes
import os
import time

NS = 1_000_000_000
TFD_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


# os.timerfd_create exists only from Python 3.13 on.
_libc = ctypes.CDLL(None, use_errno=True)


class Heartbeat:
    """A timerfd that the loop watches.

    The kernel makes it readable at each tick, even while the loop is blocked. The loop's own timers
    are rounded to milliseconds, and each would wait for the previous one. If the loop misses
    several ticks, each counts with its own delay.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_us: int) -> None:
        self.late_us: list[int] = []
        self._loop = loop
        self._tick_ns = tick_us * 1_000
        self._due_ns = 0
        self._fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, TFD_CLOEXEC_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def _set(self, interval_ns: int) -> None:
        interval = _Timespec(interval_ns // NS, interval_ns % NS)
        timer = _Timer(interval, interval)
        if _libc.timerfd_settime(self._fd, 0, ctypes.byref(timer), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def start(self) -> None:
        """Starts the ticks."""
        self.late_us = []
        self._loop.add_reader(self._fd, self._tick)
        self._due_ns = time.monotonic_ns() + self._tick_ns
        self._set(self._tick_ns)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        for _ in range(int.from_bytes(os.read(self._fd, 8), "little")):
            self.late_us.append((now - self._due_ns) // 1_000)
            self._due_ns += self._tick_ns

    def stop(self) -> None:
        """Stops the ticks."""
        self._set(0)
        self._loop.remove_reader(self._fd)

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._fd)
