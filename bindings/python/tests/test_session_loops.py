# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sessions on event loops, under signals, after a fork, and at the end of the interpreter."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop, is_alive, make_script, wait_until
from patience import TIMEOUT_S, eventually, signal_after
from subprocess_support import run_script
from test_session import stdout


def result_of(error: Any) -> sf.Result:
    """Returns the result of a command that an exception ended."""
    assert type(error.result) is sf.Result
    return error.result


async def test_cancelled_run_leaves_the_session_usable(run_loop: RunLoop, shell: str) -> None:
    async with sf.Session(shell) as session:
        await session.run("X=1")
        for command in ("sleep 600", "while :; do :; done"):
            with anyio.move_on_after(0.1) as scope:
                await session.run(f"echo on; {command}; echo no", grace=TIMEOUT_S)
            assert scope.cancelled_caught
            assert await stdout(session, "echo $X") == "1\n"
        assert not session.processes()


async def test_cancellation_has_the_result(shell: str) -> None:
    async with sf.Session(shell) as session:
        task = asyncio.create_task(session.run("echo on; sleep 600", grace=TIMEOUT_S))
        await wait_until(session.processes)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        result = result_of(cancelled.value)
        assert (result.stop, result.text, result.shell_exited) == ("cancelled", "on\n", False)


async def test_concurrent_commands_share_the_start_of_the_shell(
    run_loop: RunLoop, shell: str
) -> None:
    session = sf.Session(shell)
    outcomes: list[str] = []

    async def run() -> None:
        try:
            outcomes.append((await session.run("sleep 0.1; echo x")).text)
        except sf.SpawnError as error:
            outcomes.append(errno.errorcode[error.errno or 0])

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(run)
    assert sorted(outcomes) == ["EBUSY", "EBUSY", "x\n"]
    await session.close()


@pytest.mark.parametrize("ended", [False, True], ids=["first start", "restart"])
async def test_one_command_waits_for_the_limiter_of_the_shell(
    run_loop: RunLoop, shell: str, ended: bool
) -> None:
    limiter = sf.Limiter(1)
    session = sf.Session(shell, limiter=limiter, restart=True)
    if ended:
        await session.run("exit")
        await wait_until(lambda: limiter.running == 0)
    outcomes: list[str] = []

    async def run() -> None:
        try:
            outcomes.append((await session.run("echo x")).text)
        except sf.SpawnError as error:
            outcomes.append(errno.errorcode[error.errno or 0])

    async with anyio.create_task_group() as group, sf.start(["sleep", "600"], limiter=limiter):
        async with anyio.create_task_group() as cancelled:
            cancelled.start_soon(run)
            await wait_until(lambda: limiter.waiting == 1)
            for _ in range(2):
                group.start_soon(run)
            await anyio.sleep(0.05)
            assert limiter.waiting == 1
            # The next command takes the place of the cancelled one.
            cancelled.cancel_scope.cancel()
        await wait_until(lambda: limiter.waiting == 1)
        assert not outcomes
    assert (limiter.running, limiter.waiting, len(outcomes)) == (1, 0, 2)
    assert "x\n" in outcomes
    assert set(outcomes) <= {"x\n", "EBUSY"}
    await session.close()


@pytest.mark.parametrize("ended", [False, True], ids=["first start", "restart"])
def test_one_thread_waits_for_the_limiter_of_the_shell(shell: str, ended: bool) -> None:
    limiter = sf.Limiter(1)
    session = sf.SyncSession(shell, limiter=limiter, restart=True)
    if ended:
        session.run("exit")
        assert eventually(lambda: limiter.running == 0)

    def run() -> str:
        try:
            return session.run("echo x").text
        except sf.SpawnError as error:
            return errno.errorcode[error.errno or 0]

    with ThreadPoolExecutor(2) as threads:
        with sf.start_sync(["sleep", "600"], limiter=limiter):
            with pytest.raises(KeyboardInterrupt), signal_after(0.2, signal.SIGINT):
                session.run("true")
            assert limiter.waiting == 0
            running = [threads.submit(run) for _ in range(2)]
            assert eventually(lambda: limiter.waiting)
            time.sleep(0.05)
            assert limiter.waiting == 1
        outcomes = [each.result(TIMEOUT_S) for each in running]
    assert "x\n" in outcomes
    assert set(outcomes) <= {"x\n", "EBUSY"}
    assert (limiter.running, limiter.waiting) == (1, 0)
    session.close()


async def test_cancelled_start_leaves_nothing(run_loop: RunLoop, tmp_path: Path) -> None:
    slow = make_script(tmp_path / "slow", f"#!/bin/sh\necho >'{tmp_path}/began'\nsleep 600\n")
    async with anyio.create_task_group() as group:

        async def enter() -> None:
            async with sf.Session(slow, grace=0.1):
                raise AssertionError("the shell is not ready")

        group.start_soon(enter)
        await wait_until((tmp_path / "began").exists)
        group.cancel_scope.cancel()


async def test_cancelled_restart_continues(run_loop: RunLoop, shell: str, tmp_path: Path) -> None:
    """A command that is cancelled while the shell restarts does not end the new shell."""
    rc = tmp_path / "rc"
    rc.touch()
    env = {**os.environ, "ENV": str(rc), "HOME": str(tmp_path)}
    (tmp_path / ".bashrc").symlink_to(rc)
    async with sf.Session(shell, ["-i"], env=env, restart=True) as session:
        await session.run("export X=1")
        assert (await session.run("exit")).shell_exited
        gate = tmp_path / "gate"
        rc.write_text(f"until [ -e '{gate}' ]; do sleep 0.01; done\n")
        with anyio.move_on_after(0.05) as scope:
            await session.run("true")
        assert scope.cancelled_caught
        gate.touch()
        assert await stdout(session, "echo $X") == "1\n"


async def test_cancelled_block_ends_the_session(run_loop: RunLoop, shell: str) -> None:
    found: list[int] = []
    with anyio.move_on_after(0.3):
        async with sf.Session(shell, grace=0.1) as session:
            found.append(session.pid or 0)
            await session.run("trap '' INT TERM; sleep 600", grace=0.1)
    assert found
    assert not is_alive(found[0])


async def test_closed_coroutine_ends_the_session(shell: str) -> None:
    async def inside() -> None:
        async with sf.Session(shell, grace=0.1) as session:
            pids.append(session.pid or 0)
            await session.run("sleep 600", grace=0.1)

    pids: list[int] = []
    # A task would cancel the coroutine. So step the coroutine by hand.
    coroutine: Any = inside()
    future = coroutine.send(None)
    while not pids:
        while not future.done():
            await asyncio.sleep(0.01)
        future = coroutine.send(None)
    coroutine.close()
    await wait_until(lambda: not is_alive(pids[0]))


def test_a_signal_handler_ends_the_command_and_not_the_session(shell: str) -> None:
    with sf.SyncSession(shell) as session:
        session.run("X=1")
        with pytest.raises(KeyboardInterrupt) as raised, signal_after(0.2, signal.SIGINT):
            session.run("echo on; sleep 600; echo no", grace=TIMEOUT_S)
        result = result_of(raised.value)
        assert (result.stop, result.text) == ("cancelled", "on\n")
        assert session.run("echo $X").text == "1\n"


def test_forked_process_cannot_use_the_session(shell: str) -> None:
    script = f"""
with sf.SyncSession({shell!r}) as session:
    session.run("X=1")
    pid = os.fork()
    if pid == 0:
        try:
            session.run("true")
        except ChildProcessError as error:
            assert "forked process" in str(error)
            assert (session.pid, session.processes()) == (None, [])
            session.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print(session.run("echo $X").text, end="")
"""
    assert run_script(script) == "1\n"


@pytest.mark.parametrize("how", ["return", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_nothing_outlives_the_interpreter(shell: str, how: str) -> None:
    end = "pass" if how == "return" else how
    script = f"""
import subprocess
session = sf.SyncSession({shell!r})
session.run("sleep 600 2>/dev/null >&2 &")
job = session.start("sleep 600")
print(session.pid, flush=True)
{end}
"""
    code = f"import os, sys, spawnfd as sf\n{script}"
    result = sf.run([sys.executable, "-c", code], timeout=TIMEOUT_S, stderr="merge")
    pid = int(result.text)
    assert eventually(lambda: not is_alive(pid))


def test_audit_hook_sees_each_shell(shell: str) -> None:
    script = f"""
seen = []
sys.addaudithook(lambda event, args: seen.append(args) if event == "subprocess.Popen" else None)
with sf.SyncSession({shell!r}, ["-u"], cwd="/usr", restart=True) as session:
    session.run("exit")
    session.run("true")
print([(executable, argv, cwd) for executable, argv, cwd, env in seen])
"""
    start = (shell, [shell, "-u"], "/usr")
    assert run_script(script) == f"{[start, start]}\n"
