# SPDX-License-Identifier: MIT OR Apache-2.0
"""After the owner is killed, all its processes end within a second."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import children
from patience import TIMEOUT_S
from warm_support import WAYS, Mode, Way, each_mode, each_way, require, script_words

# The time from the kill until all processes have ended. The library promises one second. The test
# allows more, because the machine may be busy.
GONE_S = TIMEOUT_S
PYTHON = "/usr/bin/python3"
PARKED = [
    *((way, program) for way in WAYS for program in ("sh", PYTHON)),
    ("reserve", "node"),
    ("fork", "node"),
]
SANDBOXES = {
    "env": ["env", "ADDED=1"],
    "sh": ["/bin/sh", "-c", '"$@"; exit $?', "front"],
    "bwrap": ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid"],
}
each_sandbox = pytest.mark.parametrize("front", SANDBOXES)


@pytest.fixture(autouse=True)
def _orphans_come_here() -> Iterator[None]:
    """Makes this process the sub-reaper, so that it sees all orphans as children."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def below(pid: int) -> set[int]:
    """Returns all descendants of a process."""
    found: set[int] = set()
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | below(child)
    return found


def run_and_kill_owner(script: str, *arguments: str) -> tuple[str, int]:
    """Runs the script as an owner, kills it after its first line, and waits for its processes.

    Returns the line, and the count of processes that the owner had.
    """
    before = children()
    words, env = script_words(script, *arguments)
    owner = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    stdout = owner.stdout
    assert stdout is not None
    try:
        line = stdout.readline()
        count = len(below(owner.pid))
    finally:
        owner.kill()
        killed = time.monotonic()
        owner.wait()
        stdout.close()
        while left := children() - before:
            late = time.monotonic() > killed + GONE_S
            for pid in left:
                if late:
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0 if late else os.WNOHANG)
            assert not late, f"{len(left)} processes outlived their owner"
            time.sleep(0.001)
    return line, count


PARKS = """
way, program, *front = sys.argv[2:]
box = {"sandbox": sf.Sandbox(front)} if front else {}
warm = new_warm(way)
add(warm, way, program, 3, **box)
print(warm.fill(30), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("way", "program"), PARKED)
def test_parked_processes_end_with_the_owner(way: Way, program: str) -> None:
    require(program)
    line, count = run_and_kill_owner(PARKS, way, program)
    assert line == "True\n"
    assert count >= 3


@each_sandbox
@pytest.mark.parametrize("program", ["expr", PYTHON])
def test_parked_processes_in_a_sandbox_end_with_the_owner(program: str, front: str) -> None:
    require(program, SANDBOXES[front][0])
    line, count = run_and_kill_owner(PARKS, "reserve", program, *SANDBOXES[front])
    if line != "True\n":
        pytest.skip("no such sandbox here")
    assert count >= (3 if front == "env" else 6)


PARKING = """
warm = new_warm(sys.argv[2])
front = sys.argv[4:]
box = {"sandbox": sf.Sandbox(front)} if front else {}
env = {**os.environ, "PYTHONPATH": sys.argv[3]}
warm.add("/usr/bin/python3", preimport=["slow"], env=env, **box)
# On a busy machine, processes are parked only for a caller of fill().
import threading
threading.Thread(target=warm.fill, args=(600,), daemon=True).start()
print(open(sys.argv[3] + "/begun").read(), flush=True)
time.sleep(600)
"""
SLOW = """
import os, time
with open(os.path.dirname(__file__) + "/begun", "w") as fifo:
    fifo.write("slow")
time.sleep(600)
"""


def kill_owner_while_parking(mode: Mode, directory: Path, *front: str) -> int:
    require(PYTHON)
    (directory / "slow.py").write_text(SLOW, encoding="utf-8")
    os.mkfifo(directory / "begun")
    line, count = run_and_kill_owner(PARKING, mode, str(directory), *front)
    assert line == "slow\n"
    return count


@each_mode
def test_parking_process_ends_with_the_owner(mode: Mode, tmp_path: Path) -> None:
    assert kill_owner_while_parking(mode, tmp_path)


@each_sandbox
def test_parking_process_in_a_sandbox_ends_with_the_owner(front: str, tmp_path: Path) -> None:
    require(SANDBOXES[front][0])
    assert kill_owner_while_parking("reserve", tmp_path, *SANDBOXES[front])


SANDBOX_AT_WORK = """
front = ["/bin/sh", "-c", 'sleep 600 & echo begun > "$0"; wait', sys.argv[2]]
warm = sf.Warm()
warm.add("/bin/true", sandbox=sf.Sandbox(front))
# The keeper parks for a caller of fill() even if the machine is busy.
threading.Thread(target=warm.fill, daemon=True).start()
print(open(sys.argv[2]).read(), flush=True)
time.sleep(600)
"""


def test_sandbox_command_ends_with_the_owner(tmp_path: Path) -> None:
    """The sandbox's command and its children end, although the program has not started."""
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    line, count = run_and_kill_owner(SANDBOX_AT_WORK, str(fifo))
    assert line == "begun\n"
    assert count >= 2


RUNS = """
way, *front = sys.argv[2:]
box = {"sandbox": sf.Sandbox(front)} if front else {}
warm = new_warm(way)
add(warm, way, "/bin/bash", 1, **box)
assert warm.fill(30)
argv = ["/bin/bash", "-c", "sleep 600 & echo begun; sleep 600; :"]
while True:
    job = warm.start_sync(argv, tree="guard", **box)
    next(job.events())
    if "slow" not in warm.stats().cold or getattr(warm.stats(), way):
        break
    job.stop(0)
    assert warm.fill(60)
print(getattr(warm.stats(), way), flush=True)
time.sleep(600)
"""


@each_way
def test_running_program_ends_with_the_owner(way: Way) -> None:
    """The guard kills the program, as it does after a cold start."""
    line, count = run_and_kill_owner(RUNS, way)
    assert line == "1\n"
    assert count >= 2


@each_sandbox
def test_running_program_in_a_sandbox_ends_with_the_owner(front: str) -> None:
    require(SANDBOXES[front][0])
    line, count = run_and_kill_owner(RUNS, "reserve", *SANDBOXES[front])
    assert line == "1\n"
    assert count >= 2
