# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs on the other side of a pipe. The server is a process of this machine."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import spawnfd as sf
from conftest import is_alive, make_script, wait_until
from patience import TIMEOUT_S, eventually, in_threads
from test_fork import in_fork, refuses

# The first process supervises the second one, as in `spawnfd serve`.
SERVE = """
import sys
from spawnfd import _spawnfd
if sys.argv[1:]:
    _spawnfd.serve()
elif (code := _spawnfd.supervise([*sys.orig_argv, "here"])) < 0:
    sys.exit(f"signal {-code} has ended the server")
else:
    sys.exit(code)
"""
SERVER = [sys.executable, "-I", "-c", SERVE]


@pytest.fixture
def box() -> Generator[sf.Remote]:
    with sf.Remote.command(SERVER) as box:
        yield box


def server_of(box: sf.Remote) -> int:
    """The pid of the server, which is the parent of its programs."""
    return int(box.run(sf.sh("echo $PPID"), tree="group").text)


@contextmanager
def stopped(box: sf.Remote) -> Generator[int]:
    """Stops the server meanwhile."""
    pid = server_of(box)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        # The connection may have ended the server.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def connected(transport: list[str] = SERVER) -> AsyncGenerator[sf.Remote]:
    """A connection in the test's event loop."""
    with anyio.fail_after(TIMEOUT_S):
        async with sf.Remote.command(transport) as box:
            yield box


def facts(result: sf.Result) -> dict[str, object]:
    """The parts of a result that the place has no influence on."""
    names = (
        "ok code signal stop status_lost stdout stderr stderr_head stdout_tail omitted output "
        "input_refused seen_bytes drain limits leftovers args cwd shell_exited"
    )
    return {name: getattr(result, name) for name in names.split()}


RUNS: dict[str, tuple[list[str | bytes], dict[str, Any]]] = {
    "output": (sf.sh("echo out; printf 'err\\377' >&2; exit 3"), {}),
    "signal": (sf.sh("kill -9 $$"), {}),
    "keep": (["seq", "100000"], {"keep": (100, 200)}),
    "all": (["seq", "200000"], {"keep": "all"}),
    "marker": (["seq", "100000"], {"keep": (10, 10), "marker": None}),
    "timeout": (sf.sh("echo x; exec sleep 1000"), {"timeout": 0.2, "grace": 0.1}),
    "idle": (["sleep", "1000"], {"idle_timeout": 0.1}),
    "limit": (sf.sh("printf %2000s; exec sleep 1000"), {"output_limit": 1000}),
    "merge": (sf.sh("echo a; echo b >&2; echo c"), {"stderr": "merge"}),
    "combined": (sf.sh("echo a; sleep 0.1; echo b >&2; sleep 0.1; echo c"), {"combined": True}),
    "null": (sf.sh("echo a; echo b >&2"), {"stdout": "null", "stderr": "null"}),
    "input": (["cat"], {"input": "some text"}),
    "big input": (["cksum"], {"input": bytes(range(256)) * 10_000}),
    "refused input": (["true"], {"input": b"x" * 1_000_000}),
    "environment": (["env"], {"env": {"PATH": "/usr/bin:/bin", "A": "\udcff"}}),
    "directory": (sf.sh("pwd; ls . >/dev/null"), {"cwd": "/usr/lib"}),
    "actions": (sf.sh("umask; nice"), {"actions": [sf.actions.Umask(0o27), sf.actions.Nice(3)]}),
    "arg0": (["/bin/sh", "-c", "echo $0"], {"arg0": "name"}),
    "bytes": (["printf", "%s", b"\xff\xfe"], {}),
    "terminal": (sf.sh("stty size"), {"terminal": (30, 90)}),
    "limits": (["true"], {"limits": sf.Limits(cpu_time=100)}),
}


@pytest.mark.parametrize("name", RUNS)
async def test_result_equals_the_local_one(name: str) -> None:
    argv, options = RUNS[name]
    local = sf.run(argv, **options)
    async with connected() as box:
        remote = await box.run_async(argv, **options)
        assert facts(remote) == facts(local) | {"args": remote.args}
        assert remote.args == local.args
        assert (local.where, remote.where) == (None, box.where)
        assert facts(box.run(argv, **options)) == facts(remote)
        async with box.start(argv, **options) as job:
            text = b"".join([event.bytes async for event in job.events()])
            started = await job.result()
        assert facts(started) == facts(remote) | {"output": started.output}
        if started.stop == "exited":
            assert len(text) == started.seen_bytes


ERRORS: list[dict[str, Any]] = [
    {"argv": ["/nonexistent/program"]},
    {"argv": ["no-such-program"]},
    {"argv": ["/etc"]},
    {"argv": ["true"], "cwd": "/nonexistent"},
    {"argv": ["true"], "actions": [sf.actions.Umask(0), sf.actions.Chroot("/nonexistent")]},
]


@pytest.mark.parametrize("call", ERRORS)
def test_failed_start_is_the_local_error(box: sf.Remote, call: dict[str, Any]) -> None:
    def error_of(start: Callable[..., object]) -> tuple[object, ...]:
        with pytest.raises(sf.SpawnError) as caught:
            start(**call)
        error = caught.value
        return type(error), error.errno, error.filename, error.stage, error.action, error.message

    def started(**options: Any) -> object:
        # An error in the child is that of the job.
        return box.start_sync(**options).result()

    local = error_of(sf.run)
    assert error_of(box.run) == local
    assert error_of(started) == local


def test_environment_is_that_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "here")
    monkeypatch.setenv("OWN", "here")
    with sf.Remote.command(["env", "-u", "OWN", "PLACE=there", "ALL=1", *SERVER]) as box:

        def variables(env: sf.Environment | None) -> set[str]:
            lines = box.run(["env"], env=env).check().text.splitlines()
            return {line for line in lines if line.split("=")[0] in {"PLACE", "OWN", "ALL", "X"}}

        assert variables(None) == {"PLACE=there", "ALL=1"}
        assert variables(sf.Env.inherit(deny=["PL*"]).set("X", "1")) == {"ALL=1", "X=1"}
        assert variables(sf.Env.only(["PLACE"])) == {"PLACE=there"}
        assert variables({"X": "2"}) == {"X=2"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stdin": "inherit"}, "stdin"),
    ({"stdin": 0}, "stdin"),
    ({"stdout": 1}, "stdout"),
    ({"stderr": sys.__stderr__}, "stderr"),
    ({"cwd": 0}, "cwd"),
    ({"sandbox": sf.Sandbox(["env"])}, "sandbox"),
    ({"actions": [sf.actions.Descriptor(0, 5)]}, "descriptor"),
    ({"timeout": -1}, "timeout"),
    ({"unknown": 1}, "unknown"),
]


@pytest.mark.parametrize(("options", "name"), REFUSED)
def test_argument_of_this_process_is_refused_by_name(
    box: sf.Remote, options: dict[str, Any], name: str
) -> None:
    for call in (box.run, box.start_sync):
        with pytest.raises((TypeError, ValueError), match=name):
            call(["true"], **options)
    assert box.run(["true"]).ok


def test_warm_and_template_are_refused(box: sf.Remote) -> None:
    with sf.Warm() as warm:
        with pytest.raises(ValueError, match="warm"):
            box.run(["true"], warm=warm)
        with pytest.raises(ValueError, match="warm"):
            box.session(warm=warm)
    with pytest.raises(TypeError, match="program"):
        box.session(cast(Any, sf.Template("bash")))
    with pytest.raises(ValueError, match="sandbox"):
        box.session(sandbox=sf.Sandbox(["env"]))


async def test_job_streams_and_takes_input(run_loop: object) -> None:
    script = "while read line; do echo got $line; done; echo end >&2"
    async with connected() as box, box.start(sf.sh(script), stdin="stream") as job:
        events = job.events(lines=True)
        for number in range(3):
            await job.write(f"{number}\n")
            event = await anext(events)
            assert (event.stream, event.text) == ("stdout", f"got {number}\n")
        assert await job.wait(0) is None
        job.close_stdin()
        assert [(event.stream, event.text) async for event in events] == [("stderr", "end\n")]
        result = await job.result()
        assert (result.ok, result.where) == (True, box.where)
        assert job.read().text == "got 0\ngot 1\ngot 2\nend\n"


async def test_flood_reaches_a_slow_reader_whole() -> None:
    async with connected() as box, box.start(["seq", "500000"]) as job:
        received = bytearray()
        async for event in job.events():
            if len(received) < 1 << 20:
                await anyio.sleep(0.001)
            assert event.lost == 0
            received += event.bytes
    assert bytes(received) == b"".join(b"%d\n" % number for number in range(1, 500_001))


def test_sync_job_gets_signals_and_ends(box: sf.Remote) -> None:
    script = "trap 'echo usr' USR1; echo ready; while :; do sleep 0.01; done"
    with box.start_sync(sf.sh(script)) as job:
        assert job.wait_for("ready", TIMEOUT_S)
        assert is_alive(job.pid)
        job.signal(signal.SIGUSR1)
        assert job.wait_for("usr", TIMEOUT_S)
        result = job.stop(grace=0)
    assert (result.stop, result.signal, job.running) == ("cancelled", signal.SIGKILL, False)
    with box.start_sync(["sleep", "1000"]) as left:
        pass
    assert eventually(lambda: not is_alive(left.pid))
    dropped = box.start_sync(["sleep", "1000"])
    pid = dropped.pid
    del dropped
    assert eventually(lambda: not is_alive(pid))


async def test_cancelled_run_ends_its_program(run_loop: object, tmp_path: Path) -> None:
    async with connected() as box:
        caught: list[BaseException] = []
        script = f"trap 'echo trapped; exit 3' TERM; echo $$; : > '{tmp_path}/x'; sleep 1000 & wait"

        async def run() -> None:
            try:
                await box.run_async(sf.sh(script), grace=TIMEOUT_S)
            except BaseException as error:
                caught.append(error)
                raise

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await wait_until((tmp_path / "x").exists)
            group.cancel_scope.cancel()
        result = cast(Any, caught[0]).result
        assert (result.stop, result.code) == ("cancelled", 3)
        assert result.text.endswith("trapped\n")
        assert not is_alive(int(result.text.split()[0]))


async def test_cancelled_start_ends_its_program(tmp_path: Path) -> None:
    async with connected() as box:
        file = tmp_path / "pid"
        with stopped(box):
            with anyio.move_on_after(0.2) as scope:
                await box.start(sf.sh(f"echo $$ > '{file}'; sleep 1000"))
            assert scope.cancelled_caught
        assert await box.ping_async() > 0
        # The order to end the program has followed its start, or has prevented it.
        await wait_until(lambda: not file.exists() or not is_alive(int(file.read_text() or "1")))


def test_ctrl_c_ends_the_program(box: sf.Remote) -> None:
    line = f"trap 'echo trapped; exit 3' TERM; echo $$; kill -INT {os.getpid()}; sleep 1000 & wait"
    with pytest.raises(KeyboardInterrupt) as caught:
        box.run(sf.sh(line), grace=TIMEOUT_S)
    result = cast(Any, caught.value).result
    assert (result.stop, result.code, result.where) == ("cancelled", 3, box.where)
    assert not is_alive(int(result.text.split()[0]))
    assert box.run(["true"]).ok


async def test_killed_server_loses_its_programs() -> None:
    async with connected() as box:
        server = server_of(box)
        job = await box.start(sf.sh("echo $$; sleep 1000"))
        assert await job.wait_for("\n", TIMEOUT_S)
        results: list[sf.Result] = []

        async def run() -> None:
            results.append(await box.run_async(["sleep", "1000"]))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(0.1)
            os.kill(server, signal.SIGKILL)
        for result in (*results, await job.result()):
            lost = (result.stop, result.code, result.signal, result.ok, result.status_lost)
            assert lost == ("lost", None, None, False, True)
            assert result.where == box.where
            with pytest.raises(sf.ExitError, match="lost"):
                result.check()
        assert job.read().text == f"{job.pid}\n"
        await wait_until(lambda: not is_alive(job.pid))
        for call in (box.run, box.start_sync):
            with pytest.raises(
                sf.SpawnError, match=r"connection is lost: .*signal 9 has ended the server"
            ) as caught:
                call(["true"])
            assert caught.value.errno == errno.ENOTCONN
        with pytest.raises(sf.SpawnError, match="lost"):
            await box.ping_async()
        with pytest.raises(sf.SpawnError, match="lost"):
            await box.session().run("true")


def test_closed_connection_is_refused(box: sf.Remote) -> None:
    job = box.start_sync(["sleep", "1000"])
    assert not box.closed
    box.close()
    assert (job.result().stop, box.closed) == ("lost", True)
    for call in (box.run, box.start_sync):
        with pytest.raises(sf.SpawnError, match="closed") as caught:
            call(["true"])
        assert caught.value.errno == errno.ENOTCONN
    assert eventually(lambda: not is_alive(job.pid))
    assert "closed" in repr(box)


async def test_many_runs_at_once(run_loop: object) -> None:
    async with connected() as box:
        texts: dict[int, str] = {}

        async def run(number: int) -> None:
            texts[number] = (await box.run_async(["echo", str(number)])).check().text

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(run, number)
        assert texts == {number: f"{number}\n" for number in range(200)}


async def test_limiter_of_this_side_bounds_the_runs() -> None:
    limiter = sf.Limiter(2)
    most = 0
    async with connected() as box:

        async def run() -> None:
            nonlocal most
            result = await box.run_async(["sleep", "0.02"], limiter=limiter)
            most = max(most, limiter.running)
            assert result.ok

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(run)
    assert (limiter.running, limiter.waiting) == (0, 0)
    assert most <= 2


async def test_waits_do_not_block_the_loop(run_loop: object) -> None:
    """The server answers nothing, so only a wait that lets other tasks run can end."""
    async with connected() as box, box.session() as session:
        done: list[str] = []

        async def call(name: str, made: Any) -> None:
            await made
            done.append(name)

        with stopped(box) as server:
            async with anyio.create_task_group() as group:
                group.start_soon(call, "ping", box.ping_async())
                group.start_soon(call, "processes", session.processes())
                group.start_soon(call, "run", box.run_async(["true"]))
                group.start_soon(call, "start", box.start(["true"]))
                group.start_soon(call, "command", session.run("true"))
                await anyio.sleep(0.2)
                assert done == []
                os.kill(server, signal.SIGCONT)
        assert sorted(done) == ["command", "ping", "processes", "run", "start"]


async def test_server_that_does_not_answer(run_loop: object) -> None:
    box = sf.Remote.command(["cat"], connect_timeout=0.3)
    assert box.where == "cat"
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        with pytest.raises(sf.SpawnError, match="no spawnfd server has answered") as caught:
            await box.run_async(["true"])
        assert caught.value.errno == errno.ETIMEDOUT
        group.cancel_scope.cancel()
    assert ticks > 1
    with pytest.raises(sf.SpawnError) as again:
        box.connect()
    assert again.value.errno == errno.ETIMEDOUT
    with pytest.raises(sf.SpawnError):
        async with box:
            raise AssertionError("the connection is open")


def test_server_that_falls_silent_is_lost() -> None:
    with sf.Remote.command(SERVER, lease=0.5) as box:
        job = box.start_sync(["sleep", "1000"])
        with stopped(box):
            result = job.result()
            # The server is a process of this machine, so the end of the transport also reaches the
            # program, and the server may still report that.
            assert (result.ok, result.code) == (False, None)
            assert result.stop == "lost" or result.signal == signal.SIGTERM
        with pytest.raises(sf.SpawnError, match="silent"):
            box.run(["true"])
        assert eventually(lambda: not is_alive(job.pid))


FAILURES: dict[str, tuple[list[str | bytes], int, str]] = {
    "exit": (sf.sh("echo Host key verification failed. >&2; exit 255"), errno.ENOTCONN, "Host key"),
    "silent exit": (["true"], errno.ENOTCONN, "exited with status 0"),
    "signal": (sf.sh("kill -9 $$"), errno.ENOTCONN, "SIGKILL"),
    "no server": (["yes"], errno.EPROTO, "no spawnfd server"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_transport_that_fails_says_why(name: str) -> None:
    transport, number, words = FAILURES[name]
    box = sf.Remote.command(transport)
    for _ in range(2):
        with pytest.raises(sf.SpawnError, match=words) as caught:
            box.run(["true"])
        assert caught.value.errno == number
    with pytest.raises(sf.SpawnError, match=words), box:
        raise AssertionError("the connection is open")


def test_arguments_of_a_connection_are_checked() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-transport"):
        sf.Remote.command(["no-such-transport"])
    with pytest.raises(FileNotFoundError, match="no-such-server"):
        sf.Remote.local(server="/no-such-server")
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: sf.Remote.command([]), "argv"),
        (lambda: sf.Remote.command(cast(Any, "ssh host")), "argv"),
        (lambda: sf.Remote.command(["cat"], lease=0), "lease"),
        (lambda: sf.Remote.command(["cat"], lease=cast(Any, "x")), "lease"),
        (lambda: sf.Remote.command(["cat"], connect_timeout=-1), "connect_timeout"),
        (lambda: sf.Remote.ssh("-oProxyCommand=x"), "host"),
        (lambda: sf.Remote.docker(""), "container"),
        (lambda: sf.Remote.kubectl(cast(Any, 1)), "pod"),
        (sf.Remote, "Remote.command"),
        (sf.RemoteSession, "Remote.session"),
        (sf.SyncRemoteSession, "Remote.session_sync"),
    ]
    for call, words in wrong:
        with pytest.raises((TypeError, ValueError), match=words):
            call()


def test_text_before_the_server_is_passed_over() -> None:
    noise = "seq 1000; printf 'Last login: \\0spawnfd'; echo warning >&2; exec \"$@\""
    with sf.Remote.command(["sh", "-c", noise, "sh", *SERVER]) as box:
        assert box.run(["echo", "x"]).text == "x\n"


def test_transports_have_their_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ssh", "docker", "kubectl", "spawnfd"):
        text = f"#!{sys.executable} -I\nimport json, os, sys\n"
        text += f"open({str(tmp_path / 'argv')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
        text += f"os.execv({sys.executable!r}, {SERVER!r})\n"
        make_script(tmp_path / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = os.uname().nodename

    def check(box: sf.Remote, transport: str, *argv: str) -> None:
        with box:
            assert box.run(["true"]).where == box.where == f"{host} ({transport})"
        assert json.loads((tmp_path / "argv").read_text()) == list(argv)

    remote = sf.Remote
    check(remote.local(), "spawnfd", "serve")
    options = ["-T", "-o", "BatchMode=yes"]
    check(remote.ssh("me@host"), "ssh", *options, "--", "me@host", "exec spawnfd serve")
    box = remote.ssh("host", server="/my tools/spawnfd", options=["-p", "22"])
    check(box, "ssh", *options, "-p", "22", "--", "host", "exec '/my tools/spawnfd' serve")
    check(remote.docker("3f"), "docker", "exec", "-i", "3f", "spawnfd", "serve")
    box = remote.docker("3f", user="app", server="/s")
    check(box, "docker", "exec", "-i", "--user", "app", "3f", "/s", "serve")
    check(remote.kubectl("pod"), "kubectl", "exec", "-i", "pod", "--", "spawnfd", "serve")
    chosen = ["--namespace", "n", "--container", "c"]
    box = remote.kubectl("pod", namespace="n", container="c")
    check(box, "kubectl", "exec", "-i", "pod", *chosen, "--", "spawnfd", "serve")


def test_result_names_its_place(box: sf.Remote) -> None:
    result = box.run(["echo", "x"])
    assert result.where == f"{os.uname().nodename} ({Path(sys.executable).name})"
    assert f"where={result.where!r}".replace("'", '"') in repr(result)
    copy = pickle.loads(pickle.dumps(result))
    assert (copy.where, facts(copy)) == (result.where, facts(result))
    local = sf.run(["echo", "x"])
    assert (local.where, pickle.loads(pickle.dumps(local)).where) == (None, None)
    assert "where" not in repr(local)
    for mine in (box, box.session(), box.session_sync()):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(mine)


@pytest.mark.parametrize("shell", ["bash", "dash"])
async def test_session_keeps_its_state(run_loop: object, shell: str) -> None:
    async with connected() as box:
        session = box.session(shell)
        assert (session.pid, session.closed) == (None, False)
        async with session:
            await session.run("cd /usr; X=1")
            result = await session.run("echo $X; cat", input="input")
            assert (result.text, str(result.cwd)) == ("1\ninput", "/usr")
            assert (result.args, result.where) == (["echo $X; cat"], session.where)
            late = await session.run("sleep 1000", timeout=0.1)
            assert late.stop == "timeout"
            own = await session.run("echo $Y; pwd", cwd="/tmp", env={"Y": "2"})
            assert own.text == "2\n/tmp\n"
            assert (await session.run("echo $X; pwd")).text == "1\n/usr\n"
            assert await session.processes() == []
            pid = session.pid
            assert pid is not None
            assert is_alive(pid)
            with pytest.raises(ValueError, match="side_command"):
                await session.side_command(["true"])
        assert (session.closed, session.pid, is_alive(pid)) == (True, None, False)
        with pytest.raises(ValueError, match="closed"):
            await session.run("true")


async def test_command_of_a_session_is_a_job(run_loop: object) -> None:
    async with connected() as box, box.session() as session:
        script = "read x; echo got $x; sleep 1000"
        async with session.start(script, stdin="stream") as job:
            await job.write("word\n")
            assert (await anext(job.events(lines=True))).text == "got word\n"
            while [process.name for process in await session.processes()] != ["sleep"]:
                await anyio.sleep(0.01)
            with pytest.raises(sf.SpawnError) as caught:
                await session.start("true")
            assert caught.value.errno == errno.EBUSY
            session.interrupt()
            assert (await job.result()).code == 130
        yielded = await session.run("echo x; sleep 1000", yield_after=0.1)
        assert isinstance(yielded, sf.Job)
        assert (await yielded.stop(grace=0.1)).stop == "cancelled"
        ended = await session.run("exit 3")
        assert (ended.stop, ended.shell_exited, ended.shell_code) == ("lost", True, 3)
        with pytest.raises(ProcessLookupError):
            await session.run("true")


async def test_commands_of_a_session_wait_for_each_other() -> None:
    async with connected() as box, box.session(queue=True, restart=True) as session:
        texts: list[str] = []

        async def run(number: int) -> None:
            result = await session.run(f"N=${{N}}{number}; echo $N")
            texts.append(result.text.strip())

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(run, number)
        assert texts == ["".join(map(str, range(count))) for count in range(1, 6)]
        await session.run("cd /usr")
        await session.run("exit 3")
        assert (await session.run("pwd")).text == "/usr\n"


def test_sync_session(box: sf.Remote) -> None:
    with box.session_sync(terminal=(30, 90), env={"PATH": "/usr/bin:/bin"}) as session:
        assert session.run("stty size < /dev/tty").text == "30 90\r\n"
        session.resize(40, 100)
        assert session.run("stty size < /dev/tty").text == "40 100\r\n"
        job = session.start("sleep 1000")
        while [process.name for process in session.processes()] != ["sleep"]:
            pass
        job.interrupt()
        assert job.result().code == 130
        with pytest.raises(ValueError, match="side_command"):
            session.side_command(["true"])
    assert session.closed
    with box.session_sync() as session, pytest.raises(ValueError, match="terminal"):
        session.resize(1, 1)


def test_dropped_session_ends_its_shell(box: sf.Remote) -> None:
    session = box.session_sync()
    session.run("sleep 1000 &")
    pids = [session.pid, *(process.pid for process in session.processes())]
    del session
    for pid in pids:
        assert pid is not None
        assert eventually(lambda pid=pid: not is_alive(pid))
    assert box.run(["true"]).ok


def test_shell_that_cannot_start(box: sf.Remote) -> None:
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="no-such-shell"):
            box.session_sync("/no-such-shell").run("true")
    session = box.session_sync("bash", ["-c", "echo wrong >&2; exit 4"])
    with pytest.raises(ProcessLookupError):
        session.run("true")


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_fork_cannot_use_the_connection(box: sf.Remote) -> None:
    job = box.start_sync(["sleep", "1000"])
    in_fork(lambda: refuses(lambda: box.run(["true"]), sf.SpawnError))
    in_fork(lambda: refuses(box.ping, sf.SpawnError))
    in_fork(lambda: refuses(lambda: box.session_sync().run("true"), sf.SpawnError))
    assert job.running
    assert job.stop(grace=0).stop == "cancelled"
    assert box.run(["true"]).ok


def test_threads_share_a_connection(box: sf.Remote) -> None:
    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            for count in range(10):
                assert box.run(["echo", f"{number} {count}"]).text == f"{number} {count}\n"

        return run

    in_threads(*map(work, range(8)))


def test_jobs_keep_the_connection() -> None:
    job = sf.Remote.command(SERVER).start_sync(sf.sh("read x; echo $x"), stdin="stream")
    job.write("word\n")
    assert job.result().text == "word\n"


END = f"""
import os
box = sf.Remote.command({SERVER!r})
job = box.start_sync(["sleep", "1000"])
session = box.session_sync()
session.run("true")
print(job.pid, session.pid)
"""


def test_end_of_the_process_ends_the_programs() -> None:
    for more in ("", "os.kill(os.getpid(), 9)"):
        pids = pids_of(END + more)
        for pid in pids:
            assert eventually(lambda pid=pid: not is_alive(pid))


def pids_of(script: str) -> list[int]:
    done = sf.run([sys.executable, "-c", "import spawnfd as sf" + script], timeout=TIMEOUT_S)
    assert done.stderr == b"", done.stderr_text
    found = [int(word) for word in done.text.split()]
    assert len(found) == 2
    return found
