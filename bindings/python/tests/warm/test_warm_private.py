# SPDX-License-Identifier: MIT OR Apache-2.0
"""Other processes have no access to a parked process, which has no descriptors of its owner."""

from __future__ import annotations

import ast
import json
import os

import pytest
from warm_support import FOR_ANY, WAYS, Way, output_of, require

PYTHON, NODE = "/usr/bin/python3", "node"
PARKED = [
    *((way, "sh") for way in WAYS),
    *((way, program) for way in ("reserve", "fork") for program in (PYTHON, NODE)),
]
each_parked = pytest.mark.parametrize(("way", "program"), PARKED)

# This script tries to access processes of the same user: first a normal child, then the given pids.
LOOK = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE, PIDFD_GETFD = 0x4206, 438
def read(name):
    return lambda pid: open(f"/proc/{pid}/{name}", "rb").read(0 if name == "mem" else -1)
def get_descriptor(pid):
    pidfd = os.pidfd_open(pid)
    if all(libc.syscall(PIDFD_GETFD, pidfd, number, 0) < 0 for number in range(64)):
        raise PermissionError
def seize(pid):
    if libc.ptrace(PTRACE_SEIZE, pid, None, None) < 0:
        raise PermissionError
WAYS = {
    "fd": lambda pid: os.listdir(f"/proc/{pid}/fd"), "environ": read("environ"),
    "maps": read("maps"), "exe": lambda pid: os.readlink(f"/proc/{pid}/exe"),
    "mem": read("mem"), "pidfd_getfd": get_descriptor, "ptrace": seize,
}
def possible(pid):
    found = []
    for name, way in WAYS.items():
        try:
            way(pid)
            found.append(name)
        except PermissionError:
            pass
    return found
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as own:
    print([possible(pid) for pid in (own.pid, *map(int, sys.argv[1:]))])
"""
UNPRIVILEGED = """
import ctypes
drop_ids()
# After setresuid() the process is undumpable. Here parking itself must make it undumpable.
PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
# The library watches directories in HOME and PYTHONPATH. This user may not read the original ones.
os.environ["HOME"] = "/"
os.environ.pop("PYTHONPATH")
warm = new_warm(sys.argv[2])
add(warm, sys.argv[2], sys.argv[3], 2)
assert warm.fill(60), warm.stats()
# The script LOOK runs in a new process that has no access inherited from this one.
look = [sys.argv[4], "-c", sys.argv[5], *map(str, running())]
print(subprocess.check_output(look, cwd="/", text=True, timeout=60), end="")
print(warm.run([sys.argv[3], "/dev/null"]).started)
warm.close()
"""


@each_parked
def test_parked_process_is_inaccessible(way: Way, program: str) -> None:
    """Not even processes of the same user can read or trace it."""
    require(program, PYTHON)
    found, started = output_of(UNPRIVILEGED, way, program, PYTHON, LOOK).splitlines()
    other, *parked = ast.literal_eval(found)
    assert {"fd", "environ", "maps", "exe"} <= set(other), "a normal program is accessible"
    assert len(parked) >= 2
    assert parked == [[]] * len(parked)
    assert started == way


OPEN = """
import json, socket, time
own = [open("/etc/passwd"), *socket.socketpair(), *os.pipe(), os.memfd_create("own")]
for one in own:
    os.set_inheritable(one if isinstance(one, int) else one.fileno(), True)
warm = new_warm(sys.argv[2])
add(warm, sys.argv[2], sys.argv[3], 3)
assert warm.fill(60), warm.stats()
def names(inode):
    lines = [line.split() for line in open("/proc/net/unix")]
    return [name for line in lines if line[6] == inode for name in line[7:]]
def what(pid, number):
    target = os.readlink(f"/proc/{pid}/fd/{number}")
    kind, _, inode = target.partition(":[")
    if kind == "socket":
        return ["socket", *names(inode[:-1])]
    if target == "anon_inode:[pidfd]":
        with open(f"/proc/{pid}/fdinfo/{number}") as info:
            return ["pidfd", f"Pid:\\t{os.getpid()}\\n" in info.readlines()]
    return [kind if kind == "pipe" else target]
def mapped(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return sorted({line.split("/memfd:")[1].split()[0] for line in maps if "/memfd:" in line})
def all_of(pid):
    # A forked process reports that it is parked before it closes its parent's socket. It sleeps
    # only after that.
    deadline = time.monotonic() + 60
    while open(f"/proc/{pid}/stat").read().rpartition(") ")[2][0] != "S":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return {number: what(pid, number) for number in map(int, os.listdir(f"/proc/{pid}/fd"))}
print(json.dumps([(sorted(all_of(pid).items()), mapped(pid)) for pid in running()]))
warm.close()
"""


@each_parked
def test_descriptors_and_memory_files_of_a_parked_process(way: Way, program: str) -> None:
    """The process has /dev/null as 0, 1, 2, an unnamed socket, the owner's pidfd, and the page."""
    require(program)
    if os.geteuid() != 0:
        pytest.skip("only root may look into a parked process")
    found = json.loads(output_of(OPEN, way, program))
    assert len(found) == (3 if way in ("reserve", "pool") else 4)
    streams = [[number, ["/dev/null"]] for number in range(3)]
    line = [["socket"], ["pidfd", True]]
    for descriptors, mapped in found:
        assert descriptors[:3] == streams
        if program == NODE:
            # Node.js opens its own descriptors first.
            own = {what for _, (what, *_) in descriptors[3:-2]}
            assert own <= {"/dev/null", "pipe", "anon_inode:[eventpoll]", "anon_inode:[eventfd]"}
            assert [what for _, what in descriptors[-2:]] == line
        else:
            assert descriptors[3:] == [[3, line[0]], [4, line[1]]]
        assert mapped == ["spawnfd-page", "spawnfd-zygote" if way in FOR_ANY else "spawnfd-warm"]
