# SPDX-License-Identifier: MIT OR Apache-2.0
"""Starts a Python program cold (`cold`), or from a parked process (`Parked(...).run`)."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import tempfile
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import owner
from owner import Result, collect
from protocol import Kind, Mode

DIRECTORY = b"/"  # as `Call.stdin`: stdin is a descriptor of this directory


@dataclass
class Call:
    """One program to start. stdout and stderr: "pipe", "file" (only stdout), or None if closed."""

    argv: list[str | bytes]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    stdin: bytes | None = b""
    stdout: str | None = "pipe"
    stderr: str | None = "pipe"
    tty: bool = False
    ignored: tuple[int, ...] = ()
    interrupt: bool = False  # the test sends SIGINT after the first line of output


def finish(call: Call, start) -> Result:
    """Creates the descriptors, starts the program, and collects its output.

    `start` gets the program's descriptors by number (None means closed), and returns a pid.
    """
    with contextlib.ExitStack() as stack:
        ends: dict[int, int] = {}
        theirs: dict[int, int | None] = {}

        def own(fd: int) -> int:
            stack.callback(close_quietly, fd)
            return fd

        if call.tty:
            master, slave = pty.openpty()
            ends[1] = own(master)
            theirs = {0: slave, 1: slave, 2: slave}
            own(slave)
            modes = termios.tcgetattr(slave)
            modes[3] &= ~termios.ECHO  # the terminal would echo early input at a random time
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            if call.stdin:
                os.write(master, call.stdin)
        else:
            if call.stdin is None:
                theirs[0] = None
            elif call.stdin is DIRECTORY:
                theirs[0] = own(os.open(DIRECTORY, os.O_RDONLY))
            else:
                reading, writing = os.pipe()
                theirs[0] = own(reading)
                assert len(call.stdin) <= 65536
                os.write(writing, call.stdin)
                os.close(writing)
            for number, kind in ((1, call.stdout), (2, call.stderr)):
                if kind == "pipe":
                    reading, writing = os.pipe()
                    ends[number] = own(reading)
                    theirs[number] = own(writing)
                elif kind == "file":
                    file = stack.enter_context(tempfile.TemporaryFile())
                    theirs[number] = file.fileno()
                else:
                    theirs[number] = None
        pid = start(theirs)
        for fd in set(theirs.values()) - {None}:
            if fd in ends.values():
                continue
            if call.stdout == "file" and fd == theirs[1]:
                continue
            close_quietly(fd)
        result = collect(pid, ends, interrupt=call.interrupt)
        if call.stdout == "file":
            os.lseek(theirs[1], 0, 0)
            result.stdout = os.read(theirs[1], 1 << 20)
        return result


def close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def is_inheritable(fd: int) -> bool:
    with contextlib.suppress(OSError):
        return os.get_inheritable(fd)
    return False


def cold(executable: str, call: Call) -> Result:
    """Runs the program without a parked process."""

    def start(theirs: dict[int, int | None]) -> int:
        # posix_spawn can close descriptors 0 to 2, and does not reset signals as Popen does.
        actions = [(os.POSIX_SPAWN_CLOSE, fd) for fd in range(3, 256) if is_inheritable(fd)]
        for number, fd in theirs.items():
            actions.append(
                (os.POSIX_SPAWN_DUP2, fd, 100 + number)
                if fd is not None
                else (os.POSIX_SPAWN_CLOSE, number)
            )
        for number, fd in theirs.items():
            if fd is not None:
                actions += [
                    (os.POSIX_SPAWN_DUP2, 100 + number, number),
                    (os.POSIX_SPAWN_CLOSE, 100 + number),
                ]
        old = {number: signal.signal(number, signal.SIG_IGN) for number in call.ignored}
        here = os.getcwd()
        os.chdir(call.cwd)
        try:
            return os.posix_spawn(
                executable,
                call.argv,
                call.env,
                file_actions=actions,
                setsigdef=[
                    n
                    for n in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
                    if n not in call.ignored
                ],
            )
        finally:
            os.chdir(here)
            for number, handler in old.items():
                signal.signal(number, handler)

    return finish(call, start)


class Parked(owner.Parked):
    """A parked CPython. With `fork`, each run is a forked child. Otherwise it runs once."""

    def __init__(
        self,
        shim: Path,
        executable: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        fork: bool = False,
        preimport: str = "",
        entry: str = "",
        ignored: Sequence[int] = (),
    ) -> None:
        mode = Mode.FORK if fork else Mode.RESERVE
        super().__init__(
            Kind.PYTHON,
            shim,
            executable,
            argv,
            env,
            mode=mode,
            preload=preimport,
            entry=entry,
            ignored=ignored,
        )

    def run(self, call: Call) -> Result:
        ignored = sum(1 << (number - 1) for number in call.ignored)

        def start(theirs: dict[int, int | None]) -> int:
            return self.become(
                call.argv,
                call.env,
                call.cwd,
                theirs,
                umask=None,
                make_default=(1 << 64) - 1 & ~ignored,
                make_ignored=ignored,
            )

        return finish(call, start)
