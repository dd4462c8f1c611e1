# SPDX-License-Identifier: MIT OR Apache-2.0
"""run(): results, streams, arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from conftest import is_alive
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import TIMEOUT_S, eventually, in_background, in_threads
from subprocess_support import run_script
from test_options import Run, run_async, run_job


def test_result_has_the_arguments() -> None:
    result = sf.run(["sh", "-c", "exit 3"], arg0="other")
    assert result.args == ["other", "-c", "exit 3"]
    assert result.stdout is result.stdout


def test_result_is_immutable() -> None:
    result = sf.run(["true"])
    with pytest.raises(AttributeError):
        result.code = 1  # type: ignore[misc]


ENDING = """
expected = sf.SpawnError
if sys.argv[1] == "later":
    try:
        sf.run(["/nonexistent"])
    except sf.SpawnError:
        pass

class Last:
    # Defaults keep these objects alive after the module's globals are cleared.
    def __del__(self, how=sys.argv[1], run=sf.run, print=print, expected=expected):
        print(run(["sleep", "60"], timeout=0.1, grace=0).stop)
        if how == "later":
            try:
                run(["/nonexistent"])
            except expected as error:
                print(error.errno)

last = Last()
"""


@pytest.mark.parametrize(("which", "expected"), [("first", "timeout\n"), ("later", "timeout\n2\n")])
def test_run_during_interpreter_shutdown(which: str, expected: str) -> None:
    assert run_script(ENDING, which) == expected


BLOCKED_OPEN = """
import asyncio, ctypes, errno, signal, threading, time
how, gate = sys.argv[1:]
actions = [sf.actions.Open(gate, 9)]
# Without clone3 the child blocks all signals until exec.
ctypes.CDLL(None, use_errno=True).syscall(435, None, 0)
ended_by = signal.SIGKILL if ctypes.get_errno() == errno.ENOSYS else signal.SIGTERM
begun = time.monotonic()
if how == "thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if how == "signal":
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        sf.run(["true"], actions=actions)
    except KeyboardInterrupt:
        print("ended")
elif how == "run_async":
    async def both(timeout):
        late = asyncio.create_task(asyncio.sleep(0.1))
        result = await sf.run_async(["true"], actions=actions, timeout=timeout)
        return late.done(), result
    # On a slow machine both may be due at once, and either may come first.
    for timeout in (0.3, 1.2, 4.8, 9.6):
        is_late_done, result = asyncio.run(both(timeout))
        if is_late_done:
            break
    assert is_late_done
elif how == "start":
    with sf.start_sync(["true"], actions=actions, timeout=0.3) as job:
        result = job.result()
elif how == "failure":
    try:
        sf.run(["true"], actions=[sf.actions.Open("/nowhere", 9)])
    except FileNotFoundError as error:
        assert (error.stage, error.action, error.errno) == ("action", 0, 2), error
        print("ended")
else:
    result = sf.run(["true"], actions=actions, timeout=0.3)
if how not in ("signal", "failure"):
    assert (result.stop, result.signal, result.code) == ("timeout", ended_by, None), result
    print("ended")
assert time.monotonic() - begun < 60
with os.fdopen(os.open(gate, os.O_RDWR)):
    result = sf.run(["sh", "-c", "echo through"], actions=actions)
    print(result.stdout, result.started)
"""


@pytest.mark.parametrize("how", ["run", "thread", "signal", "run_async", "start", "failure"])
def test_open_of_a_fifo_does_not_block_the_host(tmp_path: Path, how: str) -> None:
    """The child blocks, because nothing opens the FIFO's other end. The host's timeout ends it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    assert run_script(BLOCKED_OPEN, how, str(gate)) == "ended\nb'through\\n' clone\n"


BLOCKED_OPEN_OF_ACTIONS = """
import asyncio, os, sys, time
import spawnfd as sf
what, gate = sys.argv[1:]
actions = [sf.actions.Open(gate, 9)]
more = {}
if what == "ids":
    actions.append(sf.actions.Uid(os.getuid()))
elif what == "user namespace":
    actions.append(sf.actions.UserNamespace(0, 0))
elif what == "namespace":
    actions.append(sf.actions.JoinNamespace(os.open("/proc/self/ns/net", os.O_RDONLY)))
elif what == "descriptors":
    actions.append(sf.actions.InheritDescriptors())
elif what == "oom_score_adj":
    actions.append(sf.actions.OomScoreAdj(500))
elif what == "death signal":
    actions.append(sf.actions.ParentDeathSignal(9))
elif what == "stream":
    more["stdin"] = "inherit"
elif what == "pidns":
    more["tree"] = "pidns"
try:
    sf.run(["true"], actions=actions[1:], **more)
except sf.SpawnError as refused:
    if "namespace" not in what and what != "pidns":
        raise
    sys.exit(f"refused: {refused}")
begun = time.monotonic()
def all_fronts(command, timeout):
    arguments = {"timeout": timeout, "grace": 0.3, "actions": actions, **more}
    yield sf.run(command, **arguments)
    yield asyncio.run(sf.run_async(command, **arguments))
    with sf.start_sync(command, **arguments) as job:
        yield job.result()
for result in all_fronts(["true"], 0.3):
    assert result.stop == "timeout" and result.signal in (9, 15), result
with os.fdopen(os.open(gate, os.O_RDWR)):
    for result in all_fronts(["sh", "-c", "exit 7"], 60):
        assert (result.stop, result.code) == ("exited", 7), result
    for result in all_fronts(["sh", "-c", "echo through"], 60):
        assert (result.text, result.started) == ("through\\n", "clone"), result
try:
    sf.run(["true"], **more, actions=[*actions[1:], sf.actions.Open("/nowhere", 9)])
except FileNotFoundError as error:
    assert (error.stage, error.action) == ("action", len(actions) - 1), error
    print("ended" if time.monotonic() - begun < 120 else "late")
"""


@pytest.mark.parametrize(
    "what",
    [
        "ids",
        "user namespace",
        pytest.param("namespace", marks=pytest.mark.skipif(os.geteuid() != 0, reason="root")),
        "descriptors",
        "oom_score_adj",
        "death signal",
        "stream",
        "pidns",
    ],
)
def test_open_of_a_fifo_blocks_the_host_with_no_option(tmp_path: Path, what: str) -> None:
    """These options usually make the host wait for exec.

    The host must not wait if an open may block.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, "-c", BLOCKED_OPEN_OF_ACTIONS, what, str(gate)]
    host = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if host.stderr.startswith("refused: "):
        pytest.skip(host.stderr)
    assert host.stdout == "ended\n", host.stderr


def test_drain_names_processes_with_the_pipe_open() -> None:
    result = sf.run(sf.sh("setsid sleep 1000 & echo $!"))
    assert result.ok
    pid = int(result.text)
    cut, *holders = result.drain.split()
    assert cut == "cut:"
    assert pid in map(int, holders)
    # The run kills the processes that it names, and does not wait for their end.
    assert {(left.pid, left.fate) for left in result.leftovers} == {
        (int(holder), "killed") for holder in holders
    }
    assert eventually(lambda: not any(is_alive(int(holder)) for holder in holders))


def test_streams_are_file_objects(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("in\n")
    with (tmp_path / "in").open("rb") as given, (tmp_path / "file").open("w+b") as file:
        result = sf.run(sf.sh("cat; echo err >&2"), stdin=given, stderr=file)
        assert (result.stdout, result.stderr) == (b"in\n", b"")
        file.seek(0)
        assert file.read() == b"err\n"


def test_input_of_a_buffer() -> None:
    assert sf.run(["cat"], input=memoryview(b"view")[1:]).stdout == b"iew"
    assert sf.run(["cat"], input=bytearray(b"array")).stdout == b"array"


def test_cwd_of_a_path_and_of_a_descriptor(tmp_path: Path) -> None:
    expected = f"{tmp_path.resolve()}\n"
    assert sf.run(["/bin/pwd", "-P"], cwd=tmp_path).text == expected
    fd = os.open(tmp_path, os.O_PATH)
    try:
        assert sf.run(["/bin/pwd", "-P"], cwd=fd).text == expected
    finally:
        os.close(fd)


def test_program_has_only_the_standard_descriptors() -> None:
    inheritable = os.dup(0)
    os.set_inheritable(inheritable, True)
    try:
        result = sf.run(["ls", "/proc/self/fd"])
    finally:
        os.close(inheritable)
    # ls opens the directory as descriptor 3.
    assert result.text.split() == ["0", "1", "2", "3"]


def test_the_import_reserves_low_descriptor_numbers() -> None:
    script = """if True:
        import os, threading
        import spawnfd
        paths = [f"/proc/self/fd/{fd}" for fd in range(3, 256)]
        links = [os.readlink(path) for path in paths if os.path.islink(path)]
        sockets = [link for link in links if link.startswith("socket:")]
        print(len(sockets), threading.active_count())
    """
    result = sf.run([sys.executable, "-c", script]).check()
    assert result.text == "8 1\n"


def test_sh() -> None:
    assert sf.sh("echo $((6*7)) | cat") == ["/bin/sh", "-c", "echo $((6*7)) | cat"]
    with pytest.raises(TypeError, match="command"):
        sf.sh(["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "options", "expected", "message"),
    [
        (b"ls", {}, TypeError, "argv"),
        ({"a"}, {}, TypeError, "argv: .*not set"),
        (["true"], {"cwd": -1}, ValueError, "cwd: a descriptor must be >= 0, got -1"),
    ],
)
def test_wrong_arguments_are_refused(
    argv: Any, options: dict[str, Any], expected: type[Exception], message: str
) -> None:
    for run in (sf.run, run_async, run_job):
        with pytest.raises(expected, match=message):
            run(argv, **options)


def test_run_releases_the_gil(tmp_path: Path) -> None:
    """The program ends only after another thread has run Python code for a while."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def spin() -> None:
        with fifo.open("w"):
            for _ in range(10_000):
                pass

    with in_background(spin):
        assert sf.run(["cat", fifo], timeout=TIMEOUT_S).ok


def test_threads() -> None:
    results: list[str] = []

    def work(name: int) -> None:
        for turn in range(20):
            results.append(sf.run(["echo", f"{name} {turn}"]).text)

    in_threads(*(partial(work, name) for name in range(8)))
    assert sorted(results) == sorted(f"{name} {turn}\n" for name in range(8) for turn in range(20))


def test_run_after_a_fork() -> None:
    assert sf.run(["true"]).ok
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if sf.run(["echo", "x"]).text == "x\n" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert sf.run(["echo", "y"]).text == "y\n"


# NUL is left out, because it is an error. Lone surrogates represent bytes that are not UTF-8.
arguments = st.one_of(
    st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"")),
    st.binary(max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
)


# There is no deadline, because generating examples takes long on a slow machine.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(arguments, max_size=5))
def test_arguments_arrive(args: list[str | bytes]) -> None:
    result = sf.run(["/usr/bin/printf", "%s\\0", *args, "end"])
    assert result.stdout.split(b"\0")[:-1] == [os.fsencode(arg) for arg in [*args, "end"]]
    assert result.args[2:-1] == [os.fsdecode(arg) for arg in args]


@pytest.mark.parametrize("run", [sf.run, run_async])
def test_run_kills_leftovers_instead_of_adopting(run: Run) -> None:
    line = "sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo hi"
    result = run(sf.sh(line), leftovers="adopt")
    assert [(left.name, left.fate) for left in result.leftovers] == [("sleep", "killed")]
    # The leftover process has been killed, but may not have ended yet.
    assert eventually(lambda: not is_alive(result.leftovers[0].pid))
