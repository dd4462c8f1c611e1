# SPDX-License-Identifier: MIT OR Apache-2.0
"""Starts a program cold (`cold`), or from a parked process (`Parked(...).run`), by the library."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import spawnfd as sf
from spawnfd.actions import Action, Close, DefaultSignals

DIRECTORY = b"/"  # as `Call.stdin`: stdin is a descriptor of this directory
# Seconds until a program is treated as hanging.
TIMEOUT = 240.0


class CannotPark(Exception):
    """The program reported why it cannot park, or died."""


@dataclass
class Call:
    """One program to start. stdout and stderr: "pipe", "file" (only stdout), or None if closed."""

    argv: Sequence[str | bytes]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    # The executable, if it is not argv[0].
    executable: str | None = None
    stdin: bytes | None = b""
    stdout: str | None = "pipe"
    stderr: str | None = "pipe"
    tty: bool = False
    ignored: Sequence[int] = ()
    interrupt: bool = False  # the test sends SIGINT after the first line of output
    actions: Sequence[Action] = ()


@dataclass
class Result:
    # The exit code, or the negated number of the signal that ended the program.
    code: int | None
    stdout: bytes
    stderr: bytes
    started: str


class Running:
    """A program with the streams of a call. `finish` collects its output."""

    def __init__(self, call: Call, warm: sf.Warm | None = None) -> None:
        self.call = call
        self.stack = ExitStack()
        # The ends to read, by the program's descriptor number.
        self.ends: dict[int, int] = {}
        with ExitStack() as theirs:
            streams, writer = self.open_streams(theirs)
            closed = [Close(number) for number, fd in enumerate(streams) if fd is None]
            stdin, stdout, stderr = ("null" if fd is None else fd for fd in streams)
            program = call.executable or call.argv[0]
            reset = [n for n in (signal.SIGPIPE, signal.SIGXFSZ) if n not in call.ignored]
            with ignoring(call.ignored):
                self.child = sf.spawn(
                    [program, *call.argv[1:]],
                    arg0=call.argv[0],
                    env=call.env,
                    cwd=call.cwd,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    actions=[*call.actions, DefaultSignals(reset), *closed],
                    warm=warm,
                )
        if writer is not None:
            threading.Thread(target=feed, args=(writer, call.stdin), daemon=True).start()

    def open_streams(self, theirs: ExitStack) -> tuple[list[int | None], int | None]:
        """Returns the program's descriptors 0 to 2 (None means closed), and the pipe to write."""
        call = self.call

        def pipe(number: int) -> int:
            reading, writing = os.pipe()
            self.stack.callback(os.close, reading)
            theirs.callback(os.close, writing)
            self.ends[number] = reading
            return writing

        if call.tty:
            master, slave = pty.openpty()
            self.stack.callback(os.close, master)
            theirs.callback(os.close, slave)
            modes = termios.tcgetattr(slave)
            modes[3] &= ~termios.ECHO  # the terminal would echo early input at a random time
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            os.write(master, call.stdin or b"")
            self.ends[1] = master
            return [slave] * 3, None
        stdin, writer = None, None
        if call.stdin is DIRECTORY:
            stdin = os.open(DIRECTORY, os.O_RDONLY)
        elif call.stdin is not None:
            stdin, writer = os.pipe()
        if stdin is not None:
            theirs.callback(os.close, stdin)
        stdout = None if call.stdout is None else pipe(1) if call.stdout == "pipe" else self.file()
        return [stdin, stdout, None if call.stderr is None else pipe(2)], writer

    def file(self) -> int:
        self.opened = self.stack.enter_context(tempfile.TemporaryFile())
        return self.opened.fileno()

    def finish(self) -> Result:
        """Reads the program's output, and reaps it."""
        output = {1: b"", 2: b""}
        interrupt = self.call.interrupt
        deadline = time.monotonic() + TIMEOUT
        with self.stack, self.child as child:
            opened = dict(self.ends)
            while opened:
                left = max(0, deadline - time.monotonic())
                ready = select.select(list(opened.values()), [], [], left)[0]
                if not ready:
                    child.kill()
                    break
                for number, fd in [(n, fd) for n, fd in opened.items() if fd in ready]:
                    try:
                        block = os.read(fd, 1 << 16)
                    except OSError:  # EIO: no process has the terminal open any more
                        block = b""
                    output[number] += block
                    if not block:
                        del opened[number]
                if interrupt and b"\n" in output[1]:
                    interrupt = False
                    child.send_signal(signal.SIGINT)
            code = child.wait(TIMEOUT)
            if self.call.stdout == "file":
                self.opened.seek(0)
                output[1] = self.opened.read()
            return Result(code, output[1], output[2], child.started)


@contextmanager
def ignoring(numbers: Sequence[int]) -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def feed(fd: int, data: bytes) -> None:
    """Writes the data until the reader closes its end, and closes the descriptor."""
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]
    os.close(fd)


def cold(call: Call) -> Result:
    """Runs the program without a parked process."""
    return Running(call).finish()


class Parked:
    """A program that is parked: its executable and flags. Each start must be warm.

    With `fork`, each run is a forked child.
    """

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        *,
        fork: bool = False,
        preimport: Sequence[str] = (),
        entry: str | None = None,
        **options: float,
    ) -> None:
        """Parks the program. `entry` and `preimport`: see Warm.add. `options`: see Warm."""
        self.mode = "fork" if fork else "reserve"
        self.warm = sf.Warm(mode=self.mode, **options)
        program, *flags = words
        self.warm.add(program, depth=1, args=flags, env=env, preimport=preimport, entry=entry)
        if not self.fill():
            (why,) = self.close().cannot.values()
            raise CannotPark(why)

    def fill(self) -> bool:
        return self.warm.fill(TIMEOUT)

    def start(self, call: Call) -> Running:
        """Starts the program warm; repeats this while the machine is too slow for that."""
        while True:
            assert self.fill(), self.warm.stats()
            running = Running(call, self.warm)
            if running.child.started != "cold: slow":
                assert running.child.started == self.mode, running.child.started
                return running
            running.finish()

    def run(self, call: Call) -> Result:
        return self.start(call).finish()

    def run_cold(self, call: Call, reason: str) -> Result:
        """Runs the program, which must start cold for this reason."""
        result = Running(call, self.warm).finish()
        assert result.started == f"cold: {reason}", result.started
        return result

    def explain(self, call: Call, **variables: str) -> str:
        """Returns how the call would start with these variables."""
        assert self.fill(), self.warm.stats()
        return self.warm.explain(call.argv, env={**call.env, **variables}, cwd=call.cwd).started

    def close(self) -> sf.WarmStats:
        stats = self.warm.stats()
        self.warm.close()
        return stats

    def __enter__(self) -> Parked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refusal(words: Sequence[str], env: Mapping[str, str], **options: object) -> str:
    """Returns why a program does not park. Its starts are then cold, for the same reason."""
    program, *flags = words
    with sf.Warm() as warm:
        warm.add(program, args=flags, env=env, **options)  # type: ignore[arg-type]
        assert not warm.fill(TIMEOUT), warm.stats()
        (why,) = warm.stats().cannot.values()
        assert warm.stats().parked == 0
        with tempfile.TemporaryDirectory() as cwd:
            started = warm.run([*words, "/dev/null"], env=env, cwd=cwd, timeout=TIMEOUT).started
    assert started == f"cold: {why}"
    return why
