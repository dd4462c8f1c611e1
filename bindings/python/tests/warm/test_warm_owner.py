# SPDX-License-Identifier: MIT OR Apache-2.0
"""The owner is killed: nothing of it is left within a second."""

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
from warm_support import WAYS, Mode, Way, each_mode, each_way, need, script_words

# From the kill on, for all of it together. A second is what is promised; a machine that is full is
# given more.
GONE_S = TIMEOUT_S
PYTHON = "/usr/bin/python3"
PARKED = [
    *((way, program) for way in WAYS for program in ("sh", PYTHON)),
    ("reserve", "node"),
    ("fork", "node"),
]
FRONTS = {
    "env": ["env", "ADDED=1"],
    "sh": ["/bin/sh", "-c", '"$@"; exit $?', "front"],
    "bwrap": ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid"],
}
each_front = pytest.mark.parametrize("front", FRONTS)


@pytest.fixture(autouse=True)
def _orphans_come_here() -> Iterator[None]:
    """What has lost its parent is this process's child: so nothing is overlooked."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def below(pid: int) -> set[int]:
    """The processes below that one."""
    found: set[int] = set()
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | below(child)
    return found


def left_by(script: str, *arguments: str) -> tuple[str, int]:
    """What an owner that runs the script has said, and how many processes it had, which are gone.

    It is killed as soon as it has said something.
    """
    before = children()
    words, env = script_words(script, *arguments)
    owner = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    stdout = owner.stdout
    assert stdout is not None
    try:
        said = stdout.readline()
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
            assert not late, f"{len(left)} processes have outlived their owner"
            time.sleep(0.001)
    return said, count


PARKS = """
way, program, *front = sys.argv[2:]
box = {"sandbox": sf.Sandbox(front)} if front else {}
warm = warm_of(way)
add(warm, way, program, 3, **box)
print(warm.fill(30), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("way", "program"), PARKED)
def test_the_owner_is_killed(way: Way, program: str) -> None:
    need(program)
    said, count = left_by(PARKS, way, program)
    assert said == "True\n"
    assert count >= 3


@each_front
@pytest.mark.parametrize("program", ["expr", PYTHON])
def test_the_owner_is_killed_with_a_program_in_front(program: str, front: str) -> None:
    need(program, FRONTS[front][0])
    said, count = left_by(PARKS, "reserve", program, *FRONTS[front])
    if said != "True\n":
        pytest.skip("no such sandbox here")
    assert count >= (3 if front == "env" else 6)


PARKING = """
warm = warm_of(sys.argv[2])
front = sys.argv[4:]
box = {"sandbox": sf.Sandbox(front)} if front else {}
env = {**os.environ, "PYTHONPATH": sys.argv[3]}
warm.add("/usr/bin/python3", preimport=["slow"], env=env, **box)
print(open(sys.argv[3] + "/begun").read(), flush=True)
time.sleep(600)
"""
SLOW = """
import os, time
with open(os.path.dirname(__file__) + "/begun", "w") as fifo:
    fifo.write("slow")
time.sleep(600)
"""


def left_while_parking(mode: Mode, directory: Path, *front: str) -> int:
    need(PYTHON)
    (directory / "slow.py").write_text(SLOW, encoding="utf-8")
    os.mkfifo(directory / "begun")
    said, count = left_by(PARKING, mode, str(directory), *front)
    assert said == "slow\n"
    return count


@each_mode
def test_the_owner_is_killed_while_it_parks(mode: Mode, tmp_path: Path) -> None:
    assert left_while_parking(mode, tmp_path)


@each_front
def test_the_owner_is_killed_while_it_parks_behind_one_in_front(front: str, tmp_path: Path) -> None:
    need(FRONTS[front][0])
    assert left_while_parking("reserve", tmp_path, *FRONTS[front])


IN_FRONT = """
front = ["/bin/sh", "-c", 'sleep 600 & echo begun > "$0"; wait', sys.argv[2]]
warm = sf.Warm()
warm.add("/bin/true", sandbox=sf.Sandbox(front))
print(open(sys.argv[2]).read(), flush=True)
time.sleep(600)
"""


def test_the_owner_is_killed_while_a_program_in_front_is_at_work(tmp_path: Path) -> None:
    """Nothing of it is left: neither that program nor its children."""
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    said, count = left_by(IN_FRONT, str(fifo))
    assert said == "begun\n"
    assert count >= 2


RUNS = """
way, *front = sys.argv[2:]
box = {"sandbox": sf.Sandbox(front)} if front else {}
warm = warm_of(way)
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
def test_the_owner_is_killed_while_a_program_runs(way: Way) -> None:
    """The guard sees to that, as it does where a program was started as ever."""
    said, count = left_by(RUNS, way)
    assert said == "1\n"
    assert count >= 2


@each_front
def test_the_owner_is_killed_while_a_program_runs_behind_one_in_front(front: str) -> None:
    need(FRONTS[front][0])
    said, count = left_by(RUNS, "reserve", *FRONTS[front])
    assert said == "1\n"
    assert count >= 2
