# SPDX-License-Identifier: MIT OR Apache-2.0
"""A parked process dies, hears nothing or gets no memory, at a certain moment.

The call is made cold, and is answered right.
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
from conftest import running
from patience import TIMEOUT_S, eventually
from spawnfd.actions import NoNewPrivs, Open, Seccomp
from warm_cases import refusal_with
from warm_programs import with_library
from warm_support import (
    ANY,
    FILL_S,
    Mode,
    Way,
    add,
    each_mode,
    each_way,
    told,
    unless_slow,
    warm_of,
)

WORDS = ["sh", "-c", "echo $0; exit 7", "word"]
FORKING: tuple[Way, ...] = ("fork", "zygote")
# x86_64.
SYS_MMAP, SYS_CLONE, SYS_PRCTL, SYS_DUP3, SYS_SETGROUPS = 9, 56, 157, 292, 116
KILLED = ("cold: died", "cold: empty")
# A machine that lets something wait for too long has kept it from going wrong: it is tried again.
SLOW = "cold: slow"
ATTEMPTS = 10


def lines() -> dict[int, int]:
    """The sockets of this kind that are open, by inode."""
    found: dict[int, int] = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                with socket.socket(fileno=os.dup(number)) as end:
                    if (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                        found[os.fstat(number).st_ino] = number
    return found


def fill_up(number: int) -> int:
    """How many messages a socket has taken until it takes no more."""
    with socket.socket(fileno=os.dup(number)) as end:
        for count in range(1 << 20):
            try:
                end.send(b"x", socket.MSG_DONTWAIT)
            except BlockingIOError:
                return count
    raise AssertionError("it takes all")


def answered(result: sf.Result) -> str:
    """How it was started, if it was answered right."""
    assert (result.code, result.stdout, result.stderr) == (7, b"word\n", b"")
    return result.started


def run(warm: sf.Warm, **options: Any) -> sf.Result:
    return sf.run(WORDS, warm=warm, timeout=TIMEOUT_S, **options)


def is_warm_again(warm: sf.Warm, way: Way, **options: Any) -> bool:
    def is_now() -> bool:
        warm.fill(5)
        return answered(run(warm, **options)) == way

    return eventually(is_now)


def found_in_time(attempt: Callable[[], list[str]]) -> list[str]:
    """How starts were made, none of which was too slow."""
    found = [SLOW]
    for _ in range(ATTEMPTS):
        if SLOW not in (found := attempt()):
            break
    return found


@each_way
def test_its_socket_is_full(way: Way) -> None:
    """It stands still, and there is no room for a message."""
    before, pids_before = lines(), set(running())
    with warm_of(way, delay=60) as warm:
        add(warm, way, "sh", 1)
        assert warm.fill(FILL_S)
        for pid in set(running()) - pids_before:
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        own = [number for inode, number in lines().items() if inode not in before]
        assert len(own) == (2 if way in FORKING else 1)
        assert all(fill_up(number) for number in own)
        assert answered(run(warm)) == "cold: socket"
        # The one that others are forked from hears nothing either.
        again = answered(run(warm))
        assert again == ("cold: socket" if way in FORKING else "cold: empty")
        assert is_warm_again(warm, way)


@pytest.fixture
def gates(tmp_path: Path) -> list[Path]:
    for name in ("first", "second"):
        os.mkfifo(tmp_path / name)
    return [tmp_path / "first", tmp_path / "second"]


def open_for(gate: Path, done: threading.Event) -> int | None:
    """The other end of a FIFO, once somebody waits for it; None: nobody will."""
    while not done.wait(0.001):
        with suppress(OSError):
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    return None


@each_way
def test_it_is_killed_on_the_way(way: Way, gates: list[Path]) -> None:
    """It has done the first of its steps, and not the last."""
    assert any(is_killed_on_the_way(way, *gates) for _ in range(ATTEMPTS))


def is_killed_on_the_way(way: Way, first: Path, second: Path) -> bool:
    """Whether it was; else the machine was too slow."""
    done = threading.Event()
    with warm_of(way, delay=60) as warm:
        before = set(running())
        add(warm, way, "sh", 1)
        assert warm.fill(FILL_S)
        # The last to come is not the one that others are forked from.
        pid = max(set(running()) - before)

        pidfd = os.pidfd_open(pid)

        def kill() -> None:
            ends = [open_for(first, done)]
            os.kill(pid, signal.SIGKILL)
            select.select([pidfd], [], [])
            # A cold start comes here, too.
            ends.append(open_for(second, done))
            for end in (*ends, pidfd):
                if end is not None:
                    os.close(end)

        thread = threading.Thread(target=kill)
        thread.start()
        actions = [Open(first, 8), Open(second, 9)]
        try:
            with warm.spawn(WORDS, actions=actions, stdout="pipe") as child:
                assert child.stdout is not None
                assert (child.stdout.read(), child.wait()) == (b"word\n", 7)
                found = child.started
        except sf.SpawnError as error:
            # As a child that is killed before its exec: some of it has been done.
            found = error.stage
        finally:
            done.set()
            thread.join()
        if found == SLOW:
            return False
        assert found == ("killed" if way in ANY else "cold: died")
        assert is_warm_again(warm, way)
    return True


# As another is forked from it, while that file is there.
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
    "the child": "NULL, NULL, die",
    "after the clone": "NULL, die, NULL",
}


@pytest.mark.parametrize("handlers", MOMENTS.values(), ids=MOMENTS)
def test_it_is_killed_between_clone_and_reply(handlers: str, tmp_path: Path) -> None:
    """What others are forked from, or the child: then there is none, or it is the owner's own."""
    trouble = tmp_path / "trouble"
    flags = [f'-DTROUBLE="{trouble}"', f"-DHANDLERS={handlers}"]
    program = with_library(tmp_path / "program", DIES, *flags)
    with sf.Warm(mode="fork", delay=60) as warm:
        warm.add(program, depth=1)
        assert warm.fill(FILL_S), warm.stats()

        def found() -> list[str]:
            trouble.touch()
            # Nobody waits when the second begins: one more is forked for it.
            started = [answered(warm.run([program])) for _ in range(2)]
            trouble.unlink()
            assert warm.fill(FILL_S), warm.stats()
            return started

        after = "fork" if handlers == MOMENTS["after the clone"] else "cold: died"
        assert found_in_time(found) == ["fork", after]
        for _ in range(2):
            assert answered(unless_slow(warm, lambda: warm.run([program]))) == "fork"
            assert warm.fill(FILL_S), warm.stats()


# In an owner that is under a filter, and so all that it parks.
UNDER = """
from warm_cases import lay_over
way = sys.argv[2]
lay_over(bytes.fromhex(sys.argv[3]))
warm = warm_of(way)
add(warm, way, "sh", 1)
full = warm.fill(float(sys.argv[4]))
for _ in range(3):
    result = sf.run(["sh", "-c", "echo $0; exit 7", "word"], warm=warm, timeout=60)
    assert (result.code, result.stdout, result.stderr) == (7, b"word\\n", b""), result
    print(full, result.started)
warm.close()
deadline = time.monotonic() + 60
while children() and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(children()))
"""
PR_SET_DUMPABLE, O_CLOEXEC = 4, 0o2000000
ALL, PART_OF_PAGE = 0xFFFF_FFFF, 0xFFF
# CLONE_PARENT: of all clones those of what others are forked from.
SIBLING = (0, 0x8000, 0x8000)


@each_way
def test_it_is_killed_before_its_reply(way: Way) -> None:
    """As it hides itself, which is the last thing that it does."""
    filter = refusal_with(SYS_PRCTL, (0, ALL, PR_SET_DUMPABLE), (1, ALL, 0))
    found = told(UNDER, way, filter.hex(), str(FILL_S))
    assert found == "True cold: not parked\n" * 3 + "0\n"


@pytest.mark.parametrize("way", FORKING)
@pytest.mark.parametrize("error", [None, errno.ENOMEM], ids=["killed", "no memory"])
def test_no_child_is_born(error: int | None, way: Way) -> None:
    """It is killed as it takes its socket for its own; or there is no memory for it."""
    filter = refusal_with(SYS_CLONE, SIBLING, error=error)
    if error is None:
        filter = refusal_with(SYS_DUP3, (2, ALL, O_CLOEXEC))
    *runs, left = told(UNDER, way, filter.hex(), "3").splitlines()
    assert set(runs) <= {f"False {reason}" for reason in KILLED}
    assert (len(runs), left) == (3, "0")


@pytest.mark.parametrize("way", FORKING)
def test_what_others_are_forked_from_has_no_memory(way: Way) -> None:
    """Its address space may not grow any more."""

    def found() -> list[str]:
        with warm_of(way, delay=60) as warm:
            before = set(running())
            add(warm, way, "sh", 1)
            assert warm.fill(FILL_S)
            first = min(set(running()) - before)
            hard = resource.prlimit(first, resource.RLIMIT_AS)[1]
            resource.prlimit(first, resource.RLIMIT_AS, (1, hard))
            started = [answered(run(warm)) for _ in range(2)]
            assert is_warm_again(warm, way)
            return started

    assert found_in_time(found) == [way, "cold: died"]


def test_a_parked_process_has_no_memory_for_what_it_is_asked() -> None:
    """It is the one behind a program in front that needs some: its own environment is kept."""
    box = sf.Sandbox(["env", "ADDED=1"])

    def found() -> list[str]:
        with sf.Warm(delay=60) as warm:
            before = set(running())
            warm.add("sh", sandbox=box, depth=1)
            assert warm.fill(FILL_S), warm.stats()
            # The guard of process trees comes before it, if it was not there.
            pid = max(set(running()) - before)
            hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
            resource.prlimit(pid, resource.RLIMIT_AS, (1, hard))
            started = answered(run(warm, sandbox=box))
            assert is_warm_again(warm, "reserve", sandbox=box)
            return [started]

    assert found_in_time(found) == ["cold: died"]


MAP_SHARED_POPULATED, MAP_OVER = 0x8001, 0x32
NO_MEMORY = {
    # The page, which it shares with its owner.
    "not parked": [(1, ALL, 4096), (3, ALL, MAP_SHARED_POPULATED)],
    # A locale's small files become memory in their place; libc's own are no whole pages.
    "memory": [(1, PART_OF_PAGE, 0), (3, ALL, MAP_OVER)],
}


@each_mode
@pytest.mark.parametrize("reason", NO_MEMORY)
def test_no_memory_while_it_parks(reason: str, mode: Mode) -> None:
    filter = refusal_with(SYS_MMAP, *NO_MEMORY[reason], error=errno.ENOMEM)
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    argv = ["sort", "/dev/null"]
    actions = [NoNewPrivs(), Seccomp(filter)]
    assert sf.run(argv, env=env, actions=actions).code == 0
    with sf.Warm(mode=mode) as warm:
        warm.add("sort", depth=1, env=env, no_new_privs=True, seccomp=filter)
        assert warm.fill(FILL_S)
        result = warm.run(argv, env=env, actions=actions)
        assert (result.code, result.started) == (0, f"cold: {reason}")
