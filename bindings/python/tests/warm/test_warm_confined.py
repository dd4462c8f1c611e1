# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processes parked under Landlock and seccomp filters, and the starts that may use them."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
import warm_cases
from call_numbers import NUMBERS
from patience import TIMEOUT_S
from spawnfd.actions import Action, Descriptor, Landlock, NoNewPrivs, Open, Seccomp, Setsid
from warm_cases import BY_ID, CASES, no_mkdir, ruleset_against_mkdir
from warm_lines import ENVIRONMENT
from warm_support import FILL_S, Mode, Warm, each_mode, outcome_of, require, retry_if_slow

MKDIR = ["/bin/sh", "-c", "mkdir made || exit 9"]
# Changes after which a thread of the owner has less authority than the parked processes.
AUTHORITY = [case.id for case in CASES if case.thread]


@pytest.fixture
def ruleset() -> Iterator[int]:
    """Creates a Landlock ruleset that forbids creating directories."""
    try:
        fd = ruleset_against_mkdir()
    except OSError as error:
        pytest.skip(f"no Landlock: {error}")
    yield fd
    os.close(fd)


def park(warm: sf.Warm, program: str, **options: Any) -> None:
    warm.add(program, depth=1, **options)
    assert warm.fill(FILL_S), warm.stats()
    assert not warm.stats().cannot


def start(warm: sf.Warm, cwd: Path, *actions: Action, argv: Any = MKDIR) -> sf.Result:
    return warm.run(argv, cwd=cwd, actions=actions)


@each_mode
def test_start_needs_the_same_landlock_ruleset(mode: Mode, ruleset: int, tmp_path: Path) -> None:
    with Warm(mode=mode) as warm:
        park(warm, "/bin/sh", landlock=ruleset, no_new_privs=True)
        confined = start(warm, tmp_path, NoNewPrivs(), Landlock(ruleset))
        assert (confined.started, confined.code) == (mode, 9), confined
        assert warm.fill(FILL_S)
        # A duplicated descriptor refers to the same ruleset.
        copy = os.dup(ruleset)
        confined = start(warm, tmp_path, NoNewPrivs(), Landlock(copy))
        os.close(copy)
        assert (confined.started, confined.code) == (mode, 9)
        assert warm.fill(FILL_S)
        # A second ruleset with the same content is a different one.
        other = ruleset_against_mkdir()
        confined = start(warm, tmp_path, NoNewPrivs(), Landlock(other))
        os.close(other)
        assert (confined.started, confined.code) == ("cold: Landlock ruleset", 9)
        free = start(warm, tmp_path)
        assert (free.started, free.code) == ("cold: Landlock ruleset", 0)


@each_mode
def test_start_needs_the_same_filter(mode: Mode, tmp_path: Path) -> None:
    filter = no_mkdir()
    with Warm(mode=mode) as warm:
        park(warm, "/bin/sh", seccomp=filter, no_new_privs=True)
        confined = start(warm, tmp_path, Seccomp(filter), NoNewPrivs())
        assert (confined.started, confined.code) == (mode, 9), confined
        assert warm.fill(FILL_S)
        free = start(warm, tmp_path, NoNewPrivs())
        assert (free.started, free.code) == ("cold: seccomp filter", 0)
        other = start(warm, tmp_path, NoNewPrivs(), Seccomp(no_mkdir(errno.EDOM)))
        assert (other.started, other.code) == ("cold: seccomp filter", 9)


def test_start_needs_no_new_privs(tmp_path: Path) -> None:
    with Warm() as warm:
        park(warm, "/bin/sh", no_new_privs=True)
        assert start(warm, tmp_path).started == "cold: no_new_privs"
        (tmp_path / "made").rmdir()
        assert start(warm, tmp_path, NoNewPrivs()).started == "reserve"


def test_each_start_uses_the_matching_confinement(ruleset: int, tmp_path: Path) -> None:
    """One program is parked under several confinements."""
    filter = no_mkdir()
    seen = "grep -E '^(NoNewPrivs|Seccomp_filters)' /proc/self/status"
    with Warm() as warm:
        park(warm, "/bin/sh")
        park(warm, "/bin/sh", landlock=ruleset, no_new_privs=True)
        park(warm, "/bin/sh", seccomp=filter, no_new_privs=True)
        park(warm, "/bin/sh", seccomp=filter, no_new_privs=True, landlock=ruleset)
        lists: list[tuple[list[Action], int]] = [
            ([], 0),
            ([NoNewPrivs(), Landlock(ruleset)], 9),
            ([NoNewPrivs(), Seccomp(filter)], 9),
            ([NoNewPrivs(), Landlock(ruleset), Seccomp(filter)], 9),
        ]
        for actions, code in lists:
            argv = ["/bin/sh", "-c", f"{seen}; {MKDIR[-1]}; rmdir made"]
            result = start(warm, tmp_path, *actions, argv=argv)
            cold = sf.run(argv, cwd=tmp_path, actions=actions)
            assert (result.started, result.code, result.stdout) == ("reserve", code, cold.stdout)
            assert warm.fill(FILL_S)


@each_mode
def test_start_up_code_is_confined(mode: Mode, ruleset: int, tmp_path: Path) -> None:
    """A preimported module runs under the confinement."""
    require("/usr/bin/python3")
    (tmp_path / "early.py").write_text(
        f"import os\ntry:\n    os.mkdir({os.fspath(tmp_path / 'made')!r})\n    ok = 'made'\n"
        "except OSError as error:\n    ok = error.strerror\n"
    )
    env = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    program = ["/usr/bin/python3", "-c", "import early; print(early.ok)"]
    with Warm(mode=mode) as warm:
        options: dict[str, Any] = {"landlock": ruleset, "no_new_privs": True, "env": env}
        park(warm, "/usr/bin/python3", preimport=["early"], **options)
        result = warm.run(program, env=env, actions=[NoNewPrivs(), Landlock(ruleset)])
        assert (result.started, result.text) == (mode, "Permission denied\n")


@each_mode
def test_files_are_opened_before_the_confinement(mode: Mode, tmp_path: Path) -> None:
    """/dev/null and files are opened unconfined, and errors equal those of a cold start."""
    # The ruleset permits reading these directories only, and no writing.
    readable = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc"]
    ruleset = warm_cases.ruleset_for_reading(readable)
    confined = [NoNewPrivs(), Landlock(ruleset)]
    (tmp_path / "file").write_text("data\n")
    try:
        with Warm(mode=mode) as warm:
            park(warm, "/bin/cat", landlock=ruleset, no_new_privs=True)

            def run(*actions: Action, **options: Any) -> sf.Result:
                result = warm.run(["/bin/cat"], actions=actions, **options)
                assert warm.fill(FILL_S)
                return result

            assert (run(*confined).started, run(*confined).stdout) == (mode, b"")
            before = run(Open(tmp_path / "file", 0), *confined)
            assert (before.started, before.stdout) == ("cold: confinement", b"data\n")
            after = run(*confined, Open("/etc/hostname", 0))
            assert (after.started, after.code) == (mode, 0)
            with pytest.raises(FileNotFoundError) as caught:
                run(*confined, cwd=tmp_path / "none")
            assert caught.value.filename == str(tmp_path / "none")
            assert warm.stats().cold["confinement"]
            # Under the confinement the file cannot be opened.
            with pytest.raises(PermissionError):
                run(*confined, Open(tmp_path / "file", 0))
    finally:
        os.close(ruleset)


@each_mode
@pytest.mark.parametrize("call", ["close", "rt_sigprocmask", "prctl", "recvmsg", "openat"])
def test_filters_that_prevent_parking(call: str, mode: Mode, tmp_path: Path) -> None:
    """The filter refuses a call that parking needs. The start is cold, with the same outcome."""
    filter = warm_cases.refusal(NUMBERS[call])
    argv = ["/bin/true"]
    with Warm(mode=mode) as warm:
        warm.add("/bin/true", seccomp=filter, no_new_privs=True)
        # With one of the filters, the library retries parking forever.
        warm.fill(10)
        result = warm.run(argv, actions=[NoNewPrivs(), Seccomp(filter)])
        cold = sf.run(argv, actions=[NoNewPrivs(), Seccomp(filter)])
        assert result.started.startswith("cold: ")
        assert (result.code, result.signal) == (cold.code, cold.signal)


@each_mode
@pytest.mark.parametrize("name", AUTHORITY)
def test_confined_thread_starts_no_less_confined_program(
    name: str, mode: Mode, tmp_path: Path
) -> None:
    """A thread under another confinement gets the same outcome as from its own fork."""
    case = BY_ID[name]
    found = outcome_of(case, mode, tmp_path, "confined")
    assert found["after"].startswith("cold: ")
    assert case.cold is not None
    assert case.cold in found["after"]
    assert found["elsewhere"] == mode


def test_descriptor_that_is_no_ruleset() -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    with Warm() as warm:
        warm.add("/bin/true", landlock=null, no_new_privs=True)
        assert not warm.fill(FILL_S)
        assert "landlock_restrict_self" in warm.stats().cannot["/bin/true"]
        with pytest.raises(sf.SpawnError, match="landlock"):
            warm.run(["/bin/true"], actions=[NoNewPrivs(), Landlock(null)])
    os.close(null)


def test_wrong_confinements_are_refused() -> None:
    wrong: Any
    with Warm() as warm:
        for wrong in ("x", -1, 10**6):
            with pytest.raises((TypeError, OSError, ValueError), match="landlock"):
                warm.add("/bin/true", landlock=wrong)
        for wrong in ("x", b"1234567", b""):
            with pytest.raises((TypeError, ValueError), match="seccomp"):
                warm.add("/bin/true", seccomp=wrong)
        for wrong in (["env"], "env", 3):
            with pytest.raises(TypeError, match=r"sandbox: expected spawnfd\.Sandbox"):
                warm.add("/bin/true", sandbox=wrong)


# --- descriptors of a sandbox's command -----------------------------------------------------------

# This sandbox command reads descriptor 5, as bwrap reads a filter, and passes 6 on to the program.
FRONT = ["bash", "-c", 'read word <&5; WORD="$word" exec "$@" 5<&-', "front"]
INSIDE = ["/bin/sh", "-c", 'echo "$WORD"; cat <&6; ls /proc/self/fd | wc -l']


def require_two_shells() -> None:
    require("bash")
    if os.path.samefile("/bin/sh", "/bin/bash"):
        pytest.skip("sh is bash: the sandbox's command and the program are the same file")


def memory(text: bytes) -> int:
    fd = os.memfd_create("given")
    os.write(fd, text)
    os.lseek(fd, 0, os.SEEK_SET)
    path = f"/proc/self/fd/{fd}"
    again = os.open(path, os.O_RDONLY)
    os.close(fd)
    return again


def test_sandbox_command_that_is_the_program() -> None:
    """The sandbox's command would park instead of the program that it confines."""
    front = ["/bin/sh", "-c", 'exec "$@"', "front"]
    with Warm() as warm:
        warm.add("/bin/sh", sandbox=sf.Sandbox(front))
        assert not warm.fill(FILL_S)
        assert warm.stats().cannot == {"/bin/sh": "sandbox"}
        assert warm.run([*front, "/bin/sh", "-c", ":"]).started == "cold: sandbox"


def test_sandbox_descriptors_must_be_the_same() -> None:
    require_two_shells()
    first, second = memory(b"one\nrest\n"), memory(b"two\n")
    actions = [Descriptor(first, 5), Descriptor(second, 6)]
    try:
        cold = sf.run([*FRONT, *INSIDE], actions=actions)
        assert cold.text.startswith("one\ntwo\n")
        for fd in (first, second):
            os.lseek(fd, 0, os.SEEK_SET)
        with Warm() as warm:

            def run(*actions: Action, begin: int = 0) -> sf.Result:
                """Starts the program with the first descriptor at the offset `begin`."""

                def start() -> sf.Result:
                    os.lseek(first, begin, os.SEEK_SET)
                    os.lseek(second, 0, os.SEEK_SET)
                    return sf.run([*FRONT, *INSIDE], warm=warm, actions=actions)

                return retry_if_slow(warm, start)

            warm.add("/bin/sh", sandbox=sf.Sandbox(FRONT, fds={5: first, 6: second}))
            for _ in range(3):
                assert warm.fill(FILL_S)
                assert not warm.stats().cannot
                result = run(*actions)
                assert (result.started, result.stdout, result.stderr) == (
                    "reserve",
                    cold.stdout,
                    b"",
                )
                # The program has the caller's own descriptor, so the offset of that descriptor has
                # moved.
                assert os.lseek(second, 0, os.SEEK_CUR) == 4
            assert warm.fill(FILL_S)

            def why(*actions: Action, begin: int = 0) -> str:
                return run(*actions, begin=begin).started

            differs = "cold: descriptors of the sandbox"
            assert why(Descriptor(first, 5)) == differs
            assert why(Descriptor(second, 5), Descriptor(first, 6)) == differs
            other = memory(b"one\nrest\n")
            assert why(Descriptor(other, 5), Descriptor(second, 6)) == differs
            os.close(other)
            assert why(*actions, begin=2) == differs
            assert why(*actions) == "reserve"
    finally:
        os.close(first)
        os.close(second)


def test_starts_need_an_equal_sandbox() -> None:
    """Each start reads the sandbox's descriptors from their first offset."""
    require_two_shells()
    first, second = memory(b"one\n"), memory(b"two\n")
    sandbox = sf.Sandbox(FRONT, fds={5: first, 6: second})
    same = sf.Sandbox(tuple(FRONT), fds={6: second, 5: first})
    other = sf.Sandbox([*FRONT[:-1], "other"], fds={5: first, 6: second})
    lacks = sf.Sandbox(FRONT, fds={5: first})
    # The sandbox's command would have received descriptor 7.
    more = sf.Sandbox(FRONT, fds={5: first, 6: second, 7: second})
    os.close(first)
    os.close(second)
    cold = sf.run(INSIDE, sandbox=sandbox)
    assert cold.text.startswith("one\ntwo\n")
    with Warm() as warm:
        warm.add("/bin/sh", sandbox=sandbox)
        for one in (sandbox, same, sandbox):
            assert warm.fill(FILL_S)
            result = warm.run(INSIDE, sandbox=one)
            assert (result.started, result.stdout) == ("reserve", cold.stdout), warm.stats()
        assert warm.fill(FILL_S)
        assert warm.run(INSIDE, sandbox=other).started == "cold: not added"
        for box in (lacks, more):
            assert warm.run(INSIDE, sandbox=box).started == "cold: descriptors of the sandbox"
        assert warm.run(INSIDE).started == "cold: not added"
        options: Any = {"sandbox": sandbox, "actions": [Setsid()], "stdout": "pipe"}
        with retry_if_slow(warm, lambda: warm.spawn(INSIDE, **options)) as child:
            assert child.started == "reserve"
            assert child.stdout is not None
            assert child.stdout.read() == cold.stdout
            child.wait()


@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_sandbox_sets_the_parent_death_signal(name: str) -> None:
    """A parent-death signal that the sandbox's command sets stays in force for the program."""
    require("setpriv")
    code = (
        "import ctypes; found = ctypes.c_int();"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(found)); print(found.value)"
    )
    argv, sandbox = [sys.executable, "-c", code], sf.Sandbox(["setpriv", "--pdeathsig", name])
    with Warm() as warm:
        warm.add(sys.executable, sandbox=sandbox, depth=1)
        assert warm.fill(FILL_S), warm.stats()
        result = warm.run(argv, sandbox=sandbox, timeout=TIMEOUT_S)
    number = signal.Signals[f"SIG{name}"].value
    assert (result.started, result.text) == ("reserve", f"{number}\n")


def test_changed_file_of_a_sandbox_descriptor_starts_cold(tmp_path: Path) -> None:
    """The sandbox's command has read the file before the change."""
    require_two_shells()
    path = tmp_path / "word"
    path.write_text("old\n")
    empty = os.open("/dev/null", os.O_RDONLY)
    given = os.open(path, os.O_RDONLY)
    actions = [Descriptor(given, 5), Descriptor(empty, 6)]
    try:
        with Warm() as warm:
            warm.add("/bin/sh", sandbox=sf.Sandbox(FRONT, fds={5: given, 6: empty}))
            assert warm.fill(FILL_S)
            os.utime(path, (1, 1))
            path.write_text("new\n")
            result = warm.run([*FRONT, *INSIDE], actions=actions)
            assert result.started == "cold: descriptors of the sandbox"
            assert result.text.startswith("new\n")
    finally:
        os.close(given)
        os.close(empty)


def test_bwrap_with_a_seccomp_filter(tmp_path: Path) -> None:
    require("bwrap")
    path = tmp_path / "filter"
    path.write_bytes(no_mkdir())
    given = os.open(path, os.O_RDONLY)
    front = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--seccomp", "10"]
    argv = [*front, "/bin/sh", "-c", "mkdir made || exit 9"]
    try:
        cold = sf.run(argv, cwd=tmp_path, actions=[Descriptor(given, 10)])
        if cold.code != 9:
            pytest.skip(f"bwrap: {cold.stderr!r}")
        os.lseek(given, 0, os.SEEK_SET)
        with Warm() as warm:
            warm.add("/bin/sh", sandbox=sf.Sandbox(front, fds={10: given}), cwd=tmp_path)
            for _ in range(2):
                assert warm.fill(FILL_S)
                result = warm.run(argv, cwd=tmp_path, actions=[Descriptor(given, 10)])
                assert (result.started, result.code) == ("reserve", 9), warm.stats()
    finally:
        os.close(given)


BARE = ["--bind", "/", "/", "--tmpfs", "/proc", "--"]
CLOSING = ["-c", 'exec "$@" 3>&- 4>&- 5>&- 6>&- 7>&-', "-"]
FRONTS = {
    "environment": ["env", "-i"],
    "proc": ["bwrap", *BARE],
    "descriptors": ["bash", *CLOSING],
}


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_program_that_cannot_park_does_not_run(front: list[str], tmp_path: Path) -> None:
    """The sandbox's command drops the variable, /proc or the descriptors that parking needs."""
    require(front[0])
    ran = tmp_path / "ran"
    box = sf.Sandbox(front)
    script = ["-c", f"echo ran >> {ran}"]
    if sf.run(["/bin/sh", "-c", "exit 3"], sandbox=box).code != 3:
        pytest.skip("no such sandbox here")
    with Warm() as warm:
        warm.add("/bin/sh", args=script, sandbox=box)
        assert not warm.fill(FILL_S)
        assert list(warm.stats().cannot.values()) == ["sandbox command drops LD_PRELOAD"]
        assert not ran.exists()
        result = warm.run(["/bin/sh", *script], sandbox=box)
        assert (result.code, result.started) == (0, "cold: sandbox command drops LD_PRELOAD")
    assert ran.read_text() == "ran\n"


def test_failed_sandbox_command_is_retried(tmp_path: Path) -> None:
    """The library reports the failure, and tries to park again later."""
    require_two_shells()
    trouble, front = tmp_path / "trouble", tmp_path / "front"
    # This error output is more than a pipe holds.
    many = "head -c 200000 /dev/zero >&2"
    front.write_text(f'#!/bin/sh\nif [ -e {trouble} ]; then {many}; exit 3; fi\nexec "$@"\n')
    front.chmod(0o755)
    trouble.touch()
    argv, box = ["bash", "-c", "exit 7"], sf.Sandbox([str(front)])
    with Warm() as warm:
        warm.add("bash", depth=1, sandbox=box)
        assert not warm.fill(FILL_S)
        assert list(warm.stats().cannot.values()) == ["sandbox command failed"]
        trouble.unlink()
        assert warm.fill(FILL_S), warm.stats()
        result = warm.run(argv, sandbox=box, timeout=TIMEOUT_S)
    assert (result.code, result.started) == (7, "reserve")
