# SPDX-License-Identifier: MIT OR Apache-2.0
"""The owner's half of a parked process, as small as it can be: it speaks warm/main/protocol.h.

`run_warm` and `run_cold` are the two ways to start that the tests compare.
"""

from __future__ import annotations

import array
import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PARKED, CANNOT = range(2)
# Of a request: the states of its claim.
OFFERED, GO, TAKEN, BECAME, FAILED, REFUSED = 0, 1, 3, 4, 5, 6
NO_STEP = (1 << 32) - 1
# Seconds in which a program has ended that does not hang, and a parked process has refused what it does not take.
EVER = 240.0
HEAD = "=10IiIiIII"
# Flags of a request.
FORK = 2
PLACE, CHDIR, UMASK, RLIMIT = 0, 6, 8, 13
# Out of the way of the numbers that Node's own descriptors get.
FIRST_NUMBER = 40


class CannotPark(Exception):
    """The program said why it cannot be parked."""


class Refused(Exception):
    """The parked process cannot be the program asked for: it says so before it does anything."""


@dataclass
class Result:
    stdout: bytes
    stderr: bytes
    # As subprocess has it: an exit code, or a signal's number, negative.
    code: int


def executable_path(name: str, env: Mapping[str, str]) -> str:
    for directory in env.get("PATH", os.defpath).split(":"):
        if os.access(f"{directory}/{name}", os.X_OK):
            return f"{directory}/{name}"
    raise FileNotFoundError(name)


def line() -> tuple[socket.socket, socket.socket, int, mmap.mmap]:
    """What an owner and a parked process have in common: two ends, and a page, open and mapped."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    page = os.memfd_create("page")
    os.ftruncate(page, 4096)
    return ours, theirs, page, mmap.mmap(page, 4096)


@dataclass
class Parked:
    """A program that waits, parked by the object `shim`, to be another of the same executable."""

    program: str
    shim: Path
    flags: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mode: str = "r"
    # argv[0].
    name: str = "node"
    serial: int = 0
    private_bytes: int = 0

    def __post_init__(self) -> None:
        self.socket, theirs, page, self.page = line()
        owner, shim = (
            os.pidfd_open(os.getpid()),
            os.open(self.shim, os.O_RDONLY | os.O_CLOEXEC),
        )
        numbers = [
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_NUMBER)
            for fd in (theirs.fileno(), owner, shim, page)
        ]
        for fd in (owner, shim, page):
            os.close(fd)
        theirs.close()
        identity = os.stat(self.program)
        env = {
            **self.env,
            "LD_PRELOAD": f"/proc/self/fd/{numbers[2]}",
            "SPAWNFD_PARK": ":".join(
                map(str, [*numbers, identity.st_dev, identity.st_ino, "n", self.mode])
            ),
        }
        null = subprocess.DEVNULL
        started = subprocess.Popen(
            [self.name, *self.flags],
            executable=self.program,
            env=env,
            stdin=null,
            stdout=null,
            stderr=null,
            pass_fds=numbers,
        )
        # Waited for by number.
        self.pid, started.returncode = started.pid, 0
        for fd in numbers:
            os.close(fd)
        word, _pid, text = self.receive(self.socket)
        if word == CANNOT:
            os.waitpid(self.pid, 0)
            raise CannotPark(text.decode())
        assert word == PARKED, word
        names, _, files = text.partition(b"\0\0")
        self.variables = names.decode().split("\0")
        self.files = files.rstrip(b"\0").decode().split("\0")

    def receive(self, ours: socket.socket) -> tuple[int, int, bytes]:
        ours.settimeout(EVER)
        message, ancillary, _, _ = ours.recvmsg(1 << 17, 64)
        if not message:
            raise CannotPark(f"it died: {os.waitpid(self.pid, 0)[1]:#x}")
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        for fd in fds:
            os.close(fd)
        _, word, pid, _, private_bytes = struct.unpack_from("=IIiIQ", message)
        self.private_bytes = private_bytes or self.private_bytes
        return word, pid, message[24:]

    def fork_one(self) -> tuple[socket.socket, mmap.mmap, int]:
        """A child that waits as its parent does: its line, and its pid."""
        ours, theirs, page, mapped = line()
        head = struct.pack(HEAD, 1, 0, 0, 2, 0, 0, 0, 0, 0, 1, 3, FORK, -1, 0, 0, 0)
        given = array.array("i", [theirs.fileno(), page])
        self.socket.sendmsg([head + b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
        theirs.close()
        os.close(page)
        word, pid, _ = self.receive(ours)
        assert word == PARKED, word
        return ours, mapped, pid

    def become(
        self,
        argv: Sequence[str | bytes],
        env: Mapping[str, str],
        cwd: str,
        stdio: Sequence[int],
        *,
        umask: int = 0o22,
        limits: Mapping[int, tuple[int, int]] | None = None,
        make_default: int = 0,
        make_ignored: int = 0,
        mask: int = 0,
        keep: Sequence[int] = (),
        refuses: bool = False,
    ) -> int:
        """Makes the parked process, or a child of it, the program; returns its pid.

        `refuses`: it is expected to, and waited for until then.
        """
        self.serial += 1
        arguments = b"".join(os.fsencode(a) + b"\0" for a in argv)
        variables = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in env.items())
        strings = arguments + variables + os.fsencode(cwd) + b"\0"
        steps = [(PLACE, i, fd, 0, 0, 0) for i, fd in enumerate(range(len(stdio)))]
        packed = b"".join(
            struct.pack("=HHiiIQQQ", op, 0, a, b, 0, x, y, 0) for op, b, a, _, x, y in steps
        )
        packed += struct.pack("=HHiiIQQQ", CHDIR, 0, 0, 0, len(arguments) + len(variables), 0, 0, 0)
        packed += struct.pack("=HHiiIQQQ", UMASK, 0, umask, 0, 0, 0, 0, 0)
        for resource, (soft, hard) in (limits or {}).items():
            packed += struct.pack("=HHiiIQQQ", RLIMIT, 0, resource, 0, 0, soft, hard, 0)
        head = struct.pack(
            HEAD,
            1,
            self.serial,
            len(packed) // 40,
            len(stdio),
            len(keep),
            len(argv),
            len(env),
            len(arguments),
            len(variables),
            len(strings),
            max([2, *keep]) + 1,
            *(0, -1, 0, 0, 0),
        )
        message = head + packed + struct.pack(f"={len(keep)}i", *keep) + strings
        ours, page, pid = self.socket, self.page, self.pid
        if self.mode == "f":
            ours, page, pid = self.fork_one()
        # One that refuses is to go on waiting. (A child is not needed again.)
        first = OFFERED if self.mode == "r" else GO
        words = (
            self.serial * 8 + first,
            0,
            0,
            0,
            0,
            make_default,
            make_ignored,
            mask,
            0,
        )
        page[:64] = struct.pack("=QiiQQQQQQ", *words)
        given = array.array("i", stdio)
        ours.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
        if first == OFFERED and not refuses:
            # Nothing is compared here.
            page[0] += GO - OFFERED
        deadline = time.monotonic() + EVER
        while (state := page[0] % 8) in (OFFERED, GO, TAKEN):
            assert time.monotonic() < deadline, state
            time.sleep(0.0002)
        error, index = struct.unpack_from("=iQ", page, 12)
        if self.mode == "f":
            ours.close()
        if state == FAILED:
            os.waitpid(pid, 0)
        # Without a step that it failed at: it has done none.
        if state == REFUSED or (state, index, error) == (FAILED, NO_STEP, errno.EINVAL):
            raise Refused
        assert state == BECAME, (state, index, os.strerror(error))
        return pid

    def close(self) -> None:
        self.socket.close()

    def discard(self) -> None:
        """Ends a parked process that was not used."""
        self.close()
        os.waitpid(self.pid, 0)


def finish(
    pid: int,
    writer: int | None,
    readers: Sequence[int],
    data: bytes,
    timeout: float = EVER,
) -> Result:
    """Feeds and drains a program's pipes, and waits for it."""
    kept = {fd: b"" for fd in readers}
    opened = set(readers)
    deadline = time.monotonic() + timeout
    killer = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
    killer.start()
    if writer is not None:
        feeder = threading.Thread(target=feed, args=(writer, data), daemon=True)
        feeder.start()
    while opened and time.monotonic() < deadline:
        ready, _, _ = select.select(list(opened), [], [], 1)
        for fd in ready:
            block = os.read(fd, 1 << 16)
            kept[fd] += block
            if not block:
                opened.discard(fd)
    _, status = os.waitpid(pid, 0)
    killer.cancel()
    for fd in readers:
        os.close(fd)
    out, err = (kept[fd] for fd in readers)
    return Result(out, err, os.waitstatus_to_exitcode(status))


def feed(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        pass
    os.close(fd)


def pipes() -> tuple[list[int], int, list[int]]:
    """What the child is to have as 0, 1, 2; the end to write to; those to read."""
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = (
        os.pipe() for _ in range(3)
    )
    return [in_read, out_write, err_write], in_write, [out_read, err_read]


def run_cold(
    program: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    data: bytes = b"",
) -> Result:
    done = subprocess.run(
        list(argv),
        executable=program,
        env=dict(env),
        cwd=cwd,
        input=data,
        capture_output=True,
        timeout=EVER,
        umask=0o22,
    )
    return Result(done.stdout, done.stderr, done.returncode)


def run_warm(
    program: str,
    shim: Path,
    flags: Sequence[str],
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    data: bytes = b"",
    parked_env: Mapping[str, str] | None = None,
    mode: str = "r",
) -> Result:
    parked = Parked(program, shim, flags, env if parked_env is None else parked_env, mode)
    try:
        return run_from(parked, argv, env, cwd, data)
    finally:
        parked.close()
        if mode == "f":
            os.waitpid(parked.pid, 0)


def run_from(
    parked: Parked,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    data: bytes = b"",
) -> Result:
    stdio, writer, readers = pipes()
    try:
        pid = parked.become(argv, env, cwd, stdio)
    finally:
        for fd in stdio:
            os.close(fd)
        if parked.mode == "r":
            parked.close()
    return finish(pid, writer, readers, data)
