# SPDX-License-Identifier: MIT OR Apache-2.0
"""The exceptions: their types and their attributes."""

from __future__ import annotations

import errno
import os
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import spawnfd as sf
from conftest import RunLoop
from spawnfd import actions as act
from subprocess_support import run_script


def test_not_found() -> None:
    for argv in (["no-such-program"], ["/no/such/program"]):
        with pytest.raises(FileNotFoundError) as caught:
            sf.run(argv)
        error = caught.value
        assert isinstance(error, sf.SpawnError)
        assert (error.errno, error.stage, error.action) == (errno.ENOENT, "template", None)
        assert error.strerror == os.strerror(errno.ENOENT)
        assert error.filename == argv[0]
        assert str(error) == f"{error.message} [template: {error.call} = -1 ENOENT]"
        if argv[0].startswith("/"):
            assert error.message == "no such program: /no/such/program"
        else:
            assert re.fullmatch(
                r"no-such-program: not found in PATH \(searched \d+ director(y|ies)\)",
                error.message,
            )


def test_file_without_execute_permission_is_the_file_name(tmp_path: Path) -> None:
    with pytest.raises(PermissionError) as caught:
        sf.run([tmp_path])
    assert caught.value.filename == str(tmp_path)


def test_file_of_unknown_format(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"\0noise")
    path.chmod(0o755)
    with pytest.raises(sf.SpawnError) as caught:
        sf.run([path])
    assert (caught.value.errno, caught.value.stage) == (errno.ENOEXEC, "exec")


def test_relative_path_of_a_template_suggests_absolute_paths() -> None:
    with pytest.raises(sf.SpawnError) as caught:
        sf.Template("bin/tool")
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.errno, error.stage, error.filename) == (errno.EINVAL, "validate", "bin/tool")
    assert "os.path.abspath" in str(error)
    assert "os.path.join(cwd" in str(error)


def test_cwd_error_carries_the_directory() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        sf.run(["true"], cwd="/no/such")
    assert isinstance(caught.value, sf.SpawnError)
    assert (caught.value.stage, caught.value.filename) == ("cwd", "/no/such")


def test_classes() -> None:
    assert issubclass(sf.SpawnError, OSError)
    assert issubclass(sf.StaleTemplate, sf.SpawnError)
    assert not issubclass(sf.ExitError, OSError)
    assert str(sf.SpawnError(2, "plain")) == "[Errno 2] plain"


def test_messages_suggest_what_to_write_instead() -> None:
    line: Any = b"ls -l"
    with pytest.raises(TypeError, match=r"^argv: expected a list of the program and ") as caught:
        sf.run(line)
    assert 'such as ["ls", "-l"], not bytes; ' in str(caught.value)
    assert str(caught.value).endswith("for a shell command line use spawnfd.sh(b'ls -l')")
    with pytest.raises(TypeError, match=r"^deny: .*, not str; for a single item pass \['A\*'\]$"):
        sf.Env.inherit(deny=cast(Any, "A*"))
    with pytest.raises(TypeError, match=r"Env\.inherit\(\), Env\.only\(\) or Env\.empty\(\)"):
        sf.Env()
    with sf.start_sync(["cat"], stdin="stream") as job:
        with pytest.raises(TypeError, match=r"data: expected bytes, .* or str, not int"):
            job.write(cast(Any, 5))
        for timeout in ("5", True):
            with pytest.raises(TypeError, match=r"timeout: expected seconds \(float\) or None"):
                job.wait(cast(Any, timeout))
        with pytest.raises(ValueError, match="timeout must be >= 0, got -1"):
            job.wait(-1)


def test_messages_say_what_failed() -> None:
    failing: list[tuple[Callable[[], object], str]] = [
        (lambda: sf.run(["true"], cwd=1000), "cwd: descriptor 1000 is not open ["),
        (lambda: sf.run(["true"], actions=[act.Umask(0)] * 300), "invalid argument: "),
        (lambda: sf.Warm().add("/no/such"), "no such program: /no/such [template: "),
    ]
    for call, start in failing:
        with pytest.raises(sf.SpawnError) as caught:
            call()
        assert str(caught.value).startswith(start)


def test_exception_class_name_in_tracebacks() -> None:
    with pytest.raises(sf.SpawnError) as caught:
        sf.run(["no-such-program"])
    assert type(caught.value).__name__ == "SpawnFileNotFoundError"


async def test_action_error_carries_the_path(run_loop: RunLoop) -> None:
    wrong: list[tuple[act.Action, str | None]] = [
        (act.Chdir("/no/such"), "/no/such"),
        (act.Chdir(Path("/no/such")), "/no/such"),
        (act.Open(b"/no/such", 9), "/no/such"),
        (act.Chroot("/no/such"), "/no/such"),
        (act.Fchdir(0), None),
    ]
    for action, path in wrong:
        actions = [act.Umask(0), act.Chdir("/"), action]
        with pytest.raises(sf.SpawnError) as run:
            sf.run(["true"], actions=actions)
        with pytest.raises(sf.SpawnError) as run_async:
            await sf.run_async(["true"], actions=actions)
        with pytest.raises(sf.SpawnError) as spawn:
            sf.spawn(["true"], actions=actions)
        for caught in (run, run_async, spawn):
            assert (caught.value.action, caught.value.filename) == (2, path)


# This script runs under a filter that acts like a kernel before 6.15. Such a kernel keeps no status
# of a reaped child.
LOST = """
import asyncio, errno, pickle, signal, sys
import spawnfd as sf

LINE = ["sh", "-c", "echo out; echo why >&2; exit 3"]

def run_job():
    with sf.start_sync(LINE) as job:
        assert len(list(job.events(lines=True))) == 2
        return job.result()

async def run_async_job():
    async with sf.start(LINE) as job:
        return await job.result()

def stop_job():
    with sf.start_sync(["sh", "-c", "echo out; echo why >&2; sleep 60"]) as job:
        events = job.events(lines=True)
        next(events), next(events)
        return job.stop(grace=0)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
results = [sf.run(LINE), asyncio.run(sf.run_async(LINE)), run_job(), asyncio.run(run_async_job())]
results += [pickle.loads(pickle.dumps(results[0])), stop_job()]
for result in results:
    stop = "cancelled" if result is results[-1] else "lost"
    assert (result.stop, result.text, result.stderr) == (stop, "out\\n", b"why\\n"), result
    assert (result.status_lost, result.code, result.signal) == (True, None, None), result
    assert not result.ok
    assert repr(result).startswith(f"<Result {result.args} status_lost stop={stop} "), result
    try:
        result.check()
        raise AssertionError
    except sf.ExitError as error:
        how = "ended, and the status is lost: other code reaped the program, or SIGCHLD is ignored"
        how = "was cancelled" if stop == "cancelled" else how
        assert (str(error), error.result) == (f"{result.args} {how}; stderr: why", result)
child = sf.spawn(["true"])
try:
    child.wait(20)
    raise AssertionError
except ChildProcessError as error:
    assert (error.errno, error.stage) == (errno.ECHILD, "wait")
"""


def test_lost_status_is_reported() -> None:
    get_info, refused = 0xC040FF0B, 0x0005_0000 | errno.ENOTTY
    rules = [
        (0x20, 0, 0, 0),
        (0x15, 0, 3, 16),
        (0x20, 0, 0, 24),
        (0x15, 0, 1, get_info),
        (0x06, 0, 0, refused),
        (0x06, 0, 0, 0x7FFF_0000),
    ]
    filter = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    confined = [act.NoNewPrivs(), act.Seccomp(filter)]
    ended = sf.run([sys.executable, "-c", LOST], actions=confined, timeout=240)
    assert (ended.code, ended.stderr) == (0, b"")
    assert not ended.status_lost


# This script runs in a new process, so no other code opens or closes descriptors. It prints each
# call that did not fail as expected.
CLOSED = """
import asyncio, errno
from spawnfd import actions

async def run(argv, **options):
    return sf.run(argv, **options)

async def start(argv, **options):
    async with sf.start(argv, **options) as job:
        return await job.result()

async def spawn(argv, **options):
    return sf.spawn(argv, **options).wait()

FRONTS = [run, sf.run_async, start, spawn]
SLOTS = {
    "stdin": lambda number: {"stdin": number},
    "stdout": lambda number: {"stdout": number},
    "stderr": lambda number: {"stderr": number},
    "cwd": lambda number: {"cwd": number},
    "inherit": lambda number: {"actions": [actions.Setsid(), actions.Descriptor(number)]},
    "open": lambda number: {"actions": [actions.Setsid(), actions.Open("x", 9, dir=number)]},
    "in child": lambda number: {
        "actions": [actions.InheritDescriptors(), actions.Dup2(number, to=9)]
    },
}
STAGES = {"inherit": "action", "open": "action", "in child": "action"}
NUMBERS = 6
if sys.argv[1] == "streams":
    FRONTS.remove(spawn)
    SLOTS = {"stdin": lambda number: {"stdin": "inherit"}}
    NUMBERS = 1

def is_open(number):
    return os.path.lexists(f"/proc/self/fd/{number}")

async def main():
    # This job keeps the descriptors of the event loop, the engine and the guard open.
    keeper = await sf.start(["sleep", "60"])
    running = asyncio.create_task(sf.run_async(["sleep", "60"], grace=0))
    for front in FRONTS:
        await front(["true"])
    if sys.argv[1] == "streams":
        # A daemon has no stdin, so a pipe of a run may get the number 0.
        os.close(0)
    for front in FRONTS:
        for slot, options in SLOTS.items():
            free = next(number for number in range(256) if not is_open(number))
            for number in range(free, free + NUMBERS):
                if is_open(number):
                    continue
                try:
                    print(front.__name__, slot, number, await front(["true"], **options(number)))
                except sf.SpawnError as error:
                    found = error.errno, error.stage
                    if found != (errno.EBADF, STAGES.get(slot, slot)):
                        print(front.__name__, slot, number, error)
    await keeper.stop(grace=0)
    running.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize("which", ["numbers", "streams"])
def test_closed_descriptor_of_the_caller_stays_closed(which: str) -> None:
    """A descriptor that the library opens must not get a number that the caller named."""
    assert run_script(CLOSED, which) == ""
