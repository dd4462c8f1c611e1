# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options and hosts for which a start must be cold: a parked process cannot provide them."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import spawnfd as sf
from call_numbers import numbers
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
from warm_support import (
    FILL_S,
    FOR_ANY,
    Mode,
    Way,
    each_mode,
    each_way,
    output_of,
    parked,
    script_words,
)

SYS_FCHDIR, SYS_UMASK = numbers("fchdir", "umask")


Opened = list[int]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Returns a list for the descriptors that a test opens. The fixture closes them."""
    fds: Opened = []
    yield fds
    for fd in fds:
        os.close(fd)


@dataclass(frozen=True)
class Unsupported:
    """Actions, and the reason for a cold start.

    With `by_exec`, only modes reserve and fork start cold.
    """

    cold: str
    actions: Callable[[Opened, Path], list[Action]]
    by_exec: bool = False
    root: bool = False


def just(action: Action) -> Callable[[Opened, Path], list[Action]]:
    return lambda opened, directory: [action]


def stack(_: Opened, __: Path) -> list[Action]:
    """Sets a limit that exec uses for the layout of memory."""
    return [Limit(resource.RLIMIT_STACK, 4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1])]


def exclusive(_: Opened, directory: Path) -> list[Action]:
    """Creates a file. A second attempt would fail, because the file exists."""
    return [Open(directory / "new", 9, os.O_CREAT | os.O_EXCL | os.O_WRONLY)]


def null(opened: Opened) -> int:
    opened.append(os.open("/dev/null", os.O_RDWR))
    return opened[-1]


def the_last_number(opened: Opened, _: Path) -> list[Action]:
    """Uses the highest number.

    The parked process's own descriptors must lie above all others, and cannot.
    """
    return [Descriptor(null(opened), resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1)]


def many(opened: Opened, _: Path) -> list[Action]:
    """Passes more descriptors than one message can carry."""
    return [Descriptor(null(opened), 400 + number) for number in range(254)]


def into_its_own(opened: Opened, _: Path) -> list[Action]:
    """Joins the caller's own namespace."""
    opened.append(os.open("/proc/self/ns/uts", os.O_RDONLY))
    return [JoinNamespace(opened[-1], CLONE_NEWUTS)]


UNSUPPORTED = (
    Unsupported("inherited descriptors", just(InheritDescriptors())),
    Unsupported("parent-death signal", just(ParentDeathSignal(9))),
    Unsupported("namespaces", just(Namespaces(CLONE_NEWUTS)), root=True),
    Unsupported("namespaces", into_its_own, root=True),
    Unsupported("chroot", just(Chroot("/")), by_exec=True, root=True),
    Unsupported("affinity", just(Affinity(os.sched_getaffinity(0))), by_exec=True),
    Unsupported("ids or capabilities", just(Uid(os.getuid())), by_exec=True),
    Unsupported("ids or capabilities", just(GroupIds(os.getgid())), by_exec=True),
    Unsupported("memory limits", stack, by_exec=True),
    Unsupported("O_EXCL", exclusive, by_exec=True),
    Unsupported("too many descriptors", many),
    Unsupported("descriptor numbers", the_last_number),
)


@each_way
@pytest.mark.parametrize("case", UNSUPPORTED, ids=lambda case: case.cold.replace(" ", "-"))
def test_unsupported_actions_start_cold(
    case: Unsupported, way: Way, opened: Opened, tmp_path: Path
) -> None:
    if case.root and os.geteuid() != 0:
        pytest.skip("only root may do this")
    with parked("true", way) as warm:
        started = "cold: slow"
        while started == "cold: slow":
            for name in os.listdir(tmp_path):
                os.unlink(tmp_path / name)
            assert warm.fill(FILL_S), warm.stats()
            with warm.spawn(["true"], actions=case.actions(opened, tmp_path)) as child:
                assert child.wait() == 0
                started = child.started
    by_exec = case.by_exec and way in FOR_ANY
    assert started == (way if by_exec else f"cold: {case.cold}")


@each_way
def test_pid_namespace_starts_cold(way: Way) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may do this")
    with parked("true", way) as warm:
        result = warm.run(["true"], tree="pidns")
    assert (result.code, result.started) == (0, "cold: pid namespace")


@each_way
def test_subreaper_starts_cold(way: Way) -> None:
    with parked("true", way) as warm:
        result = warm.run(["true"], tree="subreaper")
    assert (result.code, result.started) == (0, "cold: subreaper")


STREAM = """
with parked("true", sys.argv[2]) as warm:
    os.set_inheritable(2, False)
    with warm.spawn(["true"]) as child:
        child.wait()
        print(child.started)
"""


@each_way
def test_close_on_exec_stream_starts_cold(way: Way) -> None:
    assert output_of(STREAM, way) == "cold: close-on-exec stream\n"


CLOSED = """
os.close(0)
with new_warm(sys.argv[2]) as warm:
    add(warm, sys.argv[2], "true", 1)
    print(warm.fill(60), warm.run(["true"]).started)
"""


@each_way
def test_host_without_stdin_starts_cold(way: Way) -> None:
    assert output_of(CLOSED, way) == "False cold: closed standard stream\n"


# This script waits for children of all kinds. No parked process may appear as an ended child.
WAITS = """
import ctypes
WALL = 0x40000000
with parked("true", sys.argv[2]) as warm:
    assert ctypes.CDLL(None).waitpid(-1, None, WALL | os.WNOHANG) == 0
    print(warm.run(["true"]).started)
"""


@each_way
def test_host_that_waits_for_all_children(way: Way) -> None:
    assert output_of(WAITS, way) == f"{way}\n"


OWN_TABLE = """
import ctypes, threading
found = []
def start():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    os.closerange(3, 256)
    found.append(warm.run(["true"]).started)
with parked("true", sys.argv[2]) as warm:
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    print(*found)
"""


@each_way
def test_thread_with_its_own_descriptor_table_starts_cold(way: Way) -> None:
    assert output_of(OWN_TABLE, way) == "cold: descriptor table\n"


WATCHES = """
with new_warm(sys.argv[2]) as warm:
    warm.add("true")
    print(warm.fill(60), warm.run(["true"]).started, *warm.stats().cannot.values())
"""


@each_mode
def test_no_inotify_watches_left(mode: Mode) -> None:
    """A user namespace sets the limit of watches to 0."""
    words, env = script_words(WATCHES, mode)
    limit = "echo 0 >/proc/sys/user/max_inotify_watches || { echo unshare: >&2; exit 1; }"
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{limit}; exec "$@"', "-"]
    ended = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, env=env)
    if "unshare: " in ended.stderr:
        pytest.skip(f"no user namespace here: {ended.stderr}")
    assert (ended.stdout, ended.stderr) == ("False cold: inotify inotify\n", "")


@each_mode
@pytest.mark.parametrize("call", [SYS_FCHDIR, SYS_UMASK], ids=["directory", "umask"])
def test_filter_refuses_to_take_over_the_context(call: int, mode: Mode) -> None:
    filter = refusal(call)
    with sf.Warm(mode=mode) as warm:
        warm.add("true", seccomp=filter, no_new_privs=True)
        assert warm.fill(FILL_S), warm.stats()
        assert warm.stats().cannot == {}
        result = warm.run(["true"], actions=[sf.actions.NoNewPrivs(), sf.actions.Seccomp(filter)])
    assert (result.code, result.started) == (0, "cold: context")


@each_mode
def test_removed_program(mode: Mode, tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    with sf.Warm(mode=mode) as warm:
        warm.add(program)
        assert warm.fill(FILL_S), warm.stats()
        program.unlink()
        while not warm.stats().cannot:
            warm.fill(FILL_S)
        assert not warm.fill(FILL_S)
        assert warm.stats().cannot == {str(program): "not found"}
        assert warm.stats().parked == 0
        with pytest.raises(FileNotFoundError):
            warm.run([program])


UNREADABLE = """
drop_ids()
with sf.Warm(mode=sys.argv[2]) as warm:
    warm.add(sys.argv[3])
    assert not warm.fill(60), warm.stats()
    print(warm.run([sys.argv[3]]).started)
"""


@each_mode
def test_unreadable_program_starts_cold(mode: Mode, tmp_path: Path) -> None:
    """If the library cannot read the file, it cannot tell whether the program would park."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o011)
    program = tmp_path / "tool"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o111)
    assert output_of(UNREADABLE, mode, str(program)) == "cold: unreadable\n"


# Only the sandbox's command could pass these changes on to the program.
IN_SANDBOX = """
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
def test_changes_start_cold_in_a_sandbox(reason: str) -> None:
    assert output_of(IN_SANDBOX, reason) == f"cold: {reason}\n"
