# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a command asks for that only a child of exec has, or a host cannot have done: it is cold."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import spawnfd as sf
from spawnfd.actions import (
    Action,
    Affinity,
    Chroot,
    Descriptor,
    GroupIds,
    InheritDescriptors,
    JoinNamespace,
    Limit,
    Namespaces,
    Open,
    ParentDeathSignal,
    Uid,
)
from warm_cases import CLONE_NEWUTS, refusal
from warm_support import ANY, FILL_S, Mode, Way, each_mode, each_way, parked, script_words, told

# x86_64.
SYS_FCHDIR, SYS_UMASK = 81, 95


Opened = list[int]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """What a test opens, to be closed."""
    fds: Opened = []
    yield fds
    for fd in fds:
        os.close(fd)


@dataclass(frozen=True)
class Asked:
    """What is asked for, and why it is cold; `by_exec`: not where the program is executed."""

    cold: str
    actions: Callable[[Opened, Path], list[Action]]
    by_exec: bool = False
    root: bool = False


def just(action: Action) -> Callable[[Opened, Path], list[Action]]:
    return lambda opened, directory: [action]


def stack(_: Opened, __: Path) -> list[Action]:
    """A limit that exec lays memory out by."""
    return [Limit(resource.RLIMIT_STACK, 4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1])]


def exclusive(_: Opened, directory: Path) -> list[Action]:
    """A file that a second attempt would find."""
    return [Open(directory / "new", 9, os.O_CREAT | os.O_EXCL | os.O_WRONLY)]


def null(opened: Opened) -> int:
    opened.append(os.open("/dev/null", os.O_RDWR))
    return opened[-1]


def the_last_number(opened: Opened, _: Path) -> list[Action]:
    """Nothing can wait above it."""
    return [Descriptor(null(opened), resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)]


def many(opened: Opened, _: Path) -> list[Action]:
    """More than one message takes."""
    return [Descriptor(null(opened), 400 + number) for number in range(254)]


def into_its_own(opened: Opened, _: Path) -> list[Action]:
    """A namespace that it has, by descriptor."""
    opened.append(os.open("/proc/self/ns/uts", os.O_RDONLY))
    return [JoinNamespace(opened[-1], CLONE_NEWUTS)]


ASKED = (
    Asked("inherited descriptors", just(InheritDescriptors())),
    Asked("parent-death signal", just(ParentDeathSignal(9))),
    Asked("namespaces", just(Namespaces(CLONE_NEWUTS)), root=True),
    Asked("namespaces", into_its_own, root=True),
    Asked("chroot", just(Chroot("/")), by_exec=True, root=True),
    Asked("affinity", just(Affinity(os.sched_getaffinity(0))), by_exec=True),
    Asked("ids or capabilities", just(Uid(os.getuid())), by_exec=True),
    Asked("ids or capabilities", just(GroupIds(os.getgid())), by_exec=True),
    Asked("memory limits", stack, by_exec=True),
    Asked("O_EXCL", exclusive, by_exec=True),
    Asked("too many descriptors", many),
    Asked("descriptor numbers", the_last_number),
)


@each_way
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.cold.replace(" ", "-"))
def test_asked(asked: Asked, way: Way, opened: Opened, tmp_path: Path) -> None:
    if asked.root and os.geteuid() != 0:
        pytest.skip("only root may do this")
    with parked("true", way) as warm:
        started = "cold: slow"
        while started == "cold: slow":
            for name in os.listdir(tmp_path):
                os.unlink(tmp_path / name)
            assert warm.fill(FILL_S), warm.stats()
            with warm.spawn(["true"], actions=asked.actions(opened, tmp_path)) as child:
                assert child.wait() == 0
                started = child.started
    by_exec = asked.by_exec and way in ANY
    assert started == (way if by_exec else f"cold: {asked.cold}")


@each_way
def test_a_pid_namespace(way: Way) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may do this")
    with parked("true", way) as warm:
        result = warm.run(["true"], tree="pidns")
    assert (result.code, result.started) == (0, "cold: pid namespace")


STREAM = """
with warm_of(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    assert warm.fill(60), warm.stats()
    os.set_inheritable(2, False)
    with warm.spawn(["true"]) as child:
        child.wait()
        print(child.started)
"""


@each_way
def test_a_stream_that_exec_would_close(way: Way) -> None:
    assert told(STREAM, way) == "cold: close-on-exec stream\n"


CLOSED = """
os.close(0)
with warm_of(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    print(warm.fill(60), warm.run(["true"]).started)
"""


@each_way
def test_a_host_without_stdin(way: Way) -> None:
    assert told(CLOSED, way) == "False cold: closed standard stream\n"


# All of its children, of whatever kind: none of them is an ended one.
WAITS = """
import ctypes
WALL = 0x40000000
with warm_of(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    assert warm.fill(60), warm.stats()
    assert ctypes.CDLL(None).waitpid(-1, None, WALL | os.WNOHANG) == 0
    print(warm.run(["true"]).started)
"""


@each_way
def test_a_host_that_waits_for_all(way: Way) -> None:
    assert told(WAITS, way) == f"{way}\n"


OWN_TABLE = """
import ctypes, threading
found = []
def start():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    os.closerange(3, 256)
    found.append(warm.run(["true"]).started)
with warm_of(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    assert warm.fill(60), warm.stats()
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    print(*found)
"""


@each_way
def test_a_thread_with_its_own_descriptors(way: Way) -> None:
    assert told(OWN_TABLE, way) == "cold: descriptor table\n"


WATCHES = """
with warm_of(sys.argv[2]) as warm:
    warm.add("true")
    print(warm.fill(60), warm.run(["true"]).started, *warm.stats().cannot.values())
"""


@each_mode
def test_as_many_watches_as_a_user_may_have(mode: Mode) -> None:
    """The last word is that of a user namespace of its own."""
    words, env = script_words(WATCHES, mode)
    limit = "echo 0 >/proc/sys/user/max_inotify_watches || { echo unshare: >&2; exit 1; }"
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{limit}; exec "$@"', "-"]
    ended = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, env=env)
    if "unshare: " in ended.stderr:
        pytest.skip(f"no user namespace here: {ended.stderr}")
    assert (ended.stdout, ended.stderr) == ("False cold: inotify inotify\n", "")


@each_mode
@pytest.mark.parametrize("call", [SYS_FCHDIR, SYS_UMASK], ids=["directory", "umask"])
def test_what_a_filter_does_not_let_it_take_over(call: int, mode: Mode) -> None:
    filter = refusal(call)
    with sf.Warm(mode=mode) as warm:
        warm.add("true", seccomp=filter, no_new_privs=True)
        assert warm.fill(FILL_S), warm.stats()
        assert warm.stats().cannot == {}
        result = warm.run(["true"], actions=[sf.actions.NoNewPrivs(), sf.actions.Seccomp(filter)])
    assert (result.code, result.started) == (0, "cold: context")


@each_mode
def test_a_program_that_goes(mode: Mode, tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    with sf.Warm(mode=mode) as warm:
        warm.add(program)
        assert warm.fill(FILL_S), warm.stats()
        program.unlink()
        while not warm.stats().cannot:
            assert warm.fill(FILL_S)
        assert warm.stats().cannot == {str(program): "not found"}
        assert warm.stats().parked == 0
        with pytest.raises(FileNotFoundError):
            warm.run([program])


UNREADABLE = """
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
with sf.Warm(mode=sys.argv[2]) as warm:
    warm.add(sys.argv[3])
    assert warm.fill(60), warm.stats()
    print(warm.run([sys.argv[3]]).started)
"""


@each_mode
def test_a_program_that_may_not_be_read(mode: Mode, tmp_path: Path) -> None:
    """By its user: nobody can tell whether it would park."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o011)
    program = tmp_path / "tool"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o111)
    assert told(UNREADABLE, mode, str(program)) == "cold: unreadable\n"


# What only the program in front could hand on.
BEHIND = """
import resource
box = sf.Sandbox(["env"])
options = {}
def limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
changes = {
    "environment": lambda: options.update(env={**os.environ, "ADDED": "1"}),
    "working directory": lambda: os.chdir("/usr"),
    "ignored signals": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    "limits": limit,
    "sandbox": lambda: options.update(actions=[sf.actions.Umask(0o27)]),
    "descriptors of the sandbox": lambda: options.update(sandbox=sf.Sandbox(["env"], fds={9: 1})),
}
with sf.Warm() as warm:
    warm.add("true", sandbox=box)
    def start():
        while True:
            assert warm.fill(60), warm.stats()
            started = warm.run(["true"], **{"sandbox": box, **options}).started
            if started != "cold: slow":
                return started
    assert start() == "reserve"
    if sys.argv[2] == "session":
        with warm.spawn(["true"], sandbox=box) as child:
            child.wait()
            print(child.started)
    else:
        changes[sys.argv[2]]()
        print(start())
"""


@pytest.mark.parametrize(
    "reason",
    [
        *("environment", "working directory", "session", "ignored signals", "limits"),
        *("sandbox", "descriptors of the sandbox"),
    ],
)
def test_behind_another_program(reason: str) -> None:
    assert told(BEHIND, reason) == f"cold: {reason}\n"
