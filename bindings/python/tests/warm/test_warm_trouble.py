# SPDX-License-Identifier: MIT OR Apache-2.0
"""What may befall parked processes and their owner: no call fails, hangs or is answered wrongly."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import multiprocessing
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from conftest import children
from patience import TIMEOUT_S, eventually, longer, signal_after
from warm_support import (
    ANY,
    FILL_S,
    Mode,
    Warm,
    Way,
    add,
    each_mode,
    each_way,
    parked,
    told,
    unless_slow,
    warm_of,
)

ECHO = ["sh", "-c", "echo $1; exit 7", "-", "word"]


def answered(warm: sf.Warm, word: str = "word") -> sf.Result:
    """One call that is answered right."""
    result = sf.run([*ECHO[:-1], word], warm=warm, timeout=TIMEOUT_S)
    assert (result.code, result.stdout, result.stderr) == (7, f"{word}\n".encode(), b"")
    return result


def run(warm: sf.Warm, word: str = "word") -> str:
    """How it was started."""
    return answered(warm, word).started


def run_warm(warm: sf.Warm, word: str = "word") -> str:
    """The same, where the machine is not too slow."""
    return unless_slow(warm, lambda: answered(warm, word)).started


@contextmanager
def shells(way: Way, depth: int = 2) -> Generator[tuple[Warm, set[int]]]:
    """A Warm with shells, and the processes that are parked."""
    before = children()
    with warm_of(way) as warm:
        add(warm, way, "sh", depth)
        assert warm.fill(FILL_S)
        yield warm, children() - before


def is_warm_again(warm: sf.Warm, way: Way) -> bool:
    """Whether a start is warm, once what was lost has been parked anew."""

    def is_now() -> bool:
        warm.fill(timeout=5)
        return run(warm) == way

    return eventually(is_now)


@each_way
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_killed(way: Way, number: signal.Signals) -> None:
    with shells(way) as (warm, pids):
        for pid in pids:
            os.kill(pid, number)
        for _ in range(5):
            started = run(warm)
            assert started == way or started.startswith("cold: ")
        assert is_warm_again(warm, way)


def is_parked(pid: int, program: str) -> bool:
    """Whether it is that program, or one for any, but has not been told what to do."""
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        told = b"word" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return (exe == program or "zygote" in exe) and not told
    except OSError:
        return False


@each_way
def test_killed_under_load(way: Way) -> None:
    """Between clone and reply, too: whenever it hits."""
    program = os.path.realpath("/bin/sh")
    with shells(way, depth=4) as (warm, _), ThreadPoolExecutor(4) as pool:
        done = threading.Event()
        hit = 0

        def killer() -> None:
            nonlocal hit
            while not done.wait(0.003):
                for pid in children():
                    if is_parked(pid, program):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            hit += 1

        def call(number: int) -> sf.Result | None:
            try:
                return sf.run([*ECHO[:-1], f"word{number}"], warm=warm, timeout=TIMEOUT_S)
            except sf.SpawnError as error:
                # On its way to an exec, as a child of the caller's may be.
                if way in ANY and error.stage == "killed":
                    return None
                raise

        thread = threading.Thread(target=killer)
        thread.start()
        try:
            results = list(pool.map(call, range(300)))
        finally:
            done.set()
            thread.join()
    assert hit
    for number, result in enumerate(results):
        # One that has just become the program was killed as such.
        if result and result.signal != signal.SIGKILL:
            assert (result.code, result.stdout) == (7, f"word{number}\n".encode())


@each_way
def test_stopped(way: Way) -> None:
    """It is not waited for: the call is made cold, and what was stopped is ended."""
    with shells(way) as (warm, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        assert run(warm).startswith("cold: ")
        assert is_warm_again(warm, way)


def test_a_stopped_parent_has_not_died() -> None:
    with shells("fork", depth=1) as (warm, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # This one gets what waits.
        assert run(warm).startswith("cold: ")
        # These would have one forked; in the end all is parked anew.
        assert {run(warm), run(warm)} <= {"cold: slow", "cold: empty", "fork"}
        assert is_warm_again(warm, "fork")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_the_program_in_front_is_stopped(number: signal.Signals) -> None:
    """Nobody would hear of the end of the one behind it."""
    box = sf.Sandbox(["/bin/sh", "-c", '"$@"; exit $?', "front"])
    argv = ["expr", "3", "+", "4"]
    with Warm() as warm:
        before = children()
        warm.add("expr", sandbox=box)
        assert warm.fill(FILL_S), warm.stats()
        for pid in children() - before:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0"):
                os.kill(pid, number)
                # Until it is: what has ended, or has been stopped, is not waited for.
                os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        for _ in range(2):
            result = sf.run(argv, sandbox=box, warm=warm, timeout=TIMEOUT_S)
            assert (result.stop, result.code, result.stdout) == ("exited", 0, b"7\n")
            assert result.started in ("cold: slow", "cold: died")
        assert warm.fill(FILL_S)
        assert warm.run(argv, sandbox=box, timeout=TIMEOUT_S).started == "reserve"


def test_stopped_with_its_socket_full() -> None:
    """More requests than a socket takes, none of which is answered."""
    with shells("fork", depth=1) as (warm, pids), ThreadPoolExecutor(16) as pool:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        started = Counter(pool.map(run, [warm] * 64, ["x" * 100_000] * 64))
    assert sum(started.values()) == 64


@each_way
def test_large_requests(way: Way) -> None:
    """Arguments and environment as large as exec takes them."""
    with shells(way) as (warm, _):
        script = "echo ${#1} ${#X} $#"
        argv = ["sh", "-c", script, "-", "y" * 100_000, *["z"] * 5_000]
        env = {"PATH": "/usr/bin:/bin", "X": "x" * 100_000}
        result = warm.run(argv, env=env)
    assert (result.code, result.text) == (0, "100000 100000 5001\n"), result
    assert result.started in (way, *(s for s in [result.started] if s.startswith("cold: ")))


@each_way
@pytest.mark.parametrize(("word", "count"), [("z", 30_000), ("", 120_000)])
def test_many_arguments(word: str, count: int, way: Way) -> None:
    """As many as a message holds, where places for them are longer than they are."""
    with shells(way) as (warm, _):
        argv = ["sh", "-c", "echo $#", "-", *[word] * count]
        result = warm.run(argv, env={"PATH": "/usr/bin:/bin"}, timeout=TIMEOUT_S)
    assert (result.code, result.text) == (0, f"{count}\n")
    assert result.started == way


@each_way
def test_out_of_memory(way: Way) -> None:
    """What is parked counts, and is not more than was allowed."""
    with warm_of(way, memory=1) as warm:
        add(warm, way, "sh", 4)
        warm.fill(timeout=1)
        assert warm.stats().parked <= 1
        assert run(warm)


@pytest.mark.parametrize("way", ["reserve", "pool"])
def test_as_much_memory_as_allowed(way: Way) -> None:
    """The one with which it is reached is the last. (What several have mapped is nobody's own.)"""
    with shells(way, depth=1) as (warm, _):
        one = warm.stats().memory
    most = 4 * one
    with warm_of(way, memory=most) as warm:
        add(warm, way, "sh", 50)
        for _ in range(3):
            assert warm.fill(timeout=FILL_S)
            stats = warm.stats()
            assert most <= stats.memory < most + 2 * one
            assert stats.parked < 50
            assert is_warm_again(warm, way)


@each_way
def test_as_many_processes_as_allowed(way: Way) -> None:
    """In all: what was added first has them, and has them again."""
    with warm_of(way, processes=3) as warm:
        add(warm, way, "sh", 4)
        assert warm.fill(timeout=FILL_S)
        add(warm, way, "true", 2)
        for _ in range(5):
            assert eventually(lambda: warm.fill(timeout=FILL_S) and warm.stats().parked >= 3)
            assert warm.stats().parked == 3
            if way not in ANY:
                assert warm.run(["true"]).started == "cold: empty"
            assert is_warm_again(warm, way)


@each_mode
def test_what_has_no_room_waits_for_it(mode: Mode) -> None:
    """Until another program has not been used for long enough."""
    with sf.Warm(mode=mode, processes=2, idle=0.5) as warm:
        warm.add("sh", depth=2)
        assert warm.fill(timeout=FILL_S)
        warm.add("true", depth=1)
        deadline = time.monotonic() + TIMEOUT_S
        while warm.run(["true"]).started != mode:
            assert time.monotonic() < deadline, warm.stats()
            assert warm.stats().parked <= 2
            time.sleep(0.01)


@each_way
def test_no_process_at_all(way: Way) -> None:
    with warm_of(way, processes=0) as warm:
        add(warm, way, "sh", 2)
        assert warm.fill(timeout=FILL_S)
        assert run(warm) == "cold: empty"
        assert (warm.stats().parked, warm.stats().made) == (0, 0)


def all_end(pidfds: list[int]) -> bool:
    """Whether all do by themselves, soon; those that do not are ended."""
    ended = [bool(select.select([pidfd], [], [], TIMEOUT_S)[0]) for pidfd in pidfds]
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
    return all(ended)


def test_closed_while_a_program_in_front_is_at_work(tmp_path: Path) -> None:
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    front = ["/bin/sh", "-c", 'sleep 600 & echo $$ $! > "$0"; wait', str(fifo)]
    with sf.Warm() as warm:
        warm.add("/bin/true", sandbox=sf.Sandbox(front))
        pidfds = [os.pidfd_open(int(pid)) for pid in fifo.read_text().split()]
    assert all_end(pidfds)


@each_mode
def test_what_is_slow_to_park_keeps_nobody_waiting(mode: Mode, tmp_path: Path) -> None:
    """Others are parked and used meanwhile, again and again."""
    done = tmp_path / "done"
    module = f"import os, time\nwhile not os.path.exists({str(done)!r}):\n    time.sleep(0.01)\n"
    (tmp_path / "awaited.py").write_text(module, encoding="utf-8")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def attempt() -> bool:
        done.unlink(missing_ok=True)
        with Warm(mode=mode) as warm:
            warm.add(sys.executable, depth=1, env=env, preimport=["awaited"])
            warm.add("sh", depth=1)
            # It may not park for not much longer.
            deadline = time.monotonic() + 15
            for _ in range(3):
                while run(warm) != mode:
                    if time.monotonic() > deadline:
                        return False
                    time.sleep(0.01)
            done.touch()
            if not warm.fill(FILL_S) or warm.stats().cannot:
                return False
            result = warm.run([sys.executable, "-c", "print(7)"], env=env, timeout=TIMEOUT_S)
            assert (result.text, result.started) == ("7\n", mode)
        return True

    assert any(attempt() for _ in range(4))


@each_way
def test_the_owner_forks(way: Way) -> None:
    """What is parked belongs to the one that parked it: its copy starts cold, and does not hang."""
    with shells(way) as (warm, _):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if run(warm).startswith("cold: ") else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert is_warm_again(warm, way)


def _in_another_process(connection: Any) -> None:
    assert _shared is not None
    connection.send([run(_shared) for _ in range(3)])
    _shared.close()


_shared: sf.Warm | None = None


@each_way
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # 3.12 and newer: a fork with threads
def test_multiprocessing(way: Way) -> None:
    global _shared
    with shells(way) as (warm, pids):
        _shared = warm
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_in_another_process, args=(theirs,))
        process.start()
        theirs.close()
        assert ours.poll(TIMEOUT_S)
        assert all(started.startswith("cold: ") for started in ours.recv())
        process.join(TIMEOUT_S)
        ours.close()
        assert process.exitcode == 0
        process.close()
        _shared = None
        # Its close() was about nothing.
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        assert is_warm_again(warm, way)


@each_way
def test_sixteen_threads(way: Way) -> None:
    def attempt() -> bool:
        with shells(way, depth=8) as (warm, _), ThreadPoolExecutor(16) as pool:
            words = [f"word {number}" for number in range(640)]
            started = Counter(pool.map(run, [warm] * len(words), words))
            assert getattr(warm.stats(), way) == started[way]
        assert started[way] > 0
        assert all(how == way or how.startswith("cold: ") for how in started)
        if way not in ("fork", "zygote") or started[way] == 640:
            return True
        # The machine may let one wait for longer than half a second, which is given up then.
        assert started["cold: slow"], started
        return False

    assert any(attempt() for _ in range(10))


@pytest.mark.parametrize("way", ANY)
def test_executed_once(way: Way) -> None:
    """What has executed and ended before it was looked at is not started again."""
    if os.geteuid() != 0:
        pytest.skip("only root may take another process's descriptors")
    with shells(way) as (warm, pids):
        # As long as somebody has their ends of the sockets, nothing is heard of an exec or an end.
        held = [end for pid in pids if (end := own_end(pid)) is not None]
        try:
            assert len(held) >= 2
            assert run_warm(warm) == way
        finally:
            for end in held:
                os.close(end)


def own_end(pid: int) -> int | None:
    """A duplicate of a parked process's end of its socket, descriptor 3; None: it has ended."""
    pidfd_getfd = 438
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    fd = ctypes.CDLL(None, use_errno=True).syscall(pidfd_getfd, pidfd, 3, 0)
    os.close(pidfd)
    assert fd >= 0 or ctypes.get_errno() == errno.ESRCH
    return fd if fd >= 0 else None


@pytest.mark.parametrize("way", ["reserve", "fork"])
def test_a_signal_for_the_program_is_not_lost(way: Way, tmp_path: Path) -> None:
    """It comes while the steps of the start are carried out, one of which takes its time."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writers: list[int] = []

    def let_go() -> None:
        time.sleep(1)
        writers.append(os.open(fifo, os.O_RDWR))

    with shells(way) as (warm, _):
        thread = threading.Thread(target=let_go)
        thread.start()
        step = sf.actions.Open(fifo, 9)
        argv = ["sh", "-c", "sleep 1000"]
        result = warm.run(argv, actions=[step], timeout=0.2, grace=1000)
        thread.join()
    os.close(writers[0])
    assert (result.stop, result.signal) == ("timeout", signal.SIGTERM)
    assert result.wall < TIMEOUT_S


@each_way
@pytest.mark.parametrize("how", ["run", "run_async", "start"])
def test_nobody_waits_for_a_fifo(way: Way, how: str, tmp_path: Path) -> None:
    """Nor does any of them lose count of the time."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with shells(way) as (warm, _):
        options: Any = {
            "actions": [sf.actions.Open(gate, 9)],
            "timeout": 0.2,
            "grace": 0,
            "warm": warm,
        }
        argv = ["sh", "-c", "exit 3"]
        if how == "run":
            result = sf.run(argv, **options)
        elif how == "run_async":
            result = asyncio.run(sf.run_async(argv, **options))
        else:
            with sf.start_sync(argv, **options) as job:
                result = job.result()
    assert (result.stop, result.signal) == ("timeout", signal.SIGKILL)
    assert result.wall < TIMEOUT_S
    if how == "start":
        assert result.started == "cold: files to open"


@pytest.mark.parametrize("mode", ["reserve", "fork"])
def test_ended_before_it_begins(mode: Mode) -> None:
    """As a cold one is: by the signal, and not only when the grace is over."""
    with parked("sleep", mode) as warm:
        for _ in range(10):
            assert warm.fill(FILL_S)
            result = warm.run(["sleep", "1000"], timeout=0, grace=1000)
            assert (result.stop, result.signal) == ("timeout", signal.SIGTERM)
            assert result.wall < TIMEOUT_S


# What the calling process has switched on after something was parked, for good, has to be in force.
SWITCHED = """
import ctypes
with Warm(mode=sys.argv[2]) as warm:
    warm.add("true")
    assert warm.fill(60)
    assert warm.run(["true"]).started == sys.argv[2]
    assert warm.fill(60)
    if ctypes.CDLL(None).prctl(int(sys.argv[3]), 1, 0, 0, 0):
        print("unknown")
    else:
        print(warm.run(["true"]).started)
"""


@pytest.mark.parametrize("mode", ["reserve", "fork"])
@pytest.mark.parametrize("option", [41, 65, 67], ids=["huge pages", "mdwe", "merging"])
def test_switches_of_the_memory(option: int, mode: str) -> None:
    said = told(SWITCHED, mode, str(option))
    if said == "unknown\n":
        pytest.skip("this kernel has no such switch")
    assert said == "cold: switches\n"


@each_way
def test_closed(way: Way) -> None:
    """Nothing is left."""
    before = children()
    warm = warm_of(way)
    add(warm, way, "sh", 3)
    assert warm.fill(FILL_S)
    assert run_warm(warm) == way
    warm.close()
    warm.close()
    assert eventually(lambda: children() == before)
    with pytest.raises(ValueError, match="closed"):
        run(warm)


@pytest.mark.parametrize("mode", ["reserve", "fork"])
def test_closed_when_outdated(mode: Mode, tmp_path: Path) -> None:
    """What a start has put away is ended, too, though the keeper has yet to look."""
    program = tmp_path / "true"
    shutil.copy("/bin/true", program)
    before = children()
    with warm_of(mode, delay=60) as warm:
        warm.add(program)
        assert warm.fill(FILL_S)
        os.utime(program)
        assert warm.run([program]).started.startswith("cold: ")
    assert eventually(lambda: children() == before)
    assert warm.closed


def test_fill_is_interrupted() -> None:
    """By what a signal handler raises, in the middle of a wait without end."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        # With nothing that lasts it is never full.
        with sf.Warm(idle=0) as warm:
            warm.add("true")
            with pytest.raises(InterruptedError), signal_after(0.5, signal.SIGUSR1):
                warm.fill(timeout=None)
    finally:
        signal.signal(signal.SIGUSR1, before)


@each_way
def test_a_run_outlives_its_warm(way: Way, tmp_path: Path) -> None:
    """close() is for what is parked, not for what has become a program."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with shells(way) as (warm, _):

        def begin() -> sf.Child:
            child = warm.spawn(["sh", "-c", 'read x < "$1"; exit $x', "-", fifo])
            if child.started != way:
                child.kill()
                child.wait()
            return child

        child = unless_slow(warm, begin)
        assert child.started == way
    fifo.write_text("9\n")
    assert child.wait() == 9


@each_way
def test_idle(way: Way) -> None:
    """What nobody asks for is given up, and comes back when somebody does."""
    before = children()

    def attempt(idle: float) -> bool:
        with warm_of(way, idle=idle) as warm:
            add(warm, way, "sh", 2)
            # Two are to be parked before the first is given up.
            if not warm.fill(10 * idle):
                return False
            assert eventually(lambda: children() == before)
            assert run(warm)
            return any(warm.fill(10 * idle) and run(warm) == way for _ in range(10))

    assert any(attempt(idle) for idle in longer(0.2))


def test_replaced_after_so_many() -> None:
    """Mode fork: what others are forked from is made anew now and then."""
    with Warm(mode="fork", forks=3) as warm:
        warm.add("/bin/true", depth=1)
        for _ in range(8):
            assert warm.fill(timeout=FILL_S)
            assert warm.run(["/bin/true"]).started == "fork"
        assert warm.stats().made >= 2


def test_those_who_wait_are_no_reason_for_a_new_one() -> None:
    with Warm(mode="fork", forks=1) as warm:
        warm.add("/bin/true", depth=3)
        assert warm.fill(timeout=FILL_S)
        assert warm.stats().made == 1
        assert warm.run(["/bin/true"]).started == "fork"
        assert warm.fill(timeout=FILL_S)
        assert warm.stats().made == 2


def test_none_is_old_before_it_has_parked(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(2)\n", encoding="utf-8")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    with sf.Warm(mode="fork", age=1) as warm:
        warm.add(sys.executable, depth=1, env=env, preimport=["slow"])
        assert warm.fill(timeout=FILL_S)


def test_no_time_at_all() -> None:
    with pytest.raises(ValueError, match="age"):
        sf.Warm(mode="fork", age=0)


def test_replaced_after_a_time() -> None:
    with sf.Warm(mode="fork", age=0.2) as warm:
        warm.add("/bin/true", depth=1)
        assert eventually(lambda: warm.stats().made >= 3)
    with sf.Warm(mode="fork", age=None) as warm:
        warm.add("/bin/true", depth=1)
        assert warm.fill(timeout=FILL_S)
        assert warm.stats().made == 1


@each_way
def test_no_limit_of_time(way: Way) -> None:
    with warm_of(way, idle=None) as warm:
        add(warm, way, "/bin/true", 1)
        assert warm.fill(timeout=None)
        assert warm.run(["/bin/true"]).started == way


def test_an_end_right_after_a_wish() -> None:
    # The keeper may be about to wait when it is told: it must not wait for minutes then.
    for _ in range(100):
        with sf.Warm() as warm:
            warm.add("/bin/true", depth=1)
            warm.run(["/bin/true"])
