# SPDX-License-Identifier: MIT OR Apache-2.0
"""SIGINT at random instants of each blocking and awaitable call.

Each call returns its result, or raises KeyboardInterrupt after its program has ended. The next call
works.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess as original
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import spawnfd as sf
from conftest import FULL, children, running
from patience import eventually
from spawnfd import _spawnfd
from spawnfd import subprocess as drop_in

# `make test-all` interrupts each call 1,000 times.
ROUNDS = 1000 if FULL else 100
# The longest time in seconds from the begin of a call to its signal.
LATEST = 0.003

# Every second program ends by itself.
PROGRAMS = ("true", "sleep 1000")


# Sends a signal to its parent some seconds after each line. The timer belongs to pytest-timeout.
SENDER = """
import os, sys, time
for line in sys.stdin:
    seconds, number = line.split()
    time.sleep(float(seconds))
    os.kill(os.getppid(), int(number))
"""


class Sender:
    """A process that sends one signal per request."""

    def __init__(self, process: original.Popen[bytes]) -> None:
        self.process = process

    def request(self, number: int = signal.SIGINT) -> None:
        assert self.process.stdin is not None
        line = f"{random.uniform(0, LATEST)} {number}\n".encode()
        os.write(self.process.stdin.fileno(), line)


# Later, `install` replaces the class.
FINALIZERS: list[Any] = [vars(original.Popen)["__del__"]]
if sf.portable:
    FINALIZERS.append(vars(_spawnfd.Job)["__del__"])


@pytest.fixture
def sender() -> Iterator[Sender]:
    with original.Popen([sys.executable, "-S", "-c", SENDER], stdin=original.PIPE) as process:
        yield Sender(process)


def interrupted(
    sender: Sender, call: Callable[..., object], *args: Any, **kwargs: Any
) -> BaseException:
    """Makes a call that SIGINT interrupts, and waits for the signal. Returns the exception.

    CPython drops an exception of a finalizer, so the call may return after the signal. There are
    `Popen.__del__` and, of the portable engine, `Job.__del__`.
    """
    dropped: list[BaseException] = []
    hook = sys.unraisablehook

    def note(unraisable: sys.UnraisableHookArgs) -> None:
        is_finalizer = unraisable.object in FINALIZERS
        if is_finalizer and isinstance(unraisable.exc_value, KeyboardInterrupt):
            dropped.append(unraisable.exc_value)
        else:
            hook(unraisable)

    try:
        sys.unraisablehook = note
        sender.request()
        call(*args, **kwargs)
        # A signal just before a sleep would not interrupt it, so sleep briefly.
        while not dropped:
            time.sleep(0.001)
        return dropped[0]
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.unraisablehook = hook


def result_of(error: BaseException) -> Any:
    return getattr(error, "result", None)


def test_run(sender: Sender) -> None:
    before, seen = set(running()), 0
    for number in range(ROUNDS):
        error = interrupted(sender, sf.run, PROGRAMS[number % 2].split(), tree="group")
        assert set(running()) <= before, error
        seen += result_of(error) is not None
    assert seen


def test_job(sender: Sender) -> None:
    def call(argv: list[str]) -> None:
        with sf.start_sync(argv, tree="group") as job:
            job.result()

    before = set(running())
    for number in range(ROUNDS):
        interrupted(sender, call, PROGRAMS[number % 2].split())
        # If the signal arrives outside of the block, the drop of the job ends the program.
        assert eventually(lambda: set(running()) <= before)


def test_session(sender: Sender) -> None:
    with sf.SyncSession("bash") as session:
        for number in range(ROUNDS):
            error = interrupted(sender, session.run, PROGRAMS[number % 2])
            # The next command runs at once: the interrupted one has ended.
            assert session.run(f"echo {number}").text == f"{number}\n", error
            assert not session.processes(), error


async def cancelled(sender: Sender, call: Callable[[], Awaitable[object]]) -> NoReturn:
    """Awaits a call. asyncio.run() cancels this task on SIGINT, from Python 3.11 on."""
    sender.request()
    await call()
    while True:
        await asyncio.sleep(0.001)


def test_async(sender: Sender) -> None:
    before = set(running())
    for number in range(ROUNDS):
        argv = PROGRAMS[number % 2].split()
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(cancelled(sender, partial(sf.run_async, argv, tree="group")))
        assert set(running()) <= before


def test_async_session(sender: Sender) -> None:
    async def main(number: int) -> None:
        try:
            await cancelled(sender, partial(session.run, PROGRAMS[number % 2]))
        finally:
            assert (await session.run(f"echo {number}")).text == f"{number}\n"

    session = sf.Session("bash")
    try:
        for number in range(ROUNDS):
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(main(number))
        assert not session.processes()
    finally:
        asyncio.run(session.close())


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.parametrize("module", [drop_in, original], ids=["module", "installed"])
def test_subprocess(sender: Sender, module: Any) -> None:
    """In CPython's own code, the signal can still lose a Popen: before `with` has entered it."""
    package = str(Path(sf.__file__).parent)
    cleanup: Any = vars(original)["_cleanup"]
    sf.install()
    try:
        before = children()
        for number in range(ROUNDS // 2):
            error = interrupted(sender, module.run, PROGRAMS[number % 2].split())
            frames = traceback.extract_tb(error.__traceback__)
            del error
            if not any(frame.filename.startswith(package) for frame in frames):
                for pid in set(running()) - before:
                    os.kill(pid, signal.SIGKILL)
            # _cleanup() reaps the programs whose Popen objects were dropped.
            assert eventually(lambda: cleanup() or children() <= before), frames
    finally:
        sf.uninstall()
