# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two ways to start a Python program: `cold`, and `Parked(...)`, warm. Both give a `Finished`.

`Parked` is an owner in miniature: it speaks warm/main/protocol.h itself, so that the object is tested
without the library.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0

HEAD = struct.Struct("=10IiIiIII")
PAGE = struct.Struct("=QiiQQQQQQ")
STEP = struct.Struct("=HHiiIQQQ")
REPLY = struct.Struct("=IIiIQ")
PLACE, CLOSE, CHDIR = 0, 2, 6
PARKED, CANNOT = 0, 1
# Of a request: the states of its claim.
GO, TAKEN, BECAME = 1, 3, 4
# Flags of a request.
FORK = 2


def build(directory: Path) -> Path:
    """Builds the object that is preloaded."""
    result = directory / "park.so"
    sources = sorted((ROOT / "warm" / "main").glob("*.c")) + sorted(
        (ROOT / "warm" / "python").glob("*.c")
    )
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-shared",
            "-fPIC",
            "-O2",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            "-Werror",
        ]
        + ["-I", str(ROOT / "warm" / "python"), "-o", str(result), *map(str, sources)],
        check=True,
        timeout=TIMEOUT,
    )
    return result


DIRECTORY = b"/"  # as a Call's stdin: this directory itself


class CannotPark(Exception):
    pass


@dataclass
class Call:
    """One program to be started. `standard`: "pipe", "tty", "file" (for 1), or None: closed."""

    argv: list[str | bytes]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    stdin: bytes | None = b""
    stdout: str | None = "pipe"
    stderr: str | None = "pipe"
    tty: bool = False
    ignored: tuple[int, ...] = ()
    interrupt: bool = False  # SIGINT once it has written a line


@dataclass
class Finished:
    status: int
    stdout: bytes
    stderr: bytes


def finish(call: Call, start) -> Finished:
    """Makes the descriptors, starts by `start({number: descriptor or None})`, which gives a pid, and collects."""
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
            modes[3] &= ~termios.ECHO  # what is typed ahead would be shown now or later
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
        pidfd = own(os.pidfd_open(pid))
        for fd in set(theirs.values()) - {None}:
            if fd in ends.values():
                continue
            if call.stdout == "file" and fd == theirs[1]:
                continue
            close_quietly(fd)
        said = {number: b"" for number in (1, 2)}
        interrupted = not call.interrupt
        while ends:
            ready = select.select(list(ends.values()), [], [], TIMEOUT)[0]
            if not ready:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            for number, fd in list(ends.items()):
                if fd in ready:
                    try:
                        data = os.read(fd, 65536)
                    except OSError:  # a terminal that nobody holds any more
                        data = b""
                    said[number] += data
                    if not data:
                        del ends[number]
            if not interrupted and b"\n" in said[1]:
                interrupted = True
                signal.pidfd_send_signal(pidfd, signal.SIGINT)
        if not select.select([pidfd], [], [], TIMEOUT)[0]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if call.stdout == "file":
            os.lseek(theirs[1], 0, 0)
            said[1] = os.read(theirs[1], 1 << 20)
        return Finished(status, said[1], said[2])


def close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def is_inheritable(fd: int) -> bool:
    with contextlib.suppress(OSError):
        return os.get_inheritable(fd)
    return False


def cold(executable: str, call: Call) -> Finished:
    """What the program does when it is started as ever."""

    def start(theirs: dict[int, int | None]) -> int:
        # posix_spawn, so that a descriptor can be closed and nothing of this interpreter's signals gets in.
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


class Parked:
    """A parked interpreter. `fork`: it may be called again and again; else once."""

    def __init__(
        self,
        shim: Path,
        executable: str,
        argv: list[str],
        env: dict[str, str],
        *,
        fork: bool = False,
        preimport: str = "",
        ignored=(),
    ) -> None:
        self.fork = fork
        self.serial = 0
        self.socket, theirs, self.page = self.line()
        object_fd = os.open(shim, os.O_RDONLY)
        owner = os.pidfd_open(os.getpid())
        there = os.stat(executable)
        fds = (theirs.fileno(), owner, object_fd, self.page)
        env = dict(env)
        if preimport:
            env["SPAWNFD_PRELOAD"] = preimport
        env["LD_PRELOAD"] = f"/proc/self/fd/{object_fd}"
        env["SPAWNFD_PARK"] = "{}:{}:{}:{}:{}:{}:p:{}".format(
            *fds, there.st_dev, there.st_ino, "f" if fork else "r"
        )
        old = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
        self.process = subprocess.Popen(
            argv,
            restore_signals=False,
            preexec_fn=lambda: [
                signal.signal(n, signal.SIG_DFL)
                for n in (signal.SIGPIPE, signal.SIGXFSZ)
                if n not in ignored
            ],
            executable=executable,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=fds,
        )
        for number, handler in old.items():
            signal.signal(number, handler)
        theirs.close()
        os.close(object_fd)
        os.close(owner)
        try:
            word, head, text = self.receive(self.socket)
            if word == CANNOT:
                raise CannotPark(text.decode())
            assert word == PARKED, word
        except BaseException:
            self.close()
            raise
        self.private_bytes = head[4]
        variables, _, files = text.partition(b"\0\0")
        self.variables = [os.fsdecode(name) for name in variables.split(b"\0")]
        self.files = [os.fsdecode(name) for name in files.rstrip(b"\0").split(b"\0")]

    @staticmethod
    def line() -> tuple[socket.socket, socket.socket, int]:
        """What an owner and a parked process have in common: two ends, and a page."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(TIMEOUT)
        page = os.memfd_create("page")
        os.ftruncate(page, 4096)
        return ours, theirs, page

    def receive(self, ours: socket.socket):
        data, fds, _, _ = socket.recv_fds(ours, 1 << 17, 4)
        for fd in fds:
            os.close(fd)
        if not data:
            raise CannotPark(f"it died: {self.process.wait()}")
        head = REPLY.unpack_from(data)
        return head[1], head, data[REPLY.size :]

    def fork_one(self) -> tuple[socket.socket, int, int]:
        """A child that waits as its parent does: its line, and its pid."""
        ours, theirs, page = self.line()
        head = HEAD.pack(1, 0, 0, 2, 0, 0, 0, 0, 0, 1, 3, FORK, -1, 0, 0, 0)
        socket.send_fds(self.socket, [head + b"\0"], [theirs.fileno(), page])
        theirs.close()
        word, reply, _ = self.receive(ours)
        assert word == PARKED, word
        return ours, page, reply[2]

    def ask(self, call: Call, theirs: dict[int, int | None]) -> int:
        """Has the parked process become what `call` says; the program's pid."""
        self.serial += 1
        argv = [os.fsencode(word) + b"\0" for word in call.argv]
        env = [os.fsencode(f"{name}={value}") + b"\0" for name, value in call.env.items()]
        strings = b"".join(argv) + b"".join(env)
        steps = [STEP.pack(CHDIR, 0, 0, 0, len(strings), 0, 0, 0)]
        strings += os.fsencode(call.cwd) + b"\0"
        sources = []
        for number, fd in theirs.items():
            if fd is None:
                steps.append(STEP.pack(CLOSE, 0, number, 0, 0, 0, 0, 0))
            else:
                steps.append(STEP.pack(PLACE, 0, len(sources), number, 0, 0, 0, 0))
                sources.append(fd)
        ignored = sum(1 << (number - 1) for number in call.ignored)
        head = HEAD.pack(
            *(1, self.serial, len(steps), len(sources), 0, len(argv), len(env)),
            *(len(b"".join(argv)), len(b"".join(env)), len(strings), 3, 0, -1, 0, 0, 0),
        )
        line, page, pid = self.socket, self.page, self.process.pid
        if self.fork:
            line, page, pid = self.fork_one()
        defaults = (1 << 64) - 1 & ~ignored
        os.pwrite(
            page,
            PAGE.pack(self.serial * 8 + GO, 0, 0, 0, 0, defaults, ignored, 0, 0),
            0,
        )
        socket.send_fds(line, [head + b"".join(steps) + strings], sources)
        deadline = time.monotonic() + TIMEOUT
        while (state := PAGE.unpack(os.pread(page, PAGE.size, 0))[0] % 8) in (
            GO,
            TAKEN,
        ):
            assert time.monotonic() < deadline, state
            time.sleep(0.0002)
        assert state == BECAME, PAGE.unpack(os.pread(page, PAGE.size, 0))
        if self.fork:
            line.close()
            os.close(page)
        return pid

    def run(self, call: Call) -> Finished:
        result = finish(call, lambda theirs: self.ask(call, theirs))
        if not self.fork:
            self.process.returncode = result.status
        return result

    def close(self) -> None:
        self.socket.close()
        os.close(self.page)
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Parked:
        return self

    def __exit__(self, *_) -> None:
        self.close()
