# SPDX-License-Identifier: MIT OR Apache-2.0
"""Parked processes are killed or stopped, owners fork or run out of resources.

No call may fail, hang or have a wrong result.
"""

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
from patience import (
    TIMEOUT_S,
    eventually,
    growing_timeouts,
    in_background,
    signal_after,
    signal_handler,
)
from warm_support import (
    FILL_S,
    FOR_ANY,
    Mode,
    Warm,
    Way,
    add,
    each_mode,
    each_way,
    new_warm,
    output_of,
    parked,
    retry_if_slow,
)

ECHO = ["sh", "-c", "echo $1; exit 7", "-", "word"]


def checked_run(warm: sf.Warm, word: str = "word") -> sf.Result:
    """Runs the program, and asserts that the result is right."""
    result = sf.run([*ECHO[:-1], word], warm=warm, timeout=TIMEOUT_S)
    assert (result.code, result.stdout, result.stderr) == (7, f"{word}\n".encode(), b"")
    return result


def run(warm: sf.Warm, word: str = "word") -> str:
    """Runs the program, and returns how it was started."""
    return checked_run(warm, word).started


def run_warm(warm: sf.Warm, word: str = "word") -> str:
    """Returns how the program was started. Repeats the start while the machine is too slow."""
    return retry_if_slow(warm, lambda: checked_run(warm, word)).started


@contextmanager
def shells(way: Way, depth: int = 2) -> Generator[tuple[Warm, set[int]]]:
    """Creates a Warm with shells. Yields it with the pids of the parked processes."""
    before = children()
    with new_warm(way) as warm:
        add(warm, way, "sh", depth)
        assert warm.fill(FILL_S)
        yield warm, children() - before


def is_warm_again(warm: sf.Warm, way: Way) -> bool:
    """Returns whether starts become warm again, once the lost processes are parked anew."""

    def is_now() -> bool:
        warm.fill(timeout=5)
        return run(warm) == way

    return eventually(is_now)


@each_way
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_killed_processes_are_replaced(way: Way, number: signal.Signals) -> None:
    with shells(way) as (warm, pids):
        for pid in pids:
            os.kill(pid, number)
        for _ in range(5):
            started = run(warm)
            assert started == way or started.startswith("cold: ")
        assert is_warm_again(warm, way)


def is_parked(pid: int, program: str) -> bool:
    """Returns whether the process is parked, for this or any program, and has no request."""
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        has_request = b"word" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return (exe == program or "zygote" in exe) and not has_request
    except OSError:
        return False


@each_way
def test_calls_succeed_while_parked_processes_are_killed(way: Way) -> None:
    """A kill may arrive at any step, also between clone and reply."""
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
                # A process for any program was killed before its exec, as a cold child may be.
                if way in FOR_ANY and error.stage == "killed":
                    return None
                raise

        with in_background(killer):
            try:
                results = list(pool.map(call, range(300)))
            finally:
                done.set()
    assert hit
    for number, result in enumerate(results):
        # A process that had just become the program was killed as the program.
        if result and result.signal != signal.SIGKILL:
            assert (result.code, result.stdout) == (7, f"word{number}\n".encode())


@each_way
def test_stopped_process_is_killed_and_replaced(way: Way) -> None:
    """The call does not wait for the stopped process, so the start is cold."""
    with shells(way) as (warm, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        assert run(warm).startswith("cold: ")
        assert is_warm_again(warm, way)


def test_stopped_forking_process_is_replaced() -> None:
    with shells("fork", depth=1) as (warm, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # This start uses the process that is already forked.
        assert run(warm).startswith("cold: ")
        # These starts need a fork. At the end all processes are parked again.
        assert {run(warm), run(warm)} <= {"cold: slow", "cold: empty", "fork"}
        assert is_warm_again(warm, "fork")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_stopped_sandbox_command_starts_cold(number: signal.Signals) -> None:
    """Without the sandbox's command the owner would not learn of the program's end."""
    box = sf.Sandbox(["/bin/sh", "-c", '"$@"; exit $?', "front"])
    argv = ["expr", "3", "+", "4"]
    with Warm() as warm:
        before = children()
        warm.add("expr", sandbox=box)
        assert warm.fill(FILL_S), warm.stats()
        for pid in children() - before:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0"):
                os.kill(pid, number)
                # Waits until the signal has taken effect.
                os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        for _ in range(2):
            result = sf.run(argv, sandbox=box, warm=warm, timeout=TIMEOUT_S)
            assert (result.stop, result.code, result.stdout) == ("exited", 0, b"7\n")
            assert result.started in ("cold: slow", "cold: died")
        assert warm.fill(FILL_S)
        assert warm.run(argv, sandbox=box, timeout=TIMEOUT_S).started == "reserve"


def test_stopped_process_with_a_full_socket() -> None:
    """The owner sends more requests than the socket takes. The stopped process answers none."""
    with shells("fork", depth=1) as (warm, pids), ThreadPoolExecutor(16) as pool:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        started = Counter(pool.map(run, [warm] * 64, ["x" * 100_000] * 64))
    assert sum(started.values()) == 64


@each_way
def test_large_arguments_and_environment(way: Way) -> None:
    """Arguments and environment together are about as large as exec accepts."""
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
    """The call passes as many arguments as a message holds.

    Their pointers need more memory than their text.
    """
    with shells(way) as (warm, _):
        argv = ["sh", "-c", "echo $#", "-", *[word] * count]
        result = warm.run(argv, env={"PATH": "/usr/bin:/bin"}, timeout=TIMEOUT_S)
    assert (result.code, result.text) == (0, f"{count}\n")
    assert result.started == way


@each_way
def test_memory_limit_of_one_byte(way: Way) -> None:
    """The limit permits at most one parked process."""
    with new_warm(way, memory=1) as warm:
        add(warm, way, "sh", 4)
        warm.fill(timeout=1)
        assert warm.stats().parked <= 1
        assert run(warm)


@pytest.mark.parametrize("way", ["reserve", "pool"])
def test_memory_limit_stops_parking(way: Way) -> None:
    """Parking stops at the limit. Shared memory does not count.

    Pages that other processes share are not private: beside other shells, a shell has fewer.
    """
    with shells(way, depth=1) as (warm, _):
        one = warm.stats().memory
    most = 4 * one
    with new_warm(way, memory=most) as warm:
        add(warm, way, "sh", 50)
        for _ in range(3):
            assert warm.fill(timeout=FILL_S)
            stats = warm.stats()
            assert most - one < stats.memory < most + 2 * one
            assert stats.parked < 50
            assert is_warm_again(warm, way)


@each_way
def test_process_limit_prefers_the_program_that_starts_more(way: Way) -> None:
    """The limit counts all programs. The program that saves more keeps its processes."""
    with new_warm(way, processes=3) as warm:
        add(warm, way, "sh", 4)
        for _ in range(10):
            assert is_warm_again(warm, way)
        add(warm, way, "true", 2)
        for _ in range(5):
            assert eventually(lambda: warm.fill(timeout=FILL_S) and warm.stats().parked >= 3)
            assert warm.stats().parked == 3
            if way not in FOR_ANY:
                assert warm.run(["true"]).started == "cold: empty"
            assert is_warm_again(warm, way)


@each_mode
def test_program_is_parked_once_an_idle_one_ends(mode: Mode) -> None:
    """A program above the process limit is parked after another program's idle time."""
    with sf.Warm(mode=mode, processes=2, idle=0.5) as warm:
        warm.add("sh", depth=2)
        for _ in range(30):
            assert is_warm_again(warm, mode)
        warm.add("true", depth=1)
        deadline = time.monotonic() + TIMEOUT_S
        while warm.run(["true"]).started != mode:
            assert time.monotonic() < deadline, warm.stats()
            assert warm.stats().parked <= 2
            # On a busy machine, processes are parked only for a caller of fill().
            warm.fill(timeout=0.01)


@each_way
def test_process_limit_zero_starts_cold(way: Way) -> None:
    with new_warm(way, processes=0) as warm:
        add(warm, way, "sh", 2)
        assert warm.fill(timeout=FILL_S)
        assert run(warm) == "cold: empty"
        assert (warm.stats().parked, warm.stats().made) == (0, 0)


def all_end(pidfds: list[int]) -> bool:
    """Returns whether all processes end by themselves in time. Kills those that do not."""
    ended = [bool(select.select([pidfd], [], [], TIMEOUT_S)[0]) for pidfd in pidfds]
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
    return all(ended)


def test_close_ends_a_sandbox_command_at_work(tmp_path: Path) -> None:
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)
    front = ["/bin/sh", "-c", 'sleep 600 & echo $$ $! > "$0"; wait', str(fifo)]
    with sf.Warm() as warm:
        warm.add("/bin/true", sandbox=sf.Sandbox(front))
        # The keeper parks for a caller of fill() even if the machine is busy.
        filling = threading.Thread(target=warm.fill, kwargs={"timeout": FILL_S})
        filling.start()
        pidfds = [os.pidfd_open(int(pid)) for pid in fifo.read_text().split()]
    filling.join()
    assert all_end(pidfds)


@each_mode
def test_slow_parking_does_not_delay_other_programs(mode: Mode, tmp_path: Path) -> None:
    """Meanwhile the library parks and starts other programs."""
    done = tmp_path / "done"
    module = f"import os, time\nwhile not os.path.exists({str(done)!r}):\n    time.sleep(0.01)\n"
    (tmp_path / "awaited.py").write_text(module, encoding="utf-8")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def attempt() -> bool:
        done.unlink(missing_ok=True)
        with Warm(mode=mode) as warm:
            warm.add(sys.executable, depth=1, env=env, preimport=["awaited"])
            warm.add("sh", depth=1)
            # Soon after this deadline, the library would give up on parking.
            deadline = time.monotonic() + 15
            for _ in range(3):
                while run(warm) != mode:
                    if time.monotonic() > deadline:
                        return False
                    # On a busy machine, processes are parked only for a caller of fill().
                    warm.fill(timeout=0.01)
            done.touch()
            if not warm.fill(FILL_S) or warm.stats().cannot:
                return False
            result = warm.run([sys.executable, "-c", "print(7)"], env=env, timeout=TIMEOUT_S)
            assert (result.text, result.started) == ("7\n", mode)
        return True

    assert any(attempt() for _ in range(4))


@each_way
def test_fork_of_the_owner_starts_cold(way: Way) -> None:
    """Parked processes belong to the owner. Its fork starts cold, and does not hang."""
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
def test_multiprocessing_worker_starts_cold(way: Way) -> None:
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
        # close() in the fork ended no process.
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        assert is_warm_again(warm, way)


@each_way
def test_sixteen_threads_start_warm(way: Way) -> None:
    def attempt() -> bool:
        with shells(way, depth=8) as (warm, _), ThreadPoolExecutor(16) as pool:
            words = [f"word {number}" for number in range(640)]
            started = Counter(pool.map(run, [warm] * len(words), words))
            assert getattr(warm.stats(), way) == started[way]
        assert started[way] > 0
        assert all(how == way or how.startswith("cold: ") for how in started)
        if way not in ("fork", "zygote") or started[way] == 640:
            return True
        # On a slow machine a process may take longer than half a second. The owner then gives it
        # up.
        assert started["cold: slow"], started
        return False

    assert any(attempt() for _ in range(10))


@pytest.mark.parametrize("way", FOR_ANY)
def test_program_is_not_started_twice(way: Way) -> None:
    """A program that ended before the owner looked at it must not be started again."""
    if os.geteuid() != 0:
        pytest.skip("only root may take another process's descriptors")
    with shells(way) as (warm, pids):
        # Duplicates of the processes' sockets hide from the owner that a process execs or ends.
        ends = [end for pid in pids if (end := own_end(pid)) is not None]
        try:
            assert len(ends) >= 2
            assert run_warm(warm) == way
        finally:
            for end in ends:
                os.close(end)


def own_end(pid: int) -> int | None:
    """Returns a duplicate of a parked process's socket, or None if the process has ended."""
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
def test_signal_during_the_actions_is_not_lost(way: Way, tmp_path: Path) -> None:
    """The signal arrives while the parked process is blocked in an action."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writers: list[int] = []

    def open_fifo() -> None:
        time.sleep(1)
        writers.append(os.open(fifo, os.O_RDWR))

    with shells(way) as (warm, _), in_background(open_fifo):
        step = sf.actions.Open(fifo, 9)
        argv = ["sh", "-c", "sleep 1000"]
        result = warm.run(argv, actions=[step], timeout=0.2, grace=1000)
    os.close(writers[0])
    assert (result.stop, result.signal) == ("timeout", signal.SIGTERM)
    assert result.wall < TIMEOUT_S


@each_way
@pytest.mark.parametrize("how", ["run", "run_async", "start"])
def test_open_of_a_fifo_does_not_block_the_host(way: Way, how: str, tmp_path: Path) -> None:
    """The timeout ends each kind of run."""
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
def test_timeout_zero_ends_the_program_by_sigterm(mode: Mode) -> None:
    """SIGTERM ends the program, as after a cold start.

    SIGKILL after the grace period is not needed.
    """
    with parked("sleep", mode) as warm:
        for _ in range(10):
            assert warm.fill(FILL_S)
            result = warm.run(["sleep", "1000"], timeout=0, grace=1000)
            assert (result.stop, result.signal) == ("timeout", signal.SIGTERM)
            assert result.wall < TIMEOUT_S


# After parking, the owner turns on a permanent switch of its memory. The program must have it too.
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
def test_memory_switch_of_the_owner_starts_cold(option: int, mode: str) -> None:
    output = output_of(SWITCHED, mode, str(option))
    if output == "unknown\n":
        pytest.skip("this kernel has no such switch")
    assert output == "cold: switches\n"


@each_way
def test_close_ends_all_processes(way: Way) -> None:
    """A second close() does nothing, and later runs are refused."""
    before = children()
    warm = new_warm(way)
    add(warm, way, "sh", 3)
    assert warm.fill(FILL_S)
    assert run_warm(warm) == way
    warm.close()
    warm.close()
    assert eventually(lambda: children() == before)
    with pytest.raises(ValueError, match="closed"):
        run(warm)


@pytest.mark.parametrize("mode", ["reserve", "fork"])
def test_close_ends_outdated_processes(mode: Mode, tmp_path: Path) -> None:
    """A start has found the processes stale, and the keeper thread has not ended them yet."""
    program = tmp_path / "true"
    shutil.copy("/bin/true", program)
    before = children()
    with new_warm(mode, delay=60) as warm:
        warm.add(program)
        assert warm.fill(FILL_S)
        os.utime(program)
        assert warm.run([program]).started.startswith("cold: ")
    assert eventually(lambda: children() == before)
    assert warm.closed


def test_fill_is_interrupted() -> None:
    """An exception of a signal handler ends a fill() without a timeout."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    # With idle=0 parked processes end at once, so fill() never returns.
    with signal_handler(signal.SIGUSR1, interrupt), sf.Warm(idle=0) as warm:
        warm.add("true")
        with pytest.raises(InterruptedError), signal_after(0.5, signal.SIGUSR1):
            warm.fill(timeout=None)


@each_way
def test_running_program_outlives_its_warm(way: Way, tmp_path: Path) -> None:
    """close() ends parked processes, not those that have become a program."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with shells(way) as (warm, _):

        def begin() -> sf.Child:
            child = warm.spawn(["sh", "-c", 'read x < "$1"; exit $x', "-", fifo])
            if child.started != way:
                child.kill()
                child.wait()
            return child

        child = retry_if_slow(warm, begin)
        assert child.started == way
    fifo.write_text("9\n")
    assert child.wait() == 9


@each_way
def test_idle_processes_end_and_are_parked_again_on_demand(way: Way) -> None:
    """Processes end after the idle time. The next start makes the library park them again."""
    before = children()

    def attempt(idle: float) -> bool:
        with new_warm(way, idle=idle) as warm:
            add(warm, way, "sh", 2)
            # Two processes must be parked before the first one's idle time is over.
            if not warm.fill(10 * idle):
                return False
            assert eventually(lambda: children() == before)
            assert run(warm)
            return any(warm.fill(10 * idle) and run(warm) == way for _ in range(10))

    assert any(attempt(idle) for idle in growing_timeouts(0.2))


def test_forking_process_is_replaced_after_a_number_of_forks() -> None:
    """forks=N limits how many processes one process forks."""
    with Warm(mode="fork", forks=3) as warm:
        warm.add("/bin/true", depth=1)
        for _ in range(8):
            assert warm.fill(timeout=FILL_S)
            assert warm.run(["/bin/true"]).started == "fork"
        assert warm.stats().made >= 2


def test_unused_forks_do_not_replace_the_forking_process() -> None:
    with Warm(mode="fork", forks=1) as warm:
        warm.add("/bin/true", depth=3)
        assert warm.fill(timeout=FILL_S)
        assert warm.stats().made == 1
        assert warm.run(["/bin/true"]).started == "fork"
        assert warm.fill(timeout=FILL_S)
        assert warm.stats().made == 2


def test_age_counts_from_parking(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(2)\n", encoding="utf-8")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    with sf.Warm(mode="fork", age=1) as warm:
        warm.add(sys.executable, depth=1, env=env, preimport=["slow"])
        assert warm.fill(timeout=FILL_S)


def test_age_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="age"):
        sf.Warm(mode="fork", age=0)


def test_forking_process_is_replaced_after_its_age() -> None:
    with sf.Warm(mode="fork", age=0.2) as warm:
        warm.add("/bin/true", depth=1)
        assert eventually(lambda: warm.stats().made >= 3)
    with sf.Warm(mode="fork", age=None) as warm:
        warm.add("/bin/true", depth=1)
        assert warm.fill(timeout=FILL_S)
        assert warm.stats().made == 1


@each_way
def test_no_idle_limit_and_no_fill_timeout(way: Way) -> None:
    with new_warm(way, idle=None) as warm:
        add(warm, way, "/bin/true", 1)
        assert warm.fill(timeout=None)
        assert warm.run(["/bin/true"]).started == way


def test_close_right_after_a_request() -> None:
    # close() may come just before the keeper thread sleeps. The thread must not miss the wakeup and
    # sleep for minutes.
    for _ in range(100):
        with sf.Warm() as warm:
            warm.add("/bin/true", depth=1)
            warm.run(["/bin/true"])
