# SPDX-License-Identifier: MIT OR Apache-2.0
"""Signals while run() and wait() block."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import time
from typing import Any, cast

import pytest
import spawnfd as sf
from patience import TIMEOUT_S, signal_after, signal_handler


def test_ctrl_c_kills_the_tree() -> None:
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), signal_after(0.2, signal.SIGINT):
        # The grandchild has the pipe open, so it must be killed, too.
        sf.run(sf.sh("sleep 1000 & sleep 1000"))
    assert time.monotonic() - start < TIMEOUT_S


def test_keyboard_interrupt_carries_the_result() -> None:
    line = f"trap 'echo trapped; exit 3' TERM; echo out; kill -INT {os.getpid()}; sleep 60 & wait"
    with pytest.raises(KeyboardInterrupt) as caught:
        sf.run(sf.sh(line), grace=60)
    result = cast(Any, caught.value).result
    assert isinstance(result, sf.Result)
    assert (result.stop, result.code, result.text) == ("cancelled", 3, "out\ntrapped\n")


def test_exception_keeps_its_own_result() -> None:
    def handle(*_: object) -> None:
        sf.run(["sh", "-c", "echo inner; exit 7"]).check()

    with (
        signal_handler(signal.SIGUSR1, handle),
        pytest.raises(sf.ExitError, match="exited with status 7") as caught,
    ):
        sf.run(sf.sh(f"echo outer; kill -USR1 {os.getpid()}; sleep 60"))
    assert (caught.value.result.code, caught.value.result.text) == (7, "inner\n")


def test_ctrl_c_while_the_program_writes() -> None:
    """run() always has output to read, so it never sleeps in a call that a signal interrupts."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), signal_after(0.1, signal.SIGINT):
        sf.run(["yes"], timeout=2 * TIMEOUT_S)
    assert time.monotonic() - start < TIMEOUT_S


def test_handler_that_returns_changes_nothing() -> None:
    seen: list[int] = []
    with signal_handler(signal.SIGUSR1, lambda number, _: seen.append(number)):
        with signal_after(0.1, signal.SIGUSR1):
            result = sf.run(["sleep", "0.4"])
        assert result.ok
        assert result.wall >= 0.4
        with signal_after(0.1, signal.SIGUSR1):
            assert sf.spawn(["sleep", "0.4"]).wait() == 0
        with signal_after(0.1, signal.SIGUSR1), sf.start_sync(["sleep", "0.4"]) as job:
            assert job.wait(20) is not None
    assert seen == [signal.SIGUSR1] * 3


def test_exception_of_a_handler_ends_the_run() -> None:
    def handler(number: int, frame: object) -> None:
        raise RuntimeError("enough")

    with (
        signal_handler(signal.SIGUSR1, handler),
        pytest.raises(RuntimeError, match="enough"),
        signal_after(0.1, signal.SIGUSR1),
    ):
        sf.run(["sleep", "60"])


def test_ctrl_c_during_wait_leaves_the_child_running() -> None:
    child = sf.spawn(["sleep", "60"], actions=[sf.actions.Setsid()])
    with pytest.raises(KeyboardInterrupt), signal_after(0.1, signal.SIGINT):
        child.wait()
    assert child.poll() is None
    child.kill()
    assert child.wait() == -9


def run_forever() -> None:
    while True:
        sf.run(["sleep", "0.001"])


def test_many_interrupts() -> None:
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt), signal_after(0.01, signal.SIGINT):
            run_forever()


def test_exception_of_a_handler_while_arguments_are_read() -> None:
    class Enough(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Enough

    # Native code sends the signal, so the interpreter cannot run the handler before the actions
    # are read.
    send = filter(None, map(ctypes.CDLL(None)["raise"], [signal.SIGUSR1]))
    with signal_handler(signal.SIGUSR1, handler), pytest.raises(Enough):
        sf.run(["true"], actions=cast(Any, itertools.chain([sf.actions.Umask(0o22)], send)))
