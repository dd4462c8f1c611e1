# SPDX-License-Identifier: MIT OR Apache-2.0
"""spawnfd.asyncio: behaviour that CPython's own suite does not test."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
from asyncio.subprocess import PIPE
from typing import Any

import pytest
import spawnfd as sf
from conftest import LOOPS, RunLoop
from patience import in_threads
from spawnfd.asyncio import Process, StreamReader, create_subprocess_exec, create_subprocess_shell
from subprocess_support import run_script

each_loop = pytest.mark.parametrize("run", [LOOPS["asyncio"], LOOPS["uvloop"]])


@each_loop
def test_streams(run: RunLoop) -> None:
    data = os.urandom(1 << 20)

    async def main() -> None:
        before = sf.stats().made
        process = await create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert isinstance(process, Process)
        assert isinstance(process.stdout, StreamReader)
        assert await process.communicate(data) == (data, b"")
        assert process.returncode == 0
        process = await create_subprocess_shell("printf 'a\\nb\\n'; exit 4", stdout=PIPE, limit=10)
        assert process.stdout is not None
        assert [line async for line in process.stdout] == [b"a\n", b"b\n"]
        assert await process.wait() == 4
        assert sf.stats().made == before + 2

    run(main)


@each_loop
def test_signals_and_many_at_once(run: RunLoop) -> None:
    async def main() -> None:
        async def one(number: int) -> int:
            process = await create_subprocess_exec("sleep", "60")
            assert not any("waitpid" in thread.name for thread in threading.enumerate())
            process.send_signal(number)
            code = await process.wait()
            with pytest.raises(ProcessLookupError):
                process.kill()
            return code

        numbers = [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP] * 8
        assert await asyncio.gather(*map(one, numbers)) == [-number for number in numbers]

    run(main)


@each_loop
def test_errors(run: RunLoop) -> None:
    async def main() -> None:
        for create, args in [
            (create_subprocess_exec, ["/nonexistent/program"]),
            (create_subprocess_exec, ["/"]),
            (create_subprocess_exec, ["true\0"]),
        ]:
            with pytest.raises(Exception) as mine:  # noqa: PT011
                await create(*args)
            with pytest.raises(Exception) as theirs:  # noqa: PT011
                subprocess.Popen(args)
            assert type(mine.value) is type(theirs.value)
            assert mine.value.args == theirs.value.args
        with pytest.raises(ValueError, match="text"):
            await create_subprocess_exec("true", text=True)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cmd"):
            await create_subprocess_shell(1)  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError) as caught:
            await create_subprocess_exec("true", cwd="/nonexistent")
        assert caught.value.filename == "/nonexistent"

    run(main)


async def test_preexec_fn_uses_the_original_implementation() -> None:
    before = sf.stats().passed.get("preexec_fn", 0)
    process = await create_subprocess_exec("true", preexec_fn=lambda: None)
    assert await process.wait() == 0
    assert sf.stats().passed["preexec_fn"] == before + 1


async def test_status_reaped_through_popen_is_reported() -> None:
    """asyncio before 3.14 reports 255 in this case."""
    process = await create_subprocess_shell("exit 5")
    transport: Any = getattr(process, "_transport")  # noqa: B009 # in no stub
    popen: Any = transport.get_extra_info("subprocess")
    assert await asyncio.to_thread(popen.wait) == 5
    assert await process.wait() == 5


# From Linux 6.15 on, the pidfd has the status of the reaped child.
KEEPS_STATUS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)


def test_status_reaped_by_other_code(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        process = await create_subprocess_exec("sleep", "60")
        process.kill()
        os.waitpid(process.pid, 0)
        assert await process.wait() == (-9 if KEEPS_STATUS else 255)

    with caplog.at_level(logging.WARNING, "asyncio"):
        asyncio.run(main())
    assert ("already read" in caplog.text) != KEEPS_STATUS


@pytest.mark.parametrize("number", [1, 38], ids=["EPERM", "ENOSYS"])
@pytest.mark.parametrize("calls", ["434", "424", "424, 434"], ids=["open", "send", "both"])
def test_works_without_pidfds(calls: str, number: int) -> None:
    """The loop polls for the end of the child, and signals are sent by pid."""
    run_script(
        """
        import asyncio, gc, logging, signal
        import spawnfd.asyncio
        signal.alarm(200)
        answer(eval(f"[{sys.argv[1]}]"), 0x50000 | int(sys.argv[2]))
        logged = []
        logging.getLogger("asyncio").addHandler(handler := logging.Handler())
        handler.emit = logged.append

        async def main(exec):
            process = await exec("cat", stdin=-1, stdout=-1)
            assert (await process.communicate(b"x"), process.returncode) == ((b"x", None), 0)
            process = await exec("sh", "-c", "exit 3")
            assert await process.wait() == 3
            for signal in (15, 9):
                process = await exec("sleep", "60")
                process.send_signal(signal)
                assert await process.wait() == -signal
                try: process.kill()
                except ProcessLookupError: pass
                else: raise AssertionError("kill() of an ended process raised nothing")
            process = await exec("sleep", "60")
            process.kill()
            os.waitpid(process.pid, 0)
            process.kill()
            assert await process.wait() in (-9, 255)

        async def some(exec):
            await asyncio.gather(*(main(exec) for _ in range(4)))

        asyncio.run(some(sf.asyncio.create_subprocess_exec))
        sf.install()
        asyncio.run(some(asyncio.create_subprocess_exec))
        gc.collect()
        assert {record.getMessage()[-14:] for record in logged} <= {"returncode 255"}, logged
        try: left = os.waitpid(-1, 0)
        except ChildProcessError: left = None
        assert left is None, left
        """,
        calls,
        str(number),
    )


def test_loops_in_other_threads() -> None:
    async def main() -> None:
        process = await create_subprocess_exec("echo", "x", stdout=PIPE)
        assert await process.communicate() == (b"x\n", None)

    in_threads(*[lambda: asyncio.run(main())] * 4)


async def test_cancelling_a_start() -> None:
    task = asyncio.ensure_future(create_subprocess_exec("sleep", "60", stdout=PIPE))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_closing_the_loop_leaves_the_program_running() -> None:
    loop = asyncio.new_event_loop()
    process = loop.run_until_complete(create_subprocess_exec("sleep", "60"))
    pid = process.pid
    loop.close()
    del process, loop
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_debug_mode_logs_the_command(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        process = await create_subprocess_exec("true")
        await process.wait()

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(main(), debug=True)
    assert "execute program 'true'" in caplog.text
