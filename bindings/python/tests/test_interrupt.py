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
from patience import EVER, signal_after


def test_ctrl_c_ends_the_run() -> None:
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), signal_after(0.2, signal.SIGINT):
        # The grandchild holds the pipe: it has to go, too.
        sf.run(sf.sh("sleep 1000 & sleep 1000"))
    assert time.monotonic() - start < EVER


def test_what_came_out_goes_on_with_it() -> None:
    line = f"trap 'echo told; exit 3' TERM; echo out; kill -INT {os.getpid()}; sleep 60 & wait"
    with pytest.raises(KeyboardInterrupt) as caught:
        sf.run(sf.sh(line), grace=60)
    result = cast(Any, caught.value).result
    assert isinstance(result, sf.Result)
    assert (result.stop, result.code, result.text) == ("cancelled", 3, "out\ntold\n")


def test_an_exception_keeps_a_result_of_its_own() -> None:
    def handle(*_: object) -> None:
        sf.run(["sh", "-c", "echo inner; exit 7"]).check()

    old = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(sf.ExitError, match="code 7") as caught:
            sf.run(sf.sh(f"echo outer; kill -USR1 {os.getpid()}; sleep 60"))
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert (caught.value.result.code, caught.value.result.text) == (7, "inner\n")


def test_ctrl_c_while_the_program_writes() -> None:
    """There is always something to read, and no sleep to be interrupted."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), signal_after(0.1, signal.SIGINT):
        sf.run(["yes"], timeout=2 * EVER)
    assert time.monotonic() - start < EVER


def test_a_handler_that_returns_changes_nothing() -> None:
    seen: list[int] = []
    old = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        with signal_after(0.1, signal.SIGUSR1):
            result = sf.run(["sleep", "0.4"])
        assert result.ok
        assert result.wall >= 0.4
        with signal_after(0.1, signal.SIGUSR1):
            assert sf.spawn(["sleep", "0.4"]).wait() == 0
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert seen == [signal.SIGUSR1] * 2


def test_a_handler_that_raises() -> None:
    def handler(number: int, frame: object) -> None:
        raise RuntimeError("enough")

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(RuntimeError, match="enough"), signal_after(0.1, signal.SIGUSR1):
            sf.run(["sleep", "60"])
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_ctrl_c_during_wait_leaves_the_child_alone() -> None:
    child = sf.spawn(["sleep", "60"], actions=[sf.actions.Setsid()])
    with pytest.raises(KeyboardInterrupt), signal_after(0.1, signal.SIGINT):
        child.wait()
    assert child.poll() is None
    child.kill()
    assert child.wait() == -9


def run_for_ever() -> None:
    while True:
        sf.run(["sleep", "0.001"])


def test_many_interrupts() -> None:
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt), signal_after(0.01, signal.SIGINT):
            run_for_ever()


def test_what_a_handler_raises_while_arguments_are_read_is_not_lost() -> None:
    class Enough(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Enough

    # Sends the signal from native code: the interpreter has no turn to run the handler before
    # the actions are read.
    send = filter(None, map(ctypes.CDLL(None)["raise"], [signal.SIGUSR1]))
    old = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Enough):
            sf.run(["true"], actions=cast(Any, itertools.chain([sf.actions.Umask(0o22)], send)))
    finally:
        signal.signal(signal.SIGUSR1, old)
