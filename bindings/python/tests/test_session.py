# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sessions, in both forms, with bash and dash.

The fixture `open_session` opens a session. For the blocking form, an adapter makes the methods of
SyncSession and SyncJob awaitable.
"""

from __future__ import annotations

import errno
import gc
import os
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
# How long a command may take to return that returns at once.
AT_ONCE_S = 30.0


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


async def test_state_persists(open_session: Open) -> None:
    async with open_session() as session:
        setup = "cd /usr/bin; X=1; export Y='a  b'; f() { echo \"f $1\"; }; alias al='echo al'"
        result = await session.run(setup)
        assert (result.ok, result.cwd, result.shell_exited) == (True, Path("/usr/bin"), False)
        assert (result.running, result.started, result.args) == (False, "session", [setup])
        found = await stdout(session, "echo $X $PWD; sh -c 'echo \"$Y\"'; f 2")
        assert found == "1 /usr/bin\na  b\nf 2\n"
        assert await stdout(session, "al word") == "al word\n"
        await session.run("umask 027; set -f; trap 'echo trapped' USR1")
        assert await stdout(session, "echo *; umask; kill -USR1 $$") == "*\n0027\ntrapped\n"


async def test_status_and_check(open_session: Open) -> None:
    async with open_session() as session:
        for command, code in [("true", 0), ("false", 1), ("sh -c 'exit 42'", 42)]:
            assert (await session.run(command)).code == code
            assert await stdout(session, "echo $?") == f"{code}\n"
        assert (await session.run("nonexistent-program")).code == 127
        result = await session.run("echo 'unfinished")
        assert (result.ok, result.shell_exited, result.stderr != b"") == (False, False, True)
        failed = await session.run("echo reason >&2; (exit 3)")
        with pytest.raises(sf.ExitError, match=r"'\] exited with status 3; stderr: reason$"):
            failed.check()
        assert failed.to_dict()["cwd"] == str(failed.cwd)


async def test_startup_options(open_session: Open, shell: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".profile").write_text("LOGIN=yes\n")
    (tmp_path / "rc").write_text("RC=yes\n")
    env = sf.Env.inherit().set("HOME", str(tmp_path)).set("ENV", str(tmp_path / "rc"))
    async with open_session(cwd=tmp_path / "sub", env=env, login=True) as session:
        assert await stdout(session, "echo $LOGIN $PWD") == f"yes {tmp_path / 'sub'}\n"
    path = sf.Template(shell).path
    for program, args in [(path, ()), (sf.Template(shell), ["-e"]), (Path(path or ""), ["-e"])]:
        async with open_session(program, args) as session:
            result = await session.run("echo one; false")
            assert (result.text, result.shell_exited) == ("one\n", args != ())
    box = sf.Sandbox(["env", "INSIDE=1"])
    async with open_session(sandbox=box) as session:
        assert await stdout(session, "echo $INSIDE") == "1\n"
    async with open_session(limits=sf.Limits(cpu_time=0.3, enforce="best-effort")) as session:
        result = await session.run("true")
        enforcer = result.limits["cpu_time"]
        assert (result.limits, result.stop, result.limit) == (
            {"cpu_time": enforcer},
            "exited",
            None,
        )
        result = await session.run("while :; do :; done", timeout=TIMEOUT_S)
        assert (result.stop, result.limit) == ("limit", f"cpu_time ({enforcer})")
        assert result.shell_exited
    async with open_session(tree="group") as session:
        assert (await session.run("true")).tree == "group"


async def test_session_starts_warm(open_session: Open, shell: str) -> None:
    with sf.Warm() as warm:
        warm.add(shell)
        assert warm.fill()
        async with open_session(warm=warm) as session:
            assert await stdout(session, "cd /usr; echo $PWD") == "/usr\n"
        assert warm.stats().reserve + sum(warm.stats().cold.values()) >= 1


async def test_streams_are_separate_or_merged(open_session: Open) -> None:
    async with open_session() as session:
        result = await session.run("echo out; echo err >&2", combined=True)
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
        assert {piece.stream for piece in result.output} == {"stdout", "stderr"}
    async with open_session(stderr="merge") as session:
        result = await session.run("echo out; echo err >&2; echo out; false")
        assert (result.stdout, result.stderr) == (b"out\nerr\nout\n", b"")
        with pytest.raises(sf.ExitError, match=r"(?s)last lines|output:\nout\nerr\nout"):
            result.check()


async def test_binary_output_and_bounds(open_session: Open, tmp_path: Path) -> None:
    async with open_session() as session:
        result = await session.run("printf '\\000\\377\\001'; printf '0 /tmp\\0' >&2")
        assert (result.stdout, result.stderr) == (b"\0\xff\x01", b"0 /tmp\0")
        spill = sf.Spill(1 << 20, dir=tmp_path)
        result = await session.run("seq 10000", keep=(10, 10), marker="<{omitted}>", spill=spill)
        assert result.text.startswith("1\n2\n3\n4\n5\n<")
        assert (
            Path(result.spill_path).read_bytes()
            == "".join(f"{number}\n" for number in range(1, 10001)).encode()
        )
        result = await session.run("yes", output_limit=10_000)
        assert (result.stop, result.shell_exited) == ("output_limit", False)
        assert await stdout(session, "echo next") == "next\n"


async def test_input(open_session: Open) -> None:
    async with open_session() as session:
        assert await stdout(session, "cat; ! read line") == ""
        found = await stdout(session, 'read line; echo "<$line>"; cat', input="one\ntwo\n")
        assert found == "<one>\ntwo\n"
        assert await stdout(session, "cat | wc -c", input=bytes(1 << 20)) == "1048576\n"
        assert (await session.run("true", input=bytes(1 << 20))).input_refused
        here = "cat <<'END'\nit's \"$HOME\" `x` \\\nEND\n"
        assert await stdout(session, here) == 'it\'s "$HOME" `x` \\\n'


@pytest.mark.parametrize(
    "command", ["sleep 600; echo no", "while :; do :; done", "cat /dev/zero | sleep 600"]
)
async def test_timeout_keeps_the_shell_and_its_state(open_session: Open, command: str) -> None:
    async with open_session() as session:
        await session.run("X=1; cd /usr")
        result = await session.run(command, timeout=0.1, grace=TIMEOUT_S)
        assert (result.stop, result.code, result.shell_exited) == ("timeout", 130, False)
        assert result.stdout == b""
        result = await session.run("printf x; " + command, idle_timeout=0.1, grace=TIMEOUT_S)
        assert (result.stop, result.text) == ("idle_timeout", "x")
        assert await stdout(session, "echo $X $PWD") == "1 /usr\n"


@pytest.mark.parametrize(
    ("command", "code", "how"),
    [
        ("exit 3", 3, "exited with status 3"),
        ("exec sh -c 'exit 4'", 4, "exited with status 4"),
        ("kill -9 $$; sleep 600", -9, "was killed by SIGKILL"),
        ("sleep 600 & exit 6", 6, "exited with status 6"),
    ],
)
async def test_end_of_the_shell_is_reported_at_once(
    open_session: Open, command: str, code: int, how: str
) -> None:
    async with open_session() as session:
        begun = time.monotonic()
        result = await session.run(command)
        assert time.monotonic() - begun < AT_ONCE_S
        assert (result.shell_exited, result.shell_code) == (True, code)
        assert (result.status_lost, result.code, result.signal) == (True, None, None)
        assert (result.cwd, result.stop, result.ok) == (None, "lost", False)
        assert f"stop=lost tree={result.tree} " in repr(result)
        assert repr(result).find(f" shell_code={code}") > 0
        assert result.to_dict()["shell_code"] == code
        with pytest.raises(sf.ExitError) as failed:
            result.check()
        why = f"ended, and the status is lost: the session's shell {how}"
        assert str(failed.value) == f"{result.args} {why}"
        jobs = [(left.name, left.fate) for left in result.leftovers]
        assert jobs == ([("sleep", "killed")] if "&" in command else [])
        assert session.pid is None
        with pytest.raises(ProcessLookupError, match=r"the session's shell has exited") as told:
            await session.run("true")
        assert isinstance(told.value, sf.SpawnError)
        assert "restart" in str(told.value)
        assert not session.closed


async def test_restart_keeps_directory_variables_and_umask(
    open_session: Open, tmp_path: Path
) -> None:
    odd = tmp_path / "it's\n a dir"
    odd.mkdir()
    async with open_session(restart=True, env={"ODD": str(odd), **os.environ}) as session:
        await session.run('cd "$ODD"; export X="a b"; Y=unexported; umask 027')
        first = session.pid
        for end in ("exit 7", "kill -9 $$", "exec true"):
            assert (await session.run(f"export X=later; cd /; {end}")).shell_exited
            assert await stdout(session, 'echo "$X$Y"; umask') == "a b\n0027\n"
            assert (await session.run(":")).cwd == odd
            assert session.pid != first


async def test_restart_restores_no_removed_variable(open_session: Open) -> None:
    env = {"SECRET": "1", "KEPT": "2", **os.environ}
    async with open_session(restart=True, env=env) as session:
        await session.run("unset SECRET")
        assert (await session.run("exit 1")).shell_exited
        assert await stdout(session, "echo ${SECRET-unset} $KEPT") == "unset 2\n"


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


async def test_failed_start(open_session: Open, shell: str) -> None:
    async def refusal(*args: Any, **options: Any) -> sf.SpawnError:
        with pytest.raises(sf.SpawnError) as refused:
            async with open_session(*args, **options):
                pass
        return refused.value

    missing = await refusal("no-such-shell")
    assert isinstance(missing, FileNotFoundError)
    assert str(missing).startswith("no-such-shell: not found in PATH")
    directory = await refusal(cwd="/no/such")
    assert (directory.stage, directory.filename) == ("cwd", "/no/such")
    wrong = await refusal(shell, ["--no-such-option"])
    assert wrong.errno == errno.ESRCH
    assert "exited while it started" in str(wrong)
    begun = time.monotonic()
    slow = await refusal("sh", ["-c", "exec sleep 600"], startup_timeout=0.1)
    assert "did not start within 100ms" in str(slow)
    assert time.monotonic() - begun < AT_ONCE_S


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cwd": 3}, "cwd: expected str, bytes or os.PathLike, not int"),
        ({"cwd": "a\0"}, "cwd: embedded null byte"),
        ({"env": ["A=1"]}, "env: expected a mapping of str"),
        ({"env": sf.Env.empty()}, "env: expected a mapping of str"),
        ({"env": {"1x": ""}}, 'env: "1x" is not a name of a variable'),
        ({"env": {b"\xff": b""}}, 'env: "\\xFF" is not a name of a variable'),
        ({"env": {"A": 1}}, "env['A']: expected str, bytes or os.PathLike, not int"),
        ({"tree": "guard"}, '"tree"; it is an option of the session'),
        ({"limits": sf.Limits(pids=9)}, '"limits"; it is an option of the session'),
        ({"sandbox": None}, '"sandbox"; it is an option of the session'),
        ({"warm": None}, '"warm"; it is an option of the session'),
        ({"login": True}, '"login"; it is an option of the session'),
        ({"stderr": "merge"}, '"stderr"; pass stderr="merge" to the session'),
        ({"stdout": "null"}, '"stdout"; both streams are captured'),
        ({"leftovers": "adopt"}, '"leftovers"; background jobs of a command run on'),
        ({"terminal": (3, 4)}, '"terminal"; it is an option of the session'),
        ({"actions": []}, '"actions"; the session\'s shell runs the command'),
        ({"check": True}, '"check"; call check() of the Result'),
        ({"nonsense": 1}, 'unexpected keyword argument "nonsense"'),
        ({"stdin": 7}, 'stdin: expected one of "null", "stream", not int'),
        ({"stdin": "inherit"}, 'stdin: expected one of "null", "stream", got "inherit"'),
        ({"timeout": -1}, "timeout must be >= 0, got -1"),
        ({"marker": "a\nb"}, "the marker must not contain a line break"),
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
            (lambda: session.run(5), TypeError, "command: expected str, bytes or os.PathLike"),
            (lambda: session.run(["true"]), TypeError, "command: expected str, bytes"),
            (lambda: session.run("a\0b"), ValueError, "command: embedded null byte"),
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
        (
            {"program": 3},
            TypeError,
            "program: expected str, bytes, os.PathLike or spawnfd.Temp",
        ),
        ({"program": ["bash"]}, TypeError, "program: expected"),
        ({"program": ""}, ValueError, "must not be empty"),
        ({"args": "-i"}, TypeError, "args: "),
        ({"cwd": 3}, TypeError, r"cwd: expected a path \(str, bytes or os.PathLike\), not int"),
        ({"stderr": "null"}, ValueError, 'expected one of "separate", "merge", got "null"'),
        ({"login": 1}, TypeError, "login: expected bool, not int"),
        ({"queue": 1}, TypeError, "queue: expected bool, not int"),
        ({"startup_timeout": -1}, ValueError, "startup_timeout must be >= 0"),
        ({"grace": "x"}, TypeError, "grace: expected seconds"),
        ({"tree": "x"}, ValueError, "tree must be one of"),
        ({"timeout": 3}, TypeError, r"run\(\) and start\(\) of the session accept it"),
        ({"stdout": "null"}, TypeError, "each command has streams of its own"),
        ({"terminal": (3,)}, TypeError, "terminal: expected a tuple of two int"),
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
        before, pidfds = descriptors()
        listed = await stdout(session, "ls /proc/$$/fd")
        for number in range(1000):
            result = await session.run(f"X={number}")
            assert result.ok
        assert await stdout(session, "echo $X") == "999\n"
        for _ in range(20):
            await session.run("read x; sleep 600", input="x\n", timeout=0.01)
            await (await session.run("cat", yield_after=0, stdin="stream")).stop()
        gc.collect()
        assert await stdout(session, "ls /proc/$$/fd") == listed
        await wait_until(lambda: descriptors() == (before, pidfds))


async def test_session_with_a_terminal(open_session: Open) -> None:
    async with open_session(terminal=(30, 100)) as session:
        result = await session.run("stty size </dev/tty; test -t 1 && echo terminal")
        assert result.text == "30 100\r\nterminal\r\n"
        session.resize(10, 20)
        assert (await session.run("stty size </dev/tty")).text == "10 20\r\n"
        assert (await session.run("cat", input="typed\n")).text == "typed\r\n"
    async with open_session(terminal=(30, 100), echo=True) as session:
        assert (await session.run("cat", input="x\n")).text == "x\r\nx\r\n"
    async with open_session() as session:
        with pytest.raises(ValueError, match="not created with a terminal"):
            session.resize(10, 20)
    with pytest.raises(ValueError, match="echo"):
        open_session(echo=True)


async def test_daemons_end_with_the_session(open_session: Open) -> None:
    async with open_session(tree="subreaper") as session:
        result = await session.run("setsid -f sleep 1000")
        assert result.ok
        assert (result.tree, result.tree_complete) == ("subreaper", True)
        await wait_until(lambda: "sleep" in [process.name for process in session.processes()])
        [daemon] = [process.pid for process in session.processes() if process.name == "sleep"]
    await wait_until(lambda: not is_alive(daemon))
