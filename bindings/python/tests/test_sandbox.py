# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sandbox: a command that confines the program which it executes."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from patience import assert_releases_the_gil

# This sandbox command reads descriptor 5, as bwrap reads a filter. It closes the descriptor before
# it executes the program.
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


BWRAP = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--"]


def test_bwrap_reports_a_missing_program() -> None:
    if shutil.which("bwrap") is None or not sf.run([*BWRAP, "true"]).ok:
        pytest.skip("no bwrap")
    result = sf.run(["no-such-tool", "--version"], sandbox=sf.Sandbox(BWRAP))
    assert (result.code, result.stop) == (1, "exited")
    assert b"no-such-tool" in result.stderr
    through_shell = ["sh", "-c", 'exec "$0" "$@"', "no-such-tool"]
    assert sf.run(through_shell, sandbox=sf.Sandbox(BWRAP)).code == 127


def test_sandbox_has_its_command() -> None:
    sandbox = sf.Sandbox(["env", "-i", "WHERE=inside"])
    assert sandbox.argv == ["env", "-i", "WHERE=inside"]
    assert "env" in repr(sandbox)


def test_each_start_reads_from_the_beginning(word: int) -> None:
    sandbox = sf.Sandbox(FRONT, fds={5: word})
    os.lseek(word, 0, os.SEEK_END)
    for _ in range(3):
        assert sf.run(SHOW, sandbox=sandbox).stdout == b"word:a:b c:4\n"
    # The offset of the caller's descriptor has not moved.
    assert os.lseek(word, 0, os.SEEK_CUR) == 12


async def test_concurrent_starts_read_from_the_beginning(word: int) -> None:
    sandbox = sf.Sandbox(FRONT, fds={5: word})
    runs = [sf.run_async(SHOW, sandbox=sandbox) for _ in range(12)]
    outputs = [result.stdout for result in await asyncio.gather(*runs)]
    assert outputs == [b"word:a:b c:4\n"] * 12


@pytest.mark.parametrize("kind", ["memfd", "temporary", "read-only", "snapshot"])
def test_descriptor_of_a_new_file(kind: str, tmp_path: Path) -> None:
    """A filter for bwrap is often such a file. The sandbox's command gets it read-only."""
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


def test_writable_file_is_shared(tmp_path: Path) -> None:
    front = ["/bin/sh", "-c", 'echo line >&5; exec "$@" 5<&-', "front"]
    with (tmp_path / "log").open("w") as log:
        sandbox = sf.Sandbox(front, fds={5: log})
    for _ in range(2):
        assert sf.run(["true"], sandbox=sandbox).ok
    assert (tmp_path / "log").read_text() == "line\nline\n"


def test_pipe_is_shared() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"once")
    os.close(writing)
    sandbox = sf.Sandbox(FRONT, fds={5: reading})
    os.close(reading)
    assert sf.run(SHOW, sandbox=sandbox).stdout.startswith(b"once:")
    assert sf.run(SHOW, sandbox=sandbox).stdout.startswith(b":")


async def test_all_start_functions_use_the_sandbox(word: int) -> None:
    sandbox = sf.Sandbox(FRONT, fds={5: word})
    expected = b"word:a:b c:4\n"
    async with sf.start(SHOW, sandbox=sandbox) as job:
        assert job.args == [*FRONT, *SHOW]
        assert (await job.result()).stdout == expected
    with sf.start_sync(SHOW, sandbox=sandbox) as sync_job:
        assert sync_job.result().stdout == expected
    assert sf.TemplateCache().run(SHOW, sandbox=sandbox).stdout == expected
    with sf.spawn(SHOW, sandbox=sandbox, stdout="pipe") as child:
        assert child.stdout is not None
        assert child.stdout.read() == expected
        child.wait()


def test_actions_apply_to_the_sandbox_command(word: int) -> None:
    """The error has the caller's index of the action."""
    sandbox = sf.Sandbox(FRONT, fds={5: word})
    wrong = [sf.actions.Umask(0o22), sf.actions.Chdir("/nonexistent")]
    with pytest.raises(FileNotFoundError) as caught:
        sf.run(SHOW, sandbox=sandbox, actions=wrong)
    assert isinstance(caught.value, sf.SpawnError)
    assert caught.value.action == 1
    result = sf.run(SHOW, sandbox=sandbox, actions=[sf.actions.Descriptor(word, 7)])
    assert result.stdout == b"word:a:b c:5\n"


def test_search_releases_the_gil() -> None:
    """A directory of PATH on a file system that hangs must not block all threads."""
    assert_releases_the_gil(lambda: sf.Sandbox(["env"]))


def test_descriptor_number_beyond_the_limit(word: int) -> None:
    sandbox = sf.Sandbox(["env"], fds={2_000_000_000: word, 5: word})
    with pytest.raises(sf.SpawnError, match="descriptor 2000000000") as caught:
        sf.run(["true"], sandbox=sandbox)
    assert caught.value.stage == "descriptors"


def test_file_that_cannot_be_reopened_is_refused(tmp_path: Path) -> None:
    """Without reopening, the start would share its file offset with other starts."""
    if os.getuid() != 0:
        pytest.skip("needs root, to give up access to the file")
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
    for wrong in ("env", None, 3):
        with pytest.raises((TypeError, ValueError), match="argv"):
            sf.Sandbox(wrong)
    for wrong in ({1: word}, {-1: word}, {"3": word}, [3], {3: "x"}):
        with pytest.raises((TypeError, ValueError), match="fds"):
            sf.Sandbox(["env"], fds=wrong)
    with pytest.raises(OSError, match="descriptor 3"):
        sf.Sandbox(["env"], fds={3: 10**6})
    wrong = ["env"]
    with pytest.raises(TypeError, match=r"sandbox: expected spawnfd\.Sandbox"):
        sf.run(["true"], sandbox=wrong)
    with pytest.raises(TypeError):
        pickle.dumps(sf.Sandbox(["env"]))
