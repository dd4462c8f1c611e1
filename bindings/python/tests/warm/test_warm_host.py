# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hosts with parked processes that change themselves: drop ids, close descriptors, turn off."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from warm_programs import MAIN, compiled
from warm_support import Mode, Way, each_mode, each_way, output_of

IDS = """
warm = new_warm(sys.argv[2], idle=1.0 if sys.argv[3] == "idle" else None)
add(warm, sys.argv[2], "true", 2)
assert warm.fill(60)
drop_ids()
if sys.argv[3] == "close":
    warm.close()
print(eventually(lambda: not children()))
"""


@pytest.mark.parametrize("end", ["close", "idle"])
@each_way
def test_parked_processes_end_after_the_host_drops_ids(way: Way, end: str) -> None:
    """The host may no longer signal these processes, so they must exit by themselves."""
    if os.geteuid() != 0:
        pytest.skip("only root has ids to give up")
    assert output_of(IDS, way, end) == "True\n"


DROPPED_IDS = """
import ctypes
libc = ctypes.CDLL(None)
libc.setgroups(0, None)
libc.setresgid(65534, 65534, 65534)
libc.setresuid(65534, 65534, int(sys.argv[3]))
with new_warm(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    assert warm.fill(60) is (sys.argv[3] == "65534"), warm.stats()
    print(warm.run(["true"]).started)
"""


@each_way
def test_host_that_has_dropped_ids_starts_warm(way: Way) -> None:
    """The kernel makes such a host undumpable, and its parent belongs to another user."""
    if os.geteuid() != 0:
        pytest.skip("only root has ids to give up")
    assert output_of(DROPPED_IDS, way, "65534") == f"{way}\n"


@each_way
def test_host_with_a_different_saved_id_starts_cold(way: Way) -> None:
    """An exec copies the effective id to the saved id."""
    if os.geteuid() != 0:
        pytest.skip("only root has ids to give up")
    assert output_of(DROPPED_IDS, way, "65533") == "cold: exec changes user ids\n"


MANY_GROUPS = """
os.setgroups(range(100_000, 102_000))
with new_warm(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    assert not warm.fill(60)
    print(warm.run(["true"]).started)
"""


@each_way
def test_host_with_many_groups_starts_cold(way: Way) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may set its groups")
    assert output_of(MANY_GROUPS, way) == "cold: too many groups\n"


CLOSED = """
warm = new_warm(sys.argv[2], idle=None)
add(warm, sys.argv[2], "true", 3)
assert warm.fill(60)
# After this pause, the keeper thread sleeps.
time.sleep(0.3)
os.closerange(3, 256)
own = [subprocess.Popen(["sleep", "600"]) for _ in range(40)]
pidfds = [os.pidfd_open(process.pid) for process in own]
warm.close()
print([process.poll() for process in own] == [None] * len(own))
for pidfd, process in zip(pidfds, own):
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    process.wait()
"""


@each_way
def test_close_after_the_host_closed_all_descriptors(way: Way) -> None:
    """close() returns, and does not touch processes whose pidfds now have these numbers."""
    assert output_of(CLOSED, way) == "True\n"


# If a process does not park, it runs this shell script, which appends a line.
UNASKED = """
warm = sf.Warm(delay=0.3)
warm.add("sh", args=["-c", "echo ran >> $RAN"], depth=2)
assert warm.fill(60)
warm.run(["sh", "-c", "echo ran >> $RAN"])
os.closerange(3, 256)
own = [open("/dev/null") for _ in range(100)]
time.sleep(2)
warm.close()
print(open(os.environ["RAN"]).read())
"""


def test_program_without_the_parking_library_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has closed the memory file of the preloaded library that parks a program."""
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    assert output_of(UNASKED) == "ran\n\n"


FIFO = """
path = sys.argv[2]
template = sf.Template(path)
os.unlink(path)
os.mkfifo(path)
with sf.Warm() as warm:
    warm.add(template)
    print(*warm.stats().cannot.values())
"""


def test_fifo_in_place_of_a_program_does_not_block(tmp_path: Path) -> None:
    """The FIFO has replaced the file of a template."""
    program = tmp_path / "true"
    shutil.copy("/bin/true", program)
    assert output_of(FIFO, str(program)) == "unreadable\n"


# Hosts other than Python do not ignore SIGXFSZ. Its default action ends the process.
SHORT_FILES = """
import errno, resource
def print_outcome(call):
    try:
        print(call())
    except sf.SpawnError as error:
        print(errno.errorcode[error.errno])
sys.dont_write_bytecode = True
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
warm = new_warm(sys.argv[2], delay=0.001)
add(warm, sys.argv[2], "true", 1)
assert warm.fill(60)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
for _ in range(3):
    warm.run(["true"])
    warm.fill(0.5)
warm.close()
print_outcome(sf.Warm)
print_outcome(lambda: sf.run(["true"], tree="guard").tree)
"""


@each_way
def test_file_size_limit_does_not_kill_the_host(way: Way) -> None:
    """RLIMIT_FSIZE also limits memory files. The host must get EFBIG instead of SIGXFSZ."""
    assert output_of(SHORT_FILES, way) == "EFBIG\nEFBIG\n"


SHORT_OF_DESCRIPTORS = """
import resource, shutil
program = shutil.copy("/bin/true", sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
warm = new_warm("reserve", delay=0.001)
add(warm, "reserve", "true", 1)
assert warm.fill(60)
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for _ in range(4):
    os.close(taken.pop())
add(warm, "reserve", program, 1)
print(warm.fill(60), *warm.stats().cannot.values())
for number in taken:
    os.close(number)
print(warm.fill(60), *warm.stats().cannot.values())
print(warm.run([program]).started)
"""


def test_parking_is_retried_once_descriptors_are_free(tmp_path: Path) -> None:
    """stats() reports EMFILE while no descriptors are free. Later the program is parked."""
    short, *after = output_of(
        SHORT_OF_DESCRIPTORS, "reserve", str(tmp_path / "program")
    ).splitlines()
    assert short.startswith("False "), short
    assert short.endswith("(): EMFILE"), short
    assert after == ["True", "reserve"]


# A process becomes undumpable before it counts as parked. This program takes 2 s for that.
LATE = """
#define _GNU_SOURCE
#include <linux/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int late(void) { return 5; }
int prctl(int option, long a, long b, long c, long d) {
    if (option == PR_SET_DUMPABLE && !a) sleep(2);
    return syscall(SYS_prctl, option, a, b, c, d);
}
"""
HIDDEN = """
drop_ids()
warm = new_warm(sys.argv[2])
warm.add(sys.argv[3], depth=1)
assert warm.fill(60), warm.stats()
def is_readable(pid):
    try:
        return bool(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return False
alive = [pid for pid in children() if " Z " not in open(f"/proc/{pid}/stat").read()]
print(len(alive) > 0, [pid for pid in alive if is_readable(pid)])
warm.close()
"""


@each_mode
def test_parked_process_is_undumpable(mode: Mode) -> None:
    # Another user may execute programs in this directory.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = compiled(Path(directory, "program"), LATE + MAIN, "-rdynamic")
        assert output_of(HIDDEN, mode, str(path)) == "True []\n"


OFF = """
def turn_off():
    if sys.argv[3] == "environment":
        os.environ["SPAWNFD_WARM"] = "0"
    else:
        sf.Warm.turn_off()
def threads():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return names.count("spawnfd-warm\\n")
def tell():
    result = warm.run(["/bin/sh", "-c", "exit 3"], tree="group")
    print(result.started, result.code, warm.fill(60), warm.stats().parked)
if sys.argv[4] == "first":
    turn_off()
warm = new_warm(sys.argv[2])
add(warm, sys.argv[2], "/bin/sh", 2)
if sys.argv[4] == "later":
    assert warm.fill(60) and children()
    turn_off()
    tell()
    eventually(lambda: not children())
else:
    tell()
    template = sf.Template("/bin/true", warm="reserve")
    print(template.warm.fill(60), template.run(tree="group").started, threads())
print(len(children()))
"""


@pytest.mark.parametrize("how", ["environment", "call"])
@each_way
def test_turned_off_before_the_first_start(way: Way, how: str) -> None:
    """The library parks nothing, and starts no keeper thread."""
    assert output_of(OFF, way, how, "first") == "cold: off 3 False 0\nFalse cold: off 0\n0\n"


@pytest.mark.parametrize("how", ["environment", "call"])
@each_way
def test_turned_off_later(way: Way, how: str) -> None:
    """All parked processes end."""
    assert output_of(OFF, way, how, "later") == "cold: off 3 False 0\n0\n"


ON_AGAIN = """
os.environ["SPAWNFD_WARM"] = "0"
warm = new_warm(sys.argv[2])
add(warm, sys.argv[2], "true", 1)
print(warm.run(["true"]).started)
del os.environ["SPAWNFD_WARM"]
print(warm.fill(60), warm.run(["true"]).started)
warm.close()
"""


@each_way
def test_turned_on_again(way: Way) -> None:
    assert output_of(ON_AGAIN, way) == f"cold: off\nTrue {way}\n"
