# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sessions, in both forms, with bash and dash.

The fixture `open_session` opens a session. For the blocking form, an adapter makes the methods of
SyncSession and SyncJob awaitable.
"""

from __future__ import annotations

import errno
import gc
import pickle
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import spawnfd as sf
from conftest import descriptors, is_alive, wait_until
from patience import TIMEOUT_S
from session_support import Awaitables, Open, stdout

# Much longer than any command takes, and longer than the timeout of a test.
LONG = 600


async def run_when_free(session: Any, command: str) -> sf.Result:
    """Runs a command as soon as the session no longer runs the one before."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return await session.run(command)  # type: ignore[no-any-return]
        except sf.SpawnError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
        await anyio.sleep(0.01)


async def wait_for_output(job: Any, text: str) -> None:
    await wait_until(lambda: text in job.read().text)


async def test_result_of_a_command(open_session: Open) -> None:
    async with open_session(restart=True) as session:
        first = await session.run("cd /usr/bin")
        assert (first.cwd, first.args) == (Path("/usr/bin"), ["cd /usr/bin"])
        assert first.to_dict()["cwd"] == "/usr/bin"
        pid = session.pid
        assert (await session.run("exit")).shell_exited
        assert (await session.run(":")).cwd == Path("/usr/bin")
        assert session.pid != pid


async def test_shell_is_a_template_or_a_path(open_session: Open, shell: str) -> None:
    template = sf.Template(shell)
    for program in (template, Path(template.path or "")):
        async with open_session(program, ["-e"]) as session:
            result = await session.run("echo one; false")
            assert (result.text, result.shell_exited) == ("one\n", True)


async def test_session_starts_warm(open_session: Open, shell: str) -> None:
    with sf.Warm() as warm:
        warm.add(shell)
        assert warm.fill()
        async with open_session(warm=warm) as session:
            assert await stdout(session, "cd /usr; echo $PWD") == "/usr\n"
        assert warm.stats().reserve + sum(warm.stats().cold.values()) >= 1


async def test_end_of_the_shell(open_session: Open) -> None:
    async with open_session() as session:
        result = await session.run("sleep 600 & exit 6")
        assert f"stop=lost tree={result.tree} " in repr(result)
        assert repr(result).find(" shell_code=6") > 0
        assert result.to_dict()["shell_code"] == 6
        assert session.pid is None
        assert not session.closed


async def test_relative_directory_is_that_of_the_creation(
    open_session: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path)
    async with open_session(cwd="a", restart=True) as session:
        monkeypatch.chdir("/")
        assert (await session.run("exit")).shell_exited
        assert await stdout(session, "echo $PWD") == f"{tmp_path}/a\n"


async def test_yielded_command_reads_writes_and_waits(open_session: Open) -> None:
    """bub#317: a command that takes longer than its time goes on."""
    async with open_session() as session:
        result = await session.run("echo quick", yield_after=TIMEOUT_S)
        assert (result.running, result.text) == (False, "quick\n")
        command = "X=1; echo ask; read answer; echo got $answer"
        job = await session.run(command, yield_after=0, stdin="stream", timeout=LONG)
        assert job.running
        assert job.args == [command]
        assert job.pid == session.pid
        await wait_for_output(job, "ask\n")
        assert await job.wait(0) is None
        await job.write(b"yes\n")
        result = await job.wait(TIMEOUT_S)
        assert (result.text, result.ok, job.running) == ("ask\ngot yes\n", True, False)
        assert job.read(4).text == "got yes\n"
        assert await stdout(session, "echo $X") == "1\n"

        job = await session.run("sleep 600", yield_after=0)
        with pytest.raises(ValueError, match='not writable: start it with stdin="stream"'):
            await job.write("x")
        result = await job.stop(grace=TIMEOUT_S)
        assert (result.stop, result.code) == ("cancelled", 130)
        assert await stdout(session, "echo next") == "next\n"


async def test_dropping_a_yielded_command_ends_it(open_session: Open, tmp_path: Path) -> None:
    async with open_session() as session:
        job = await session.run("sleep 600; echo no", yield_after=0)
        await wait_until(session.processes)
        del job
        assert (await run_when_free(session, "echo $?")).text == "130\n"
        marker = tmp_path / "marker"
        job = await session.run(f"sleep 0.1; X=1; echo >'{marker}'", yield_after=0)
        job.detach()
        del job
        await wait_until(marker.exists)
        assert (await run_when_free(session, "echo $X")).text == "1\n"


async def test_events_of_a_command(open_session: Open) -> None:
    async with open_session() as session:
        command = "for i in 1 2; do echo out $i; done; echo err >&2; read x; echo $x"
        async with await session.start(command, stdin="stream", hold=True) as job:
            found: list[tuple[str | None, str]] = []
            async for event in job.events(lines=True):
                found.append((event.stream, event.text))
                if len(found) == 3:
                    await job.write("end\n")
            result = await job.result()
        expected = [("stdout", "out 1\n"), ("stdout", "out 2\n"), ("stdout", "end\n")]
        assert [each for each in found if each[0] == "stdout"] == expected
        assert ("stderr", "err\n") in found
        assert result.ok
        assert (await job.wait_for("out 2")).text == "out 2"


async def test_leaving_the_block_of_a_job_ends_the_command(open_session: Open) -> None:
    async with open_session() as session:
        async with await session.start("X=1; sleep 600; X=2", grace=TIMEOUT_S) as job:
            assert job.running
        result = await job.wait(0)
        assert (result.stop, result.shell_exited) == ("cancelled", False)
        assert await stdout(session, "echo next") == "next\n"


async def test_interrupt(open_session: Open) -> None:
    async with open_session() as session:
        session.interrupt()
        for command in ("sleep 600; echo no", "while :; do :; done; echo no", "cat; echo no"):
            job = await session.start("echo on; " + command, stdin="stream")
            await wait_for_output(job, "on\n")
            session.interrupt()
            result = await job.result()
            assert (result.stop, result.code, result.text) == ("exited", 130, "on\n")
        job = await session.start("echo on; sleep 600; echo no")
        await wait_for_output(job, "on\n")
        job.signal(signal.SIGINT)
        assert (await job.result()).code == 130


async def test_interrupt_of_a_yielded_command(open_session: Open) -> None:
    async with open_session() as session:
        await session.run("X=1")
        jobs: list[Any] = []
        for command in ("sleep 600; echo no", "while :; do :; done; echo no", "cat; echo no"):
            text = f"sleep 600 & echo on; {command}"
            job = await session.run(text, yield_after=0, stdin="stream")
            await wait_for_output(job, "on\n")
            # The commands that have ended get no signal.
            for each in (*jobs, job):
                each.interrupt()
            result = await job.result()
            assert (result.stop, result.code, result.text) == ("exited", 130, "on\n")
            assert await stdout(session, "echo $X") == "1\n"
            jobs.append(job)
        job = await session.run("echo on; sleep 600", yield_after=0)
        await wait_for_output(job, "on\n")
        for each in jobs:
            each.interrupt()
        assert await job.wait(0.2) is None


async def test_output_of_a_background_job_belongs_to_its_command(
    open_session: Open, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with open_session() as session:
        waits = f"(until [ -e '{go}' ]; do sleep 0.01; done; echo late) & echo first"
        job = await session.start(waits, drain=0.001)
        result = await job.result()
        assert (result.text, result.ok, result.drain[:4]) == ("first\n", True, "cut:")
        assert all(type(process) is sf.SessionProcess for process in session.processes())
        assert session.processes()
        go.touch()
        assert await stdout(session, "wait; echo second") == "second\n"
        await wait_until(lambda: job.read().text == "first\nlate\n")
        # Neither the end of run() nor that of a job's block ends a background job.
        await session.run("sleep 600 & ")
        async with await session.start("sleep 600 & true") as other:
            await other.result()
        del other
        gc.collect()
        await stdout(session, "true")
        assert [process.name for process in session.processes()] == ["sleep", "sleep"]


async def test_second_command_is_refused(open_session: Open) -> None:
    async with open_session() as session:
        async with await session.start("sleep 600") as job:
            for call in (session.run, session.start):
                refused = r"runs another command.*wait for its end, or stop it"
                with pytest.raises(sf.SpawnError, match=refused) as busy:
                    await call("true")
                assert busy.value.errno == errno.EBUSY
            assert job.running
        assert await stdout(session, "echo next") == "next\n"


async def test_leaving_the_block_ends_all_processes(open_session: Open, tmp_path: Path) -> None:
    for number, command in enumerate(
        ("sleep 600 & wait", "trap '' TERM INT HUP; sleep 600", "while :; do :; done")
    ):
        async with open_session(grace=0.1) as session:
            bye = tmp_path / f"bye{number}"
            await session.run(f"trap 'echo >{bye}' EXIT; sleep 600 &")
            shell = session.pid
            job = await session.start(f"echo on; {command}")
            await wait_for_output(job, "on\n")
            pids = [process.pid for process in session.processes()]
        assert (session.closed, session.pid, is_alive(shell)) == (True, None, False)
        await wait_until(lambda pids=pids: not any(map(is_alive, pids)))
        await wait_until(lambda session=session: not session.processes())
        assert (await job.result()).shell_exited or not job.running
        with pytest.raises(ValueError, match="the session is closed"):
            await session.run("true")
        await session.close()

    async with open_session() as session:
        await session.run(f"trap 'echo >{tmp_path}/bye' EXIT")
    assert (tmp_path / "bye").exists()


async def test_unentered_session_starts_with_its_first_command(open_session: Open) -> None:
    session = open_session()
    assert (session.pid, session.closed, session.processes()) == (None, False, [])
    assert await stdout(session, "echo x") == "x\n"
    pid = session.pid
    assert str(pid) in repr(session)
    # Dropping the session ends the shell.
    await session.run("sleep 600 &")
    del session
    gc.collect()
    await wait_until(lambda: not is_alive(pid))

    session = open_session()
    await session.close()
    assert "closed" in repr(session)
    with pytest.raises(ValueError, match="the session is closed"):
        async with session:
            pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"env": sf.Env.empty()}, "env: expected a mapping of str"),
        ({"env": {b"\xff": b""}}, 'env: "\\xFF" is not a name of a variable'),
        ({"check": True}, '"check"; call check() of the Result'),
        ({"stdin": "stream", "input": "x"}, "input: cannot be combined with stdin"),
    ],
)
async def test_wrong_options_of_a_command_are_named(
    open_session: Open, options: dict[str, Any], text: str
) -> None:
    async with open_session() as session:
        for call in (partial(session.run, yield_after=TIMEOUT_S), session.start):
            with pytest.raises((TypeError, ValueError), match=re.escape(text)):
                await call("true", **options)
        assert await stdout(session, "echo on") == "on\n"


async def test_wrong_arguments_are_named(open_session: Open) -> None:
    async with open_session() as session:
        refused: list[tuple[Any, type[Exception], str]] = [
            (lambda: session.run("\ud800"), ValueError, "command: "),
            (lambda: session.run("cat", stdin="stream"), ValueError, "needs yield_after"),
            (lambda: session.run("true", yield_after=-1), ValueError, "yield_after must be"),
            (lambda: session.run("true", yield_after="1"), TypeError, "yield_after: expected"),
            (lambda: session.run("true", hold=True), TypeError, r"start\(\) accepts it"),
            (lambda: session.start("true", yield_after=1), TypeError, r"run\(\) accepts it"),
        ]
        for call, expected, text in refused:
            with pytest.raises(expected, match=text):
                await call()
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"program": ["bash"]}, TypeError, "program: expected"),
        ({"args": "-i"}, TypeError, "args: "),
        ({"shell": True}, TypeError, "the first argument is the shell"),
        (
            {"program": sf.Template("bash"), "sandbox": sf.Sandbox(["env"])},
            ValueError,
            "sandbox: cannot be combined with a Template",
        ),
    ]
    for options, expected, text in wrong:
        with pytest.raises(expected, match=text):
            open_session(**options)


async def test_results_are_pickled(open_session: Open) -> None:
    async with open_session() as session:
        results = [await session.run(text) for text in ("cd /usr; echo x", "exit 3")]
        for result in results:
            again = pickle.loads(pickle.dumps(result))
            assert (again.cwd, again.shell_exited) == (result.cwd, result.shell_exited)
            assert (again.stop, again.shell_code) == (result.stop, result.shell_code)
            assert repr(again) == repr(result)
            assert (again.started, again.running, again.args) == ("session", False, result.args)
        assert [result.cwd for result in results] == [Path("/usr"), None]
        assert [result.shell_code for result in results] == [None, 3]
        target = session.target if isinstance(session, Awaitables) else session
        name = type(target).__name__
        with pytest.raises(TypeError, match=f"a {name} cannot be pickled"):
            pickle.dumps(target)


def test_results_of_ordinary_runs_have_no_directory() -> None:
    result = sf.run(["true"])
    assert (result.cwd, result.shell_exited, result.shell_code) == (None, False, None)
    assert not result.running
    with sf.start_sync(["sleep", "600"]) as job:
        assert job.running
    assert not job.running
    with sf.start_sync(["true"], actions=[sf.actions.Chdir("/no")]) as failed:
        with pytest.raises(FileNotFoundError):
            failed.result()
        assert not failed.running
        failed.detach()


async def test_limiters_count_shells_and_commands(open_session: Open) -> None:
    shells, commands = sf.Limiter(1), sf.Limiter(1)
    async with open_session(limiter=shells, restart=True) as session:
        assert (shells.running, commands.running) == (1, 0)
        async with await session.start("sleep 600", limiter=commands):
            assert commands.running == 1
        assert (shells.running, commands.running) == (1, 0)
        assert (await session.run("exit", limiter=commands)).shell_exited
        await wait_until(lambda: shells.running == 0)
        assert await stdout(session, "echo x", limiter=commands) == "x\n"
        assert (shells.running, commands.running) == (1, 0)
    assert shells.running == 0


@pytest.mark.parametrize("shell", ["bash"], indirect=True)
async def test_commands_leave_no_descriptor(open_session: Open) -> None:
    async with open_session(restart=True) as session:
        await session.run("true", input="x")
        await wait_until(lambda: not session.processes())
        # The loops of earlier tests have descriptors as long as they exist.
        gc.collect()
        before, pidfds = descriptors()
        listed = await stdout(session, "ls /proc/$$/fd")
        for number in range(200):
            result = await session.run(f"X={number}")
            assert result.ok
        assert await stdout(session, "echo $X") == "199\n"
        for _ in range(20):
            await session.run("read x; sleep 600", input="x\n", timeout=0.01)
            await (await session.run("cat", yield_after=0, stdin="stream")).stop()
        gc.collect()
        assert await stdout(session, "ls /proc/$$/fd") == listed
        try:
            await wait_until(lambda: descriptors() == (before, pidfds))
        except TimeoutError:
            now, count = descriptors()
            # Another comparison, which shows the difference.
            assert (sorted(set(now.items()) ^ set(before.items())), count) == ([], pidfds)


async def test_daemons_end_with_the_session(open_session: Open) -> None:
    async with open_session(tree="subreaper") as session:
        result = await session.run("setsid -f sleep 1000")
        assert result.ok
        assert (result.tree, result.tree_complete) == ("subreaper", True)
        await wait_until(lambda: "sleep" in [process.name for process in session.processes()])
        [daemon] = [process.pid for process in session.processes() if process.name == "sleep"]
    await wait_until(lambda: not is_alive(daemon))
