# SPDX-License-Identifier: MIT OR Apache-2.0
"""The parts that differ between POSIX and Windows: processes, their groups, and their pipes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import socket
    import subprocess

IS_WINDOWS = sys.platform == "win32"

# Windows has no SIGKILL, but this number stands for it in the arguments of users.
TERM, KILL = 15, 9

# How long the search for the processes of a group may take, in seconds.
_SEARCH_TIMEOUT = 5.0


class Member(NamedTuple):
    """A process of a program's group."""

    pid: int
    name: str


class Process:
    """A started program, and its process group.

    Attributes:
        pid: The process id, which is the id of the group, too.
        returncode: The exit code, or -N for signal N; None while it runs, and if it is lost.
        status_lost: Whether other code has reaped the program.
        cpu: Seconds of user and system time, once the program has ended.
        max_rss: The largest resident set in bytes, once the program has ended.
    """

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.returncode: int | None = None
        self.status_lost = self.ended = self._group_is_gone = False
        self.cpu, self.max_rss = 0.0, 0

    def poll(self) -> bool:
        """Reaps the program if it has ended. Returns whether it has."""
        if not self.ended:
            self.ended = self._poll_windows() if IS_WINDOWS else self._poll_posix()
        return self.ended

    def _poll_posix(self) -> bool:
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            # Another process may have this pid now, and may lead a group of its own.
            self.status_lost = self._group_is_gone = True
            # Keeps Popen from waiting for a process that may have this pid now.
            self._popen.returncode = 0
            return True
        if pid == 0:
            return False
        self.returncode = self._popen.returncode = os.waitstatus_to_exitcode(status)
        self.cpu = usage.ru_utime + usage.ru_stime
        # macOS counts bytes, other systems KiB.
        self.max_rss = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return True

    def _poll_windows(self) -> bool:
        self.returncode = self._popen.poll()
        return self.returncode is not None

    def signal(self, number: int) -> bool:
        """Sends a signal to the program if it runs. Returns False if the system refuses it."""
        if self.ended:
            return True
        try:
            if not IS_WINDOWS:
                os.kill(self.pid, number)
            elif number == signal.SIGINT:
                # The one signal that Windows can send to a group.
                self._popen.send_signal(signal.CTRL_BREAK_EVENT)  # type: ignore[attr-defined]
            else:
                self._popen.terminate()
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        return True

    def signal_group(self, number: int) -> bool:
        """Sends a signal to all processes of the group. Returns False if the system refuses it."""
        if IS_WINDOWS:
            return self.signal(number)
        self.poll()
        if not self.has_group():
            return True
        try:
            os.killpg(self.pid, number)
            if number == TERM:
                # A stopped process reads the signal only once it continues.
                os.killpg(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            self._group_is_gone = self.ended
        except PermissionError:
            return False
        return True

    def has_group(self) -> bool:
        """Whether a process of the group may exist."""
        if IS_WINDOWS or self._group_is_gone:
            return False
        if not self.ended:
            return True
        # The system gives the number of a group to no process while the group has one. So if a
        # process has this number now, the group is gone.
        self._group_is_gone = _exists(os.kill, self.pid) or not _exists(os.killpg, self.pid)
        return not self._group_is_gone

    def members(self) -> list[Member] | None:
        """Returns the processes of the group, except the program. None: the search failed."""
        if IS_WINDOWS or self.status_lost:
            return None
        if not self.has_group():
            return []
        import subprocess

        # No system call lists a group. ps of Linux, macOS and the BSDs has these columns.
        command = ["ps", "-A", "-o", "pid=", "-o", "pgid=", "-o", "stat=", "-o", "comm="]
        try:
            listed = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SEARCH_TIMEOUT,
                check=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except Exception:
            # There is no ps, no process can be started, or an audit hook refuses the start.
            return None
        found: list[Member] = []
        for line in listed.stdout.decode(errors="surrogateescape").splitlines():
            pid, group, state, name = [*line.split(None, 3), "", "", "", ""][:4]
            if group == str(self.pid) and int(pid) != self.pid and not state.startswith("Z"):
                found.append(Member(int(pid), os.path.basename(name.strip())))
        return found


def _exists(kill: Callable[[int, int], None], number: int) -> bool:
    """Whether there is a process or a group with this number."""
    try:
        kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A process with other user ids. On macOS also: a group that has only zombies.
        return True
    return True


def session_options() -> dict[str, Any]:
    """Returns the options of Popen that give the program a process group of its own."""
    if IS_WINDOWS:
        import subprocess

        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined]
    return {"start_new_session": True}


def directory_path(fd: int) -> str | None:
    """Returns the path of an open directory; None if the system does not tell it."""
    if sys.platform == "linux":
        return os.readlink(f"/proc/self/fd/{fd}")
    if sys.platform == "darwin":
        import fcntl

        path = fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024))
        return os.fsdecode(path.rstrip(b"\0"))
    return None


def block_signals() -> None:
    """Keeps signals from the calling thread, so that they interrupt another one."""
    if not IS_WINDOWS:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def unblock_signals() -> None:
    """Lets a program that the calling thread starts get all signals."""
    if not IS_WINDOWS:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])


class OutputPipe:
    """A pipe from the program. A selector can watch it, and reads do not block."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._relay = _OutputRelay(pipe) if IS_WINDOWS else None
        if self._relay is None:
            os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        return self._pipe.fileno() if self._relay is None else self._relay.fileno()

    def read(self, most: int) -> bytes | None:
        """Reads once. b"": the end of the output. None: there is nothing to read now."""
        try:
            if self._relay is None:
                return os.read(self._pipe.fileno(), most)
            return self._relay.read(most)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def close(self) -> None:
        if self._relay is None:
            self._pipe.close()
        else:
            self._relay.close()


class InputPipe:
    """A pipe to the program. A selector can watch it, and writes do not block."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._relay = _InputRelay(pipe) if IS_WINDOWS else None
        if self._relay is None:
            os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        return self._pipe.fileno() if self._relay is None else self._relay.fileno()

    def write(self, data: bytes | memoryview) -> int:
        """Writes once, and returns the number of bytes; 0 if the pipe is full.

        Raises:
            OSError: The program reads no more.
        """
        try:
            if self._relay is None:
                return os.write(self._pipe.fileno(), data)
            return self._relay.write(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
            return
        with suppress(OSError):
            self._pipe.close()


# A selector of Windows watches sockets only, so a thread copies between a pipe and a socket. The
# thread ends with the pipe, which another process may keep open.


def _relay_sockets() -> tuple[socket.socket, socket.socket]:
    import socket

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


class _OutputRelay:
    """Copies from a pipe of the program to a socket."""

    def __init__(self, pipe: IO[bytes]) -> None:
        import threading

        self._pipe = pipe
        self._ours, self._theirs = _relay_sockets()
        threading.Thread(target=self._copy, name="spawnfd-output", daemon=True).start()

    def _copy(self) -> None:
        with self._theirs, self._pipe, suppress(OSError):
            while data := os.read(self._pipe.fileno(), 1 << 16):
                self._theirs.sendall(data)

    def fileno(self) -> int:
        return self._ours.fileno()

    def read(self, most: int) -> bytes:
        return self._ours.recv(most)

    def close(self) -> None:
        self._ours.close()


class _InputRelay:
    """Copies from a socket to a pipe of the program."""

    def __init__(self, pipe: IO[bytes]) -> None:
        import threading

        self._pipe = pipe
        self._ours, self._theirs = _relay_sockets()
        threading.Thread(target=self._copy, name="spawnfd-input", daemon=True).start()

    def _copy(self) -> None:
        with self._theirs, suppress(OSError), self._pipe:
            while data := self._theirs.recv(1 << 16):
                left = memoryview(data)
                while left:
                    left = left[os.write(self._pipe.fileno(), left) :]

    def fileno(self) -> int:
        return self._ours.fileno()

    def write(self, data: bytes | memoryview) -> int:
        return self._ours.send(data)

    def close(self) -> None:
        self._ours.close()
