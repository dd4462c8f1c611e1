# SPDX-License-Identifier: MIT OR Apache-2.0
"""A parked process dies, gets no messages or no memory, at a certain step of a start.

The library then starts the program cold, and the result is right.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from call_numbers import numbers
from conftest import running
from patience import TIMEOUT_S, eventually, in_background
from spawnfd.actions import NoNewPrivs, Open, Seccomp
from warm_cases import refusal_with
from warm_programs import with_library
from warm_support import (
    FILL_S,
    FOR_ANY,
    Mode,
    Way,
    add,
    each_mode,
    each_way,
    new_warm,
    output_of,
    retry_if_slow,
)

WORDS = ["sh", "-c", "echo $0; exit 7", "word"]
FORKING: tuple[Way, ...] = ("fork", "zygote")
SYS_MMAP, SYS_CLONE, SYS_PRCTL, SYS_DUP3, SYS_SETGROUPS = numbers(
    "mmap", "clone", "prctl", "dup3", "setgroups"
)
KILLED = ("cold: died", "cold: empty")
# A start that was too slow did not reach the step that fails. The test tries it again.
SLOW = "cold: slow"
ATTEMPTS = 10


def control_sockets() -> dict[int, int]:
    """Returns the descriptors of the open SOCK_SEQPACKET sockets, by inode."""
    found: dict[int, int] = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                with socket.socket(fileno=os.dup(number)) as end:
                    if (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                        found[os.fstat(number).st_ino] = number
    return found


def fill_up(number: int) -> int:
    """Fills a socket's queue. Returns how many messages it took."""
    with socket.socket(fileno=os.dup(number)) as end:
        for count in range(1 << 20):
            try:
                end.send(b"x", socket.MSG_DONTWAIT)
            except BlockingIOError:
                return count
    raise AssertionError("the socket never became full")


def checked_start(result: sf.Result) -> str:
    """Asserts that the result is right. Returns how the program was started."""
    assert (result.code, result.stdout, result.stderr) == (7, b"word\n", b"")
    return result.started


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")


def run(warm: sf.Warm, **options: Any) -> sf.Result:
    return sf.run(WORDS, warm=warm, timeout=TIMEOUT_S, **options)


def is_warm_again(warm: sf.Warm, way: Way, **options: Any) -> bool:
    def is_now() -> bool:
        warm.fill(5)
        return checked_start(run(warm, **options)) == way

    return eventually(is_now)


def without_slow_starts(attempt: Callable[[], list[str]]) -> list[str]:
    """Repeats the attempt until no start was too slow. Returns how the starts were made."""
    found = [SLOW]
    for _ in range(ATTEMPTS):
        if SLOW not in (found := attempt()):
            break
    return found


@each_way
def test_full_socket_starts_cold(way: Way) -> None:
    """The parked process is stopped, and its socket takes no further message."""
    before, pids_before = control_sockets(), set(running())
    with new_warm(way, delay=60) as warm:
        add(warm, way, "sh", 1)
        assert warm.fill(FILL_S)
        for pid in set(running()) - pids_before:
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        own = [number for inode, number in control_sockets().items() if inode not in before]
        assert len(own) == (2 if way in FORKING else 1)
        assert all(fill_up(number) for number in own)
        assert checked_start(run(warm)) == "cold: socket"
        # The process that forks the others gets no message either.
        again = checked_start(run(warm))
        assert again == ("cold: socket" if way in FORKING else "cold: empty")
        assert is_warm_again(warm, way)


@pytest.fixture
def gates(tmp_path: Path) -> list[Path]:
    for name in ("first", "second"):
        os.mkfifo(tmp_path / name)
    return [tmp_path / "first", tmp_path / "second"]


def open_for(gate: Path, done: threading.Event) -> int | None:
    """Opens a FIFO for writing once it has a reader. Returns None if `done` is set first."""
    while not done.wait(0.001):
        with suppress(OSError):
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    return None


@each_way
def test_killed_between_two_actions(way: Way, gates: list[Path]) -> None:
    """The process is killed after its first action and before its second."""
    assert any(is_killed_between_two_actions(way, *gates) for _ in range(ATTEMPTS))


def is_killed_between_two_actions(way: Way, first: Path, second: Path) -> bool:
    """Returns whether the process was killed in time. If not, the machine was too slow."""
    done = threading.Event()
    with new_warm(way, delay=60) as warm:
        before = set(running())
        add(warm, way, "sh", 1)
        assert warm.fill(FILL_S)
        # The process with the highest pid is not the one that forks the others.
        pid = max(set(running()) - before)

        pidfd = os.pidfd_open(pid)

        def kill() -> None:
            ends = [open_for(first, done)]
            os.kill(pid, signal.SIGKILL)
            select.select([pidfd], [], [])
            # The cold start opens this FIFO too.
            ends.append(open_for(second, done))
            for end in (*ends, pidfd):
                if end is not None:
                    os.close(end)

        actions = [Open(first, 8), Open(second, 9)]
        with in_background(kill):
            try:
                with warm.spawn(WORDS, actions=actions, stdout="pipe") as child:
                    assert child.stdout is not None
                    assert (child.stdout.read(), child.wait()) == (b"word\n", 7)
                    found = child.started
            except sf.SpawnError as error:
                # The error is the same as for a cold child that is killed before exec, after some
                # of its actions.
                found = error.stage
            finally:
                done.set()
        if found == SLOW:
            return False
        assert found == ("killed" if way in FOR_ANY else "cold: died")
        assert is_warm_again(warm, way)
    return True


# This library kills its process in a fork handler while the file exists.
DIES = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static void die(void) { if (!access(TROUBLE, F_OK)) kill(getpid(), SIGKILL); }
EARLY void early(void) { pthread_atfork(HANDLERS); }
int late(void) { puts("word"); return 7; }
"""
MOMENTS = {
    "before the clone": "die, NULL, NULL",
    "in the child": "NULL, NULL, die",
    "after the clone": "NULL, die, NULL",
}


@pytest.mark.parametrize("handlers", MOMENTS.values(), ids=MOMENTS)
def test_killed_around_the_clone(handlers: str, tmp_path: Path) -> None:
    """The process that forks the others dies, or the new child dies."""
    trouble = tmp_path / "trouble"
    flags = [f'-DTROUBLE="{trouble}"', f"-DHANDLERS={handlers}"]
    program = with_library(tmp_path / "program", DIES, *flags)
    with sf.Warm(mode="fork", delay=60) as warm:
        warm.add(program, depth=1)
        assert warm.fill(FILL_S), warm.stats()

        def found() -> list[str]:
            # The parent may still be in its fork handler when its child reports.
            assert eventually(lambda: all(is_asleep(pid) for pid in running()))
            trouble.touch()
            # No process is parked for the second start, so one more is forked.
            started = [checked_start(warm.run([program])) for _ in range(2)]
            trouble.unlink()
            assert warm.fill(FILL_S), warm.stats()
            return started

        after = "fork" if handlers == MOMENTS["after the clone"] else "cold: died"
        assert without_slow_starts(found) == ["fork", after]
        for _ in range(2):
            assert checked_start(retry_if_slow(warm, lambda: warm.run([program]))) == "fork"
            assert warm.fill(FILL_S), warm.stats()


# This script is an owner under a filter. All its parked processes inherit the filter.
UNDER = """
from warm_cases import install_filter
way = sys.argv[2]
install_filter(bytes.fromhex(sys.argv[3]))
warm = new_warm(way)
add(warm, way, "sh", 1)
full = warm.fill(float(sys.argv[4]))
for _ in range(3):
    result = sf.run(["sh", "-c", "echo $0; exit 7", "word"], warm=warm, timeout=60)
    assert (result.code, result.stdout, result.stderr) == (7, b"word\\n", b""), result
    print(full, result.started)
warm.close()
eventually(lambda: not children())
print(len(children()))
"""
PR_SET_DUMPABLE, O_CLOEXEC = 4, 0o2000000
ALL, PART_OF_PAGE = 0xFFFF_FFFF, 0xFFF
# This filter matches clone(2) with CLONE_PARENT. Only a parked process that forks children makes
# this call.
WITH_CLONE_PARENT = (0, 0x8000, 0x8000)


@each_way
def test_killed_before_it_reports_that_it_is_parked(way: Way) -> None:
    """The process is killed when it makes itself undumpable, the last step of parking."""
    filter = refusal_with(SYS_PRCTL, (0, ALL, PR_SET_DUMPABLE), (1, ALL, 0))
    found = output_of(UNDER, way, filter.hex(), str(FILL_S))
    assert found == "False cold: not parked\n" * 3 + "0\n"


@pytest.mark.parametrize("way", FORKING)
@pytest.mark.parametrize("error", [None, errno.ENOMEM], ids=["killed", "no memory"])
def test_fork_of_a_parked_process_fails(error: int | None, way: Way) -> None:
    """The new child is killed when it moves its socket, or the clone gets ENOMEM."""
    filter = refusal_with(SYS_CLONE, WITH_CLONE_PARENT, error=error)
    if error is None:
        filter = refusal_with(SYS_DUP3, (2, ALL, O_CLOEXEC))
    *runs, left = output_of(UNDER, way, filter.hex(), "3").splitlines()
    assert set(runs) <= {f"False {reason}" for reason in KILLED}
    assert (len(runs), left) == (3, "0")


@pytest.mark.parametrize("way", FORKING)
def test_forking_process_has_no_memory(way: Way) -> None:
    """RLIMIT_AS keeps the address space of the process that forks the others from growing."""

    def found() -> list[str]:
        with new_warm(way, delay=60) as warm:
            before = set(running())
            add(warm, way, "sh", 1)
            assert warm.fill(FILL_S)
            first = min(set(running()) - before)
            hard = resource.prlimit(first, resource.RLIMIT_AS)[1]
            resource.prlimit(first, resource.RLIMIT_AS, (1, hard))
            started = [checked_start(run(warm)) for _ in range(2)]
            assert is_warm_again(warm, way)
            return started

    assert without_slow_starts(found) == [way, "cold: died"]


def test_parked_process_has_no_memory_for_the_request() -> None:
    """Only a process in a sandbox needs memory for a request: it keeps its own environment."""
    box = sf.Sandbox(["env", "ADDED=1"])

    def found() -> list[str]:
        with sf.Warm(delay=60) as warm:
            before = set(running())
            warm.add("sh", sandbox=box, depth=1)
            assert warm.fill(FILL_S), warm.stats()
            # The guard of process trees may have started too, but before the parked process.
            pid = max(set(running()) - before)
            hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
            resource.prlimit(pid, resource.RLIMIT_AS, (1, hard))
            started = checked_start(run(warm, sandbox=box))
            assert is_warm_again(warm, "reserve", sandbox=box)
            return [started]

    assert without_slow_starts(found) == ["cold: died"]


MAP_SHARED_POPULATED, MAP_OVER = 0x8001, 0x32
NO_MEMORY = {
    # The page that the parked process shares with its owner.
    "not parked": [(1, ALL, 4096), (3, ALL, MAP_SHARED_POPULATED)],
    # Anonymous memory replaces small files of a locale. libc's mappings here are no whole pages.
    "memory": [(1, PART_OF_PAGE, 0), (3, ALL, MAP_OVER)],
}


@each_mode
@pytest.mark.parametrize("reason", NO_MEMORY)
def test_no_memory_while_parking(reason: str, mode: Mode) -> None:
    filter = refusal_with(SYS_MMAP, *NO_MEMORY[reason], error=errno.ENOMEM)
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    argv = ["sort", "/dev/null"]
    actions = [NoNewPrivs(), Seccomp(filter)]
    assert sf.run(argv, env=env, actions=actions).code == 0
    with sf.Warm(mode=mode) as warm:
        warm.add("sort", depth=1, env=env, no_new_privs=True, seccomp=filter)
        assert not warm.fill(FILL_S)
        result = warm.run(argv, env=env, actions=actions)
        assert (result.code, result.started) == (0, f"cold: {reason}")
