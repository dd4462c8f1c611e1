# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that are started through a command which confines them."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf

# It reads what it is given as 5, as bwrap does a filter, and hands nothing of it on.
FRONT = ["/bin/sh", "-c", 'WORD=$(cat <&5); export WORD; exec "$@" 5<&-', "front"]
SHOW = ["/bin/sh", "-c", 'printf "%s:" "$WORD" "$@"; ls /proc/self/fd | wc -l', "show", "a", "b c"]


@pytest.fixture
def word(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "word"
    path.write_text("skipped word")
    fd = os.open(path, os.O_RDONLY)
    os.lseek(fd, 8, os.SEEK_SET)
    yield fd
    os.close(fd)


def test_it_stands_in_front() -> None:
    sandbox = sf.Sandbox(["env", "-i", "WHERE=inside"])
    result = sf.run(["/bin/sh", "-c", "echo $WHERE $1", "sh", "x y"], sandbox=sandbox)
    assert result.stdout == b"inside x y\n"
    assert sandbox.argv == ["env", "-i", "WHERE=inside"]
    assert "env" in repr(sandbox)


def test_the_program_is_found_by_it(tmp_path: Path) -> None:
    """A relative path is one from where the sandbox's command is."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho here\n")
    script.chmod(0o755)
    sandbox = sf.Sandbox(["env"])
    assert sf.run(["./script"], sandbox=sandbox, cwd=tmp_path).stdout == b"here\n"
    missing = sf.run(["/nonexistent/program"], sandbox=sandbox)
    assert (missing.stop, missing.code) == ("exited", 127)


def test_each_start_reads_for_itself(word: int) -> None:
    sandbox = sf.Sandbox(FRONT, fds={5: word})
    os.lseek(word, 0, os.SEEK_END)
    for _ in range(3):
        assert sf.run(SHOW, sandbox=sandbox).stdout == b"word:a:b c:4\n"
    # The caller's own has not moved.
    assert os.lseek(word, 0, os.SEEK_CUR) == 12


def test_at_once(word: int) -> None:
    sandbox = sf.Sandbox(FRONT, fds={5: word})

    async def main() -> list[bytes]:
        runs = [sf.run_async(SHOW, sandbox=sandbox) for _ in range(12)]
        return [result.stdout for result in await asyncio.gather(*runs)]

    assert asyncio.run(main()) == [b"word:a:b c:4\n"] * 12


@pytest.mark.parametrize("kind", ["memfd", "temporary", "not to be written", "snapshot"])
def test_what_was_just_made(kind: str, tmp_path: Path) -> None:
    """As a filter for bwrap is made. It is there for reading only."""
    if kind == "memfd":
        fd = os.memfd_create("word")
    elif kind == "temporary":
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    else:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        fd = os.open(tmp_path / "word", flags, 0o400)
    os.write(fd, b"just made")
    os.lseek(fd, 0, os.SEEK_SET)
    if kind == "snapshot":
        with sf.snapshot(tmp_path / "word") as snapshot:
            sandbox = sf.Sandbox(FRONT, fds={5: snapshot})
    else:
        sandbox = sf.Sandbox(FRONT, fds={5: fd})
    os.close(fd)
    for _ in range(2):
        assert sf.run(SHOW, sandbox=sandbox).stdout.startswith(b"just made:")


def test_what_is_written_is_shared(tmp_path: Path) -> None:
    front = ["/bin/sh", "-c", 'echo line >&5; exec "$@" 5<&-', "front"]
    with (tmp_path / "log").open("w") as log:
        sandbox = sf.Sandbox(front, fds={5: log})
    for _ in range(2):
        assert sf.run(["true"], sandbox=sandbox).ok
    assert (tmp_path / "log").read_text() == "line\nline\n"


def test_it_is_found_in_the_path_of_this_process(tmp_path: Path) -> None:
    """What is confined is not to choose what confines it."""
    evil = tmp_path / "env"
    evil.write_text("#!/bin/sh\necho not confined\n")
    evil.chmod(0o755)
    sandbox = sf.Sandbox(["env", "A=confined"])
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert sf.run(["sh", "-c", "echo $A"], sandbox=sandbox, env=env).stdout == b"confined\n"


def test_a_program_is_no_option() -> None:
    with pytest.raises(
        ValueError, match=r"argv\[0\]: \"--bind\": the sandbox's command would take"
    ):
        sf.run(["--bind", "/", "/", "/bin/sh"], sandbox=sf.Sandbox(["env"]))


def test_what_is_no_file_is_shared() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"once")
    os.close(writing)
    sandbox = sf.Sandbox(FRONT, fds={5: reading})
    os.close(reading)
    assert sf.run(SHOW, sandbox=sandbox).stdout.startswith(b"once:")
    assert sf.run(SHOW, sandbox=sandbox).stdout.startswith(b":")


def test_every_way_to_start(word: int) -> None:
    sandbox = sf.Sandbox(FRONT, fds={5: word})
    expected = b"word:a:b c:4\n"

    async def held() -> bytes:
        async with sf.start(SHOW, sandbox=sandbox) as job:
            assert job.args == [*FRONT, *SHOW]
            return (await job.result()).stdout

    assert asyncio.run(held()) == expected
    with sf.start_sync(SHOW, sandbox=sandbox) as job:
        assert job.result().stdout == expected
    assert sf.TemplateCache().run(SHOW, sandbox=sandbox).stdout == expected
    with sf.spawn(SHOW, sandbox=sandbox, stdout="pipe") as child:
        assert child.stdout is not None
        assert child.stdout.read() == expected
        child.wait()


def test_actions_are_those_of_the_command_in_front(word: int) -> None:
    """An action that fails is counted as the caller counts."""
    sandbox = sf.Sandbox(FRONT, fds={5: word})
    wrong = [sf.actions.Umask(0o22), sf.actions.Chdir("/nonexistent")]
    with pytest.raises(FileNotFoundError) as caught:
        sf.run(SHOW, sandbox=sandbox, actions=wrong)
    assert isinstance(caught.value, sf.SpawnError)
    assert caught.value.action == 1
    result = sf.run(SHOW, sandbox=sandbox, actions=[sf.actions.Descriptor(word, 7)])
    assert result.stdout == b"word:a:b c:5\n"


def test_there_is_no_such_command() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-sandbox"):
        sf.Sandbox(["no-such-sandbox"])


def test_looking_for_it_leaves_the_gil_to_others() -> None:
    """So a directory in PATH that does not answer does not hold up all threads."""
    interval = sys.getswitchinterval()
    go, ran = threading.Event(), threading.Event()

    def other() -> None:
        go.wait()
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    # Nobody gets the GIL who is not given it.
    sys.setswitchinterval(1000)
    try:
        go.set()
        deadline = time.monotonic() + 20
        while not ran.is_set() and time.monotonic() < deadline:
            sf.Sandbox(["env"])
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_a_number_beyond_the_limit(word: int) -> None:
    sandbox = sf.Sandbox(["env"], fds={2_000_000_000: word, 5: word})
    with pytest.raises(sf.SpawnError, match="descriptor 2000000000") as caught:
        sf.run(["true"], sandbox=sandbox)
    assert caught.value.stage == "descriptors"


def test_a_file_that_may_not_be_opened_again(tmp_path: Path) -> None:
    """Nothing is started that would read what is left of another's."""
    if os.getuid() != 0:
        pytest.skip("needs root: it gives up its right to the file")
    path = tmp_path / "word"
    path.write_text("secret")
    path.chmod(0o600)
    with path.open() as file:
        sandbox = sf.Sandbox(FRONT, fds={5: file})
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError, match="sandbox"):
            sf.run(["true"], sandbox=sandbox)
    finally:
        os.seteuid(0)


def test_wrong_arguments(word: int) -> None:
    wrong: Any
    for wrong in ((), "env", None, 3):
        with pytest.raises((TypeError, ValueError), match="argv"):
            sf.Sandbox(wrong)
    with pytest.raises(sf.SpawnError, match="absolute"):
        sf.Sandbox(["bin/bwrap"])
    with pytest.raises(ValueError, match=r"argv\[0\]: empty"):
        sf.Sandbox([""])
    for wrong in ({1: word}, {-1: word}, {"3": word}, [3], {3: "x"}):
        with pytest.raises((TypeError, ValueError), match="fds"):
            sf.Sandbox(["env"], fds=wrong)
    with pytest.raises(OSError, match="descriptor 3"):
        sf.Sandbox(["env"], fds={3: 10**6})
    for wrong in (["env"], "env", 3):
        with pytest.raises(TypeError, match=r"sandbox: expected spawnfd\.Sandbox"):
            sf.run(["true"], sandbox=wrong)
    with pytest.raises(ValueError, match="empty"):
        sf.run([""], sandbox=sf.Sandbox(["env"]))
    with pytest.raises(ValueError, match="sandbox: a Template is executed itself"):
        sf.Template("/bin/true").run([], sandbox=sf.Sandbox(["env"]))
    with pytest.raises(TypeError):
        pickle.dumps(sf.Sandbox(["env"]))
