# SPDX-License-Identifier: MIT OR Apache-2.0
"""Job.interact(): the terminal of a job in the terminal of the user."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop
from patience import TIMEOUT_S, in_background


class User:
    """The terminal of a user: `near` is the side of the user."""

    def __init__(self) -> None:
        self.near, self.far = pty.openpty()
        fcntl.ioctl(self.far, termios.TIOCSWINSZ, struct.pack("HHHH", 11, 22, 0, 0))
        self.shown = b""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while data := _read(self.near):
            with self._changed:
                self.shown += data
                self._changed.notify_all()

    def close(self) -> None:
        os.close(self.far)
        self._reader.join(TIMEOUT_S)
        os.close(self.near)

    def sees(self, text: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.shown, TIMEOUT_S), self.shown

    def types(self, text: bytes) -> None:
        os.write(self.near, text)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


@pytest.fixture
def user() -> Iterator[User]:
    user = User()
    before = termios.tcgetattr(user.far)
    yield user
    assert termios.tcgetattr(user.far) == before
    user.close()


SCRIPT = "stty -echo; echo ready; read x; echo got $x; stty size; read y"


@contextmanager
def conversation(user: User, end: bytes) -> Generator[None, None, None]:
    """Types the answer of the script, and then `end`."""

    def converse() -> None:
        user.sees(b"ready")
        user.types(b"yes\r")
        user.sees(b"11 22")
        user.types(end)

    with in_background(converse):
        yield


def test_typed_input_and_output_are_passed_on(user: User) -> None:
    with sf.start_sync(sf.sh(SCRIPT), terminal=(24, 80)) as job, conversation(user, b"\x03"):
        result = job.interact(stdin=user.far, stdout=user.far)
    assert result is not None
    # Ctrl-C goes to the program, and the program's terminal has the size of the user's terminal.
    assert result.signal == 2
    assert "11 22" in result.text


async def test_escape_character_ends_the_call_and_not_the_program(
    run_loop: RunLoop, user: User
) -> None:
    async with sf.start(sf.sh(SCRIPT), terminal=(24, 80), grace=0) as job:
        with conversation(user, b"\x1d"):
            assert await job.interact(stdin=user.far, stdout=user.far) is None
        assert job.running


async def test_cancelled_call_restores_the_terminal(run_loop: RunLoop, user: User) -> None:
    async with sf.start(sf.sh(SCRIPT), terminal=(24, 80), grace=0) as job:
        with anyio.move_on_after(0.3):
            await job.interact(stdin=user.far, stdout=user.far)
        assert job.running


def test_command_of_a_session_interacts(user: User) -> None:
    with sf.SyncSession("bash", terminal=(24, 80)) as session:
        job = session.start("echo ready; read x; echo got $x; stty size; read y", stdin="stream")
        with conversation(user, b"\r"):
            result = job.interact(stdin=user.far, stdout=user.far)
        assert result is not None
        assert result.ok


def test_a_job_or_caller_without_a_terminal_is_refused(user: User) -> None:
    refused = pytest.raises(ValueError, match="not started with a terminal")
    with sf.start_sync(["sleep", "600"], grace=0) as job, refused:
        job.interact(stdin=user.far)
    read, write = os.pipe()
    with sf.start_sync(["sleep", "600"], terminal=(24, 80), grace=0) as job:
        for call, text in (
            (partial(job.interact, stdin=read), "is not a terminal"),
            (partial(job.interact, stdin=user.far, escape=b"ab"), "expected one byte"),
        ):
            with pytest.raises(ValueError, match=text):
                call()
    os.close(read)
    os.close(write)
