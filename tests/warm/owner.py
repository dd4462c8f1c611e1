# SPDX-License-Identifier: MIT OR Apache-2.0
"""An owner of parked processes that does not use the library.

It sends the messages of protocol.py itself. The suites for Python and Node.js use it to start each
program cold and from a parked process, and compare the outcomes.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protocol import (
    ARGUMENT_BITS,
    CLAIM_STATES,
    ENTRY_VARIABLE,
    FIRST_DESCRIPTOR,
    FLAG_FORK,
    MAX_MESSAGE,
    NO_SOURCE,
    PAGE_SIZE,
    PARK_VARIABLE,
    PRELOAD_VARIABLE,
    REPORT_STAGE_SHIFT,
    VERSION,
    Argument,
    Claim,
    ForkSource,
    Kind,
    Mode,
    Op,
    Page,
    ParkField,
    Reply,
    ReplyKind,
    Request,
    Stage,
    Step,
)

ROOT = Path(__file__).resolve().parents[2]
# Seconds until a program, or a parked process that does not answer, is treated as hanging.
TIMEOUT = 240.0
# System call numbers.
CHDIR, UMASK, DUP3, PRLIMIT64 = {
    "x86_64": (80, 95, 292, 302),
    "aarch64": (49, 166, 24, 261),
}[os.uname().machine]
# The lowest number for the owner's descriptors in the parked process. Node.js opens descriptors
# before it parks, and these must get the same numbers as in a cold start.
FIRST_NUMBER = {Kind.MAIN: 3, Kind.PYTHON: 3, Kind.NODE: 40}


class CannotPark(Exception):
    """The program reported why it cannot park, or died."""


class Refused(Exception):
    """The parked process refused a request, and did nothing."""


def build(made: Path, *parts: str) -> Path:
    """Compiles the object that is preloaded, from these folders of crates/spawnfd-parked."""
    directories = [ROOT / "crates/spawnfd-parked" / part for part in parts]
    sources = [str(source) for part in directories for source in sorted(part.glob("*.c"))]
    flags = "-std=c11 -O2 -fPIC -shared -fvisibility=hidden -Wl,-z,initfirst -Wall -Wextra -Werror"
    command = ["cc", *flags.split(), *(f"-I{part}" for part in directories)]
    subprocess.run([*command, "-o", str(made), *sources, "-ldl"], check=True, timeout=TIMEOUT)
    return made


def connection() -> tuple[socket.socket, socket.socket, int, mmap.mmap]:
    """Both ends of a socket pair, and the shared page's descriptor and mapping."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(TIMEOUT)
    page = os.memfd_create("page")
    os.ftruncate(page, PAGE_SIZE)
    return ours, theirs, page, mmap.mmap(page, PAGE_SIZE)


def receive(ours: socket.socket) -> tuple[Reply, bytes]:
    """Receives a reply and its text. Raises EOFError if the process closed its end."""
    data, fds, _, _ = socket.recv_fds(ours, MAX_MESSAGE, 1)
    for fd in fds:
        os.close(fd)
    if not data:
        raise EOFError
    return Reply.unpack(data), data[Reply.SIZE :]


Some = TypeVar("Some", bound="Parked")


class Parked:
    """A process that waits to become a program of the same executable."""

    def __init__(
        self,
        kind: Kind,
        preloaded: Path,
        executable: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        mode: Mode = Mode.RESERVE,
        preload: str = "",
        entry: str = "",
        ignored: Sequence[int] = (),
    ) -> None:
        """Starts the program, and waits until it is parked.

        `preload`: modules to import before parking. `entry`: the script, or "-m" and a module,
        whose imports are made before parking. `ignored`: signals that the process ignores.
        """
        self.forks = mode is Mode.FORK
        self.serial = 0
        # True if the parked process itself has become a program, or has failed to.
        self.is_used = False
        self.socket, theirs, page, self.page = connection()
        opened = {
            ParkField.SOCKET: theirs.detach(),
            ParkField.OWNER: os.pidfd_open(os.getpid()),
            ParkField.OBJECT: os.open(preloaded, os.O_RDONLY | os.O_CLOEXEC),
            ParkField.PAGE: page,
        }
        given = {
            field: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_NUMBER[kind])
            for field, fd in opened.items()
        }
        identity = os.stat(executable)
        fields = {
            **given,
            ParkField.DEVICE: identity.st_dev,
            ParkField.INODE: identity.st_ino,
            ParkField.KIND: chr(kind),
            ParkField.MODE: chr(mode),
        }
        env = {
            **env,
            **({PRELOAD_VARIABLE: preload} if preload else {}),
            **({ENTRY_VARIABLE: entry} if entry else {}),
            PARK_VARIABLE: ":".join(str(value) for _, value in sorted(fields.items())),
            "LD_PRELOAD": f"/proc/self/fd/{given[ParkField.OBJECT]}",
        }
        before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
        started = subprocess.Popen(
            list(argv),
            executable=executable,
            # Without this argument, Popen would restore SIGPIPE and SIGXFSZ.
            restore_signals=not ignored,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=list(given.values()),
        )
        # This class reaps the process by its pid.
        self.pid, started.returncode = started.pid, 0
        for number, handler in before.items():
            signal.signal(number, handler)
        for fd in (*opened.values(), *given.values()):
            os.close(fd)
        try:
            reply, text = receive(self.socket)
        except EOFError:
            raise CannotPark(f"it died: {self.discard():#x}") from None
        if reply.kind == ReplyKind.CANNOT:
            self.discard()
            raise CannotPark(text.decode())
        assert (reply.version, reply.kind, reply.pid) == (VERSION, ReplyKind.PARKED, self.pid)
        # Each list ends with an empty string. The status and the security label follow.
        strings = iter(text.split(b"\0"))
        self.variables, self.files, self.modules = (
            [os.fsdecode(name) for name in iter(strings.__next__, b"")] for _ in range(3)
        )
        self.status = next(strings).decode(errors="replace")
        self.private_bytes = reply.private_bytes

    def fork_child(self) -> tuple[socket.socket, mmap.mmap, int]:
        """Makes the process fork a parked child. Returns the child's socket, page and pid."""
        ours, theirs, page, mapped = connection()
        head = Request(
            version=VERSION,
            sources=len(ForkSource),
            strings=1,
            above=FIRST_DESCRIPTOR,
            flags=FLAG_FORK,
            program=NO_SOURCE,
        )
        given = {ForkSource.SOCKET: theirs.detach(), ForkSource.PAGE: page}
        socket.send_fds(self.socket, [head.pack() + b"\0"], [given[one] for one in ForkSource])
        for fd in given.values():
            os.close(fd)
        reply, _ = receive(ours)
        assert reply.kind == ReplyKind.PARKED, reply
        return ours, mapped, reply.pid

    def become(
        self,
        argv: Sequence[str | bytes],
        env: Mapping[str, str],
        cwd: str,
        descriptors: Sequence[int] | Mapping[int, int | None],
        *,
        umask: int | None = 0o22,
        limits: Mapping[int, tuple[int, int]] | None = None,
        make_default: int = 0,
        make_ignored: int = 0,
        mask: int = 0,
        keep: Sequence[int] = (),
        refuses: bool = False,
    ) -> int:
        """Makes the parked process, or a forked child, become the program. Returns its pid.

        `descriptors`: the program's descriptors 0, 1, 2, or by number. None means closed.
        `refuses`: the process must refuse before it gets Claim.GO.
        """
        self.serial += 1
        arguments = b"".join(os.fsencode(word) + b"\0" for word in argv)
        variables = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in env.items())
        strings = arguments + variables + os.fsencode(cwd) + b"\0"
        steps: list[Step] = []
        sources: list[int] = []
        by_number = (
            descriptors if isinstance(descriptors, Mapping) else dict(enumerate(descriptors))
        )
        for number, fd in by_number.items():
            if fd is None:
                steps.append(Step(op=Op.CLOSE_RANGE, x=number, y=number))
            else:
                kind = Argument.SOURCE
                steps.append(Step(op=Op.CALL, a=DUP3, b=kind, x=len(sources), y=number))
                sources.append(fd)
        at = len(arguments) + len(variables)
        kind = Argument.TEXT
        steps.append(Step(op=Op.CALL, a=CHDIR, b=kind, x=at, text=len(strings) - at))
        if umask is not None:
            steps.append(Step(op=Op.CALL, a=UMASK, x=umask))
        kind = Argument.DATA << 2 * ARGUMENT_BITS
        for resource, (soft, hard) in (limits or {}).items():
            # The kernel needs unsigned numbers, but Python's RLIM_INFINITY is -1.
            soft, hard = soft % 2**64, hard % 2**64
            steps.append(Step(op=Op.CALL, a=PRLIMIT64, b=kind, y=resource, z=soft, w=hard))
        head = Request(
            version=VERSION,
            serial=self.serial,
            steps=len(steps),
            sources=len(sources),
            keep=len(keep),
            argc=len(argv),
            envc=len(env),
            argv_length=len(arguments),
            env_length=len(variables),
            strings=len(strings),
            above=max([FIRST_DESCRIPTOR - 1, *keep]) + 1,
            program=NO_SOURCE,
        )
        parts = [
            head.pack(),
            *(step.pack() for step in steps),
            struct.pack(f"={len(keep)}i", *keep),
        ]
        ours, page, pid = self.fork_child() if self.forks else (self.socket, self.page, self.pid)
        # If the process refuses before Claim.GO, it waits for the next request.
        first = Claim.GO if self.forks else Claim.OFFERED
        found = Page(
            claim=self.serial * CLAIM_STATES + first,
            make_default=make_default,
            make_ignored=make_ignored,
            mask=mask,
        )
        page[: Page.SIZE] = found.pack()
        socket.send_fds(ours, [*parts, strings], sources)
        claim = memoryview(page)[:8].cast("Q")
        if first is Claim.OFFERED and not refuses:
            # The library would now compare its own state with the process's. This owner does not.
            claim[0] += Claim.GO - Claim.OFFERED
        deadline = time.monotonic() + TIMEOUT
        while (state := Claim(claim[0] % CLAIM_STATES)) in (Claim.OFFERED, Claim.GO, Claim.TAKEN):
            assert time.monotonic() < deadline, state
            time.sleep(0.0002)
        found = Page.unpack(page[:])
        if self.forks:
            ours.close()
        self.is_used = not self.forks and state in (Claim.BECAME, Claim.FAILED)
        if state is Claim.FAILED:
            os.waitpid(pid, 0)
        stage, error = found.report >> REPORT_STAGE_SHIFT, found.report & 0xFFFF
        refused_late = (state, stage, error) == (Claim.FAILED, Stage.DESCRIPTORS, errno.EINVAL)
        if state is Claim.REFUSED or refused_late:
            raise Refused
        assert state is Claim.BECAME, (state, hex(found.report), os.strerror(error))
        return pid

    def close(self) -> None:
        """Closes the socket. A parked process then reads end of file, and exits."""
        self.socket.close()

    def discard(self) -> int:
        """Ends a parked process that has not become a program. Returns its wait status."""
        self.close()
        return reap(self.pid, TIMEOUT)

    def __enter__(self: Some) -> Some:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_used:
            self.close()
        else:
            self.discard()


# --- a running program ----------------------------------------------------------------------------


@dataclass
class Result:
    # The wait status of waitpid().
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def code(self) -> int:
        """The exit code, or the negative signal number."""
        return os.waitstatus_to_exitcode(self.status)


def reap(pid: int, timeout: float) -> int:
    """Waits for a process, and kills it after the timeout. Returns its wait status."""
    pidfd = os.pidfd_open(pid)
    if not select.select([pidfd], [], [], max(timeout, 0))[0]:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    return os.waitpid(pid, 0)[1]


def collect(
    pid: int,
    outputs: Mapping[int, int],
    *,
    writer: int | None = None,
    data: bytes = b"",
    interrupt: bool = False,
) -> Result:
    """Writes a program's input, reads its output, and reaps it.

    `outputs`: the pipe ends to read, by the program's descriptor number.
    `interrupt`: send SIGINT after the program's first line of output.
    """
    output = {1: b"", 2: b""}
    opened = dict(outputs)
    deadline = time.monotonic() + TIMEOUT
    if writer is not None:
        threading.Thread(target=feed, args=(writer, data), daemon=True).start()
    while opened:
        ready = select.select(list(opened.values()), [], [], max(0, deadline - time.monotonic()))[0]
        if not ready:
            break
        for number, fd in list(opened.items()):
            if fd not in ready:
                continue
            try:
                block = os.read(fd, 1 << 16)
            except OSError:  # EIO: no process has the terminal open any more
                block = b""
            output[number] += block
            if not block:
                del opened[number]
        if interrupt and b"\n" in output[1]:
            interrupt = False
            os.kill(pid, signal.SIGINT)
    return Result(reap(pid, deadline - time.monotonic()), output[1], output[2])


def feed(fd: int, data: bytes) -> None:
    """Writes the data until the reader closes its end, and closes the descriptor."""
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]
    os.close(fd)
