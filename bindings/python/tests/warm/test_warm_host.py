# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a host does to itself beside its parked processes: it gives up ids, closes descriptors."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from warm_programs import MAIN, compiled
from warm_support import Mode, Way, each_mode, each_way, told

IDS = """
warm = warm_of(sys.argv[2], idle=1.0 if sys.argv[3] == "idle" else None)
add(warm, sys.argv[2], "true", 2)
assert warm.fill(60)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
if sys.argv[3] == "close":
    warm.close()
deadline = time.monotonic() + 60
while children() and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(children()))
"""


@pytest.mark.parametrize("end", ["close", "idle"])
@each_way
def test_ids_given_up(way: Way, end: str) -> None:
    """Processes that the host may not signal any more end by themselves."""
    if os.geteuid() != 0:
        pytest.skip("only root has ids to give up")
    assert told(IDS, way, end) == "0\n"


GIVEN_UP = """
import ctypes
libc = ctypes.CDLL(None)
libc.setgroups(0, None)
libc.setresgid(65534, 65534, 65534)
libc.setresuid(65534, 65534, int(sys.argv[3]))
with warm_of(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    assert warm.fill(60), warm.stats()
    print(warm.run(["true"]).started)
"""


@each_way
def test_a_host_that_has_given_up_ids(way: Way) -> None:
    """The kernel does not let it be looked into, and its parent is another user's."""
    if os.geteuid() != 0:
        pytest.skip("only root has ids to give up")
    assert told(GIVEN_UP, way, "65534") == f"{way}\n"


@each_way
def test_a_host_with_several_ids(way: Way) -> None:
    """An exec makes the saved id the effective one."""
    if os.geteuid() != 0:
        pytest.skip("only root has ids to give up")
    assert told(GIVEN_UP, way, "65533") == "cold: exec changes user ids\n"


MANY_GROUPS = """
os.setgroups(range(100_000, 102_000))
with warm_of(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    assert warm.fill(60), warm.stats()
    print(warm.run(["true"]).started)
"""


@each_way
def test_many_groups(way: Way) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may set its groups")
    assert told(MANY_GROUPS, way) == "cold: too many groups\n"


CLOSED = """
warm = warm_of(sys.argv[2], idle=None)
add(warm, sys.argv[2], "true", 3)
assert warm.fill(60)
# The keeper sleeps.
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
def test_descriptors_closed(way: Way) -> None:
    """close() comes back, and the processes that stand at these numbers by then are left alone."""
    assert told(CLOSED, way) == "True\n"


# Where it is not parked it runs, and leaves a line.
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


def test_nothing_runs_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the object that parks it a program would run."""
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    assert told(UNASKED) == "ran\n\n"


FIFO = """
path = sys.argv[2]
template = sf.Template(path)
os.unlink(path)
os.mkfifo(path)
with sf.Warm() as warm:
    warm.add(template)
    print(*warm.stats().cannot.values())
"""


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    """One that has come to stand where a template's file was."""
    program = tmp_path / "true"
    shutil.copy("/bin/true", program)
    assert told(FIFO, str(program)) == "unreadable\n"


# As it is in hosts that are no Python: the kernel's own action for the signal is an end.
SHORT_FILES = """
import errno, resource
def what_comes_of(call):
    try:
        print(call())
    except sf.SpawnError as error:
        print(errno.errorcode[error.errno])
sys.dont_write_bytecode = True
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
warm = warm_of(sys.argv[2], delay=0.001)
add(warm, sys.argv[2], "true", 1)
assert warm.fill(60)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
for _ in range(3):
    warm.run(["true"])
    warm.fill(0.5)
warm.close()
what_comes_of(sf.Warm)
what_comes_of(lambda: sf.run(["true"], tree="guard").tree)
"""


@each_way
def test_files_must_be_short(way: Way) -> None:
    """RLIMIT_FSIZE is about files in memory as well: SIGXFSZ is not to end the host."""
    assert told(SHORT_FILES, way) == "EFBIG\nEFBIG\n"


SHORT_OF_DESCRIPTORS = """
import resource, shutil
program = shutil.copy("/bin/true", sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
warm = warm_of("reserve", delay=0.001)
add(warm, "reserve", "true", 1)
assert warm.fill(60)
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
for _ in range(4):
    os.close(held.pop())
add(warm, "reserve", program, 1)
print(warm.fill(60), *warm.stats().cannot.values())
for number in held:
    os.close(number)
print(warm.fill(60), *warm.stats().cannot.values())
print(warm.run([program]).started)
"""


def test_descriptors_are_short_for_a_while(tmp_path: Path) -> None:
    """It is told so, and parked when there are some again."""
    short, *after = told(SHORT_OF_DESCRIPTORS, "reserve", str(tmp_path / "program")).splitlines()
    assert short.startswith("False "), short
    assert short.endswith("(): EMFILE"), short
    assert after == ["True", "reserve"]


# What parks hides itself, however long that takes, before it is counted as parked.
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
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
warm = warm_of(sys.argv[2])
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
def test_what_is_parked_is_not_dumpable(mode: Mode) -> None:
    # Where another user may execute it.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = compiled(Path(directory, "program"), LATE + MAIN, "-rdynamic")
        assert told(HIDDEN, mode, str(path)) == "True []\n"


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
    result = warm.run(["/bin/sh", "-c", "exit 3"])
    print(result.started, result.code, warm.fill(60), warm.stats().parked)
if sys.argv[4] == "first":
    turn_off()
warm = warm_of(sys.argv[2])
add(warm, sys.argv[2], "/bin/sh", 2)
if sys.argv[4] == "later":
    assert warm.fill(60) and children()
    turn_off()
    tell()
    deadline = time.monotonic() + 60
    while children() and time.monotonic() < deadline:
        time.sleep(0.01)
else:
    tell()
    template = sf.Template("/bin/true", warm="reserve")
    print(template.warm.fill(60), template.run().started, threads())
print(len(children()))
"""


@pytest.mark.parametrize("how", ["environment", "call"])
@each_way
def test_switched_off(way: Way, how: str) -> None:
    """Nothing is parked, and nobody is there to do it."""
    assert told(OFF, way, how, "first") == "cold: off 3 False 0\nFalse cold: off 0\n0\n"


@pytest.mark.parametrize("how", ["environment", "call"])
@each_way
def test_switched_off_later(way: Way, how: str) -> None:
    """What is parked ends."""
    assert told(OFF, way, how, "later") == "cold: off 3 False 0\n0\n"


ON_AGAIN = """
os.environ["SPAWNFD_WARM"] = "0"
warm = warm_of(sys.argv[2])
add(warm, sys.argv[2], "true", 1)
print(warm.run(["true"]).started)
del os.environ["SPAWNFD_WARM"]
print(warm.fill(60), warm.run(["true"]).started)
warm.close()
"""


@each_way
def test_switched_on_again(way: Way) -> None:
    assert told(ON_AGAIN, way) == f"cold: off\nTrue {way}\n"
