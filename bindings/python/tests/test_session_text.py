# SPDX-License-Identifier: MIT OR Apache-2.0
"""The text of a session's command: any bytes, and a directory and variables of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import spawnfd as sf
from conftest import make_script, wait_until
from session_support import Open, stdout


async def test_directory_of_any_bytes(open_session: Open, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\n"
    os.mkdir(odd)
    async with open_session(cwd=odd) as session:
        result = await session.run("true")
        assert os.fsencode(result.cwd) == odd
        assert pickle.loads(pickle.dumps(result)).cwd == result.cwd


async def test_directory_and_variables_of_path_types(open_session: Open) -> None:
    async with open_session() as session:
        found = await stdout(session, 'echo "$Y $PWD"', cwd=Path("/usr"), env={"Y": Path("/2")})
        assert found == "/2 /usr\n"
        async with await session.start('echo "$Y $PWD"', cwd=b"/", env={b"Y": b"\xff"}) as job:
            assert (await job.result()).stdout == b"\xff /\n"


DIRECTORY_IN_FIRST_COMMANDS = """
import sys, spawnfd
for _ in range(50):
    with spawnfd.SyncSession(sys.argv[1], cwd=sys.argv[2]) as session:
        assert session.run("cd /usr", cwd="/").ok
        assert session.run("pwd").text == sys.argv[2] + "\\n"
"""


def test_shell_runs_no_part_of_the_next_command(shell: str, tmp_path: Path) -> None:
    """dash reads a file in parts. It would run the end of a longer file that replaces the file.

    If several processes compete, the library replaces the files before the shell has left them.
    """
    directory = tmp_path / ("\nexit" * 40)
    directory.mkdir()
    code = [sys.executable, "-c", DIRECTORY_IN_FIRST_COMMANDS, shell, str(directory)]
    hosts = [subprocess.Popen(code) for _ in range(4)]
    assert [host.wait() for host in hosts] == [0] * 4


async def test_command_with_a_directory_starts_a_new_shell_there(
    open_session: Open, tmp_path: Path
) -> None:
    """The last directory of the session no longer exists."""
    async with open_session(restart=True) as session:
        await session.run(f"export X=1; mkdir '{tmp_path}/gone'; cd '{tmp_path}/gone'")
        assert (await session.run(f"rmdir '{tmp_path}/gone'; exit")).shell_exited
        for options in ({}, {"cwd": "relative"}):
            with pytest.raises(sf.SpawnError, match="/gone"):
                await session.run("touch file", **options)
        assert await stdout(session, "echo $X $PWD", cwd=tmp_path) == f"1 {tmp_path}\n"
        assert await stdout(session, "echo $X $PWD") == f"1 {tmp_path}\n"
        assert list(tmp_path.iterdir()) == []


async def test_shell_that_cannot_return_to_its_directory_exits(
    open_session: Open, tmp_path: Path
) -> None:
    """A later command must not run in the directory of the command before it."""
    async with open_session(restart=True) as session:
        gone = tmp_path / "gone"
        gone.mkdir()
        await session.run(f"cd '{gone}'")
        assert (await session.run("echo ran; rmdir gone", cwd=tmp_path)).text == "ran\n"
        await wait_until(lambda: session.pid is None)
        with pytest.raises(sf.SpawnError, match="/gone"):
            await session.run("touch file")
        assert list(tmp_path.iterdir()) == []


async def test_text_of_any_bytes(open_session: Open, tmp_path: Path) -> None:
    script = make_script(tmp_path / os.fsdecode(b"\xff"), "#!/bin/sh\necho ran\n")
    async with open_session() as session:
        for text in (b"printf '\xff\\n'", os.fsdecode(b"printf '\xff\\n'")):
            result = await session.run(text)
            assert result.stdout == b"\xff\n"
            assert result.args == [os.fsdecode(b"printf '\xff\\n'")]
            assert pickle.loads(pickle.dumps(result)).args == result.args
        assert await stdout(session, script) == "ran\n"
        assert (await session.run("printf é")).text == "é"
