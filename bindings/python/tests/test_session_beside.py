# SPDX-License-Identifier: MIT OR Apache-2.0
"""Commands that wait for each other, commands beside a running one, and the end of events."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import anyio
import pytest
import spawnfd as sf
from conftest import RunLoop, wait_until
from patience import TIMEOUT_S, in_background, in_threads
from session_support import Open, Start
from subprocess_support import run_script

ADD = "m=$n; sleep 0.01; n=$((m + 1))"


async def test_queue_runs_parallel_commands_in_order(run_loop: RunLoop, shell: str) -> None:
    async with sf.Session(shell, queue=True) as session:
        await session.run("n=0; all=")
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(partial(session.run, f"{ADD}; all=$all$n:{number},"))
                await anyio.sleep(0)
        result = await session.run("echo $n $all")
        count, order = result.text.split()
        assert count == "5"
        assert order.count(":") == 5


async def test_queued_command_can_be_cancelled(run_loop: RunLoop, shell: str) -> None:
    async with sf.Session(shell, queue=True) as session:
        async with session.start("read x; X=$x", stdin="stream") as job:
            with anyio.move_on_after(0.05):
                await session.run("X=wrong")
            await job.write("right\n")
            assert (await job.result()).ok
        assert (await session.run("echo $X")).text == "right\n"


async def test_failed_command_passes_its_turn_on(run_loop: RunLoop, shell: str) -> None:
    async with sf.Session(shell, queue=True) as session:
        for _ in range(3):
            with pytest.raises(ValueError, match="timeout must be >= 0"):
                await session.run("true", timeout=-1)
        assert (await session.run("echo on")).text == "on\n"


def test_threads_share_a_session(shell: str) -> None:
    with sf.SyncSession(shell) as session:
        session.run("n=0")
        in_threads(*[partial(session.run, ADD)] * 8)
        assert session.run("echo $n").text == "8\n"


def test_thread_is_refused_beside_its_own_job(shell: str) -> None:
    """A thread that waited for its own job would wait for ever."""
    with sf.SyncSession(shell) as session:
        job = session.start("read x; X=$x", stdin="stream")
        with pytest.raises(sf.SpawnError, match="runs another command") as busy:
            session.run("true")
        assert busy.value.errno == errno.EBUSY
        texts: list[str] = []
        with in_background(lambda: texts.append(session.run("echo $X").text)):
            job.write("1\n")
            assert job.result().ok
        assert texts == ["1\n"]
        # A job that was dropped is about to end.
        job = session.start("sleep 600", grace=0)
        del job
        assert session.run("echo on", timeout=TIMEOUT_S).text == "on\n"


def test_signal_handler_does_not_wait_for_the_thread_it_interrupts(shell: str) -> None:
    """The call that the handler interrupts is before it in the queue."""
    code = f"""
        import errno, signal, threading, time
        busy = []
        def handler(*_):
            try:
                session.run("true")
            except sf.SpawnError as error:
                busy.append(error.errno)
        signal.signal(signal.SIGUSR1, handler)
        with sf.SyncSession({shell!r}) as session:
            def run():
                job = session.start("read x", stdin="stream")
                started.set()
                while not busy:
                    os.kill(os.getpid(), signal.SIGUSR1)
                    time.sleep(0.05)
                job.close_stdin()
                job.result()
            started = threading.Event()
            thread = threading.Thread(target=run)
            thread.start()
            started.wait()
            print(session.run("echo on").text, busy[0] == errno.EBUSY)
            thread.join()
    """
    assert run_script(code) == "on\n True\n"


def test_session_without_a_queue_refuses(shell: str) -> None:
    with sf.SyncSession(shell, queue=False) as session, session.start("sleep 600", grace=0):
        busy: list[int | None] = []

        def run() -> None:
            with pytest.raises(sf.SpawnError) as error:
                session.run("true")
            busy.append(error.value.errno)

        in_threads(run)
        assert busy == [errno.EBUSY]


async def test_side_command_has_directory_and_variables(open_session: Open, tmp_path: Path) -> None:
    shows = sf.sh('echo "$X" ${Z-unset} $PWD; umask')
    async with open_session(restart=True, env={"PATH": os.environ["PATH"]}) as session:
        first = await session.side_command(sf.sh("echo ${X-unset}"))
        assert first.text == "unset\n"
        await session.run(f"export X='a  b'; Z=1; cd '{tmp_path}'; umask 027")
        job = await session.run("read x", yield_after=0, stdin="stream")
        result = await session.side_command(shows, timeout=TIMEOUT_S)
        assert result.text == f"a  b unset {tmp_path}\n0027\n"
        with pytest.raises(FileNotFoundError):
            await session.side_command(["no-such-program"])
        with pytest.raises(TypeError, match="got multiple values"):
            await session.side_command(["true"], cwd="/")
        job.close_stdin()
        await job.result()
    async with open_session() as session:
        with pytest.raises(ValueError, match="only with the option restart"):
            await session.side_command(["true"])


def test_audit_events_of_a_side_command(shell: str, tmp_path: Path) -> None:
    """The hook sees the shell that reads the state, and the program with its real state."""
    marker = tmp_path / "marker"
    script = f"""
seen = []
class Refused(Exception): pass
def hook(event, args):
    if event != "subprocess.Popen": return
    seen.append(args)
    if args[0] == "touch": raise Refused
sys.addaudithook(hook)
with sf.SyncSession({shell!r}, cwd="/", restart=True) as session:
    session.run("cd /usr; export X=1")
    seen.clear()
    session.side_command(["true", "x"])
    (_, argv, cwd, env), program = seen
    print(argv[1], cwd, len(env))
    print(program[:3], program[3]["X"])
    try: session.side_command(["touch", {str(marker)!r}])
    except Refused: print("refused")
"""
    assert run_script(script) == "-c None 0\n('true', ['true', 'x'], '/usr') 1\nrefused\n"
    assert not marker.exists()


async def test_error_of_a_side_command_names_the_shell(
    open_session: Open, shell: str, tmp_path: Path
) -> None:
    """The shell that reads the state cannot be started, because its file is gone."""
    link = tmp_path / shell
    link.symlink_to(shutil.which(shell) or shell)
    async with open_session(os.fspath(link), restart=True) as session:
        await session.run("true")
        await session.run("exit")
        link.unlink()
        with pytest.raises(FileNotFoundError) as error:
            await session.side_command(["true"])
        assert error.value.filename == os.fspath(link)


async def test_events_end_with_the_result(open_session: Open, tmp_path: Path) -> None:
    go = tmp_path / "go"
    server = f"(until [ -e '{go}' ]; do sleep 0.01; done; echo late) & echo started"
    async with open_session() as session:
        async with await session.start(server, timeout=TIMEOUT_S) as job:
            texts = [event.text async for event in job.events()]
            assert texts == ["started\n"]
            assert (await job.result()).ok
            go.touch()
            texts = [event.text async for event in job.events(until="closed")]
            assert texts == ["late\n"]
        with pytest.raises(ValueError, match='until must be one of "result", "closed"'):
            job.events(until="now")


async def test_events_of_an_adopted_process_go_on(run_loop: RunLoop) -> None:
    line = "(sleep 0.3; echo late) & echo first"
    async with sf.start(sf.sh(line), leftovers="adopt", drain=0) as job:
        assert [e.text async for e in job.events(until="result")] == ["first\n"]
        assert [e.text async for e in job.events()] == ["late\n"]


async def test_incomplete_line_is_flushed_after_a_pause(start: Start) -> None:
    script = "printf 'one\\nName: '; read x; echo \"<$x>\"; printf end"
    expected = [("one\n", False), ("Name: ", True), ("<me>\n", False), ("end", False)]
    found: list[tuple[str, bool]] = []
    async with start(sf.sh(script), stdin="stream") as job:
        async for event in job.events(lines=True, flush_after=0.1):
            found.append((event.text, event.partial))
            if event.text == "Name: ":
                await job.write("me\n")
        with pytest.raises(ValueError, match="flush_after must be >= 0"):
            job.events(flush_after=-1)
    assert found == expected


async def test_methods_that_do_not_block_are_not_awaitable(run_loop: RunLoop) -> None:
    async with sf.Session() as session, session.start("sleep 600") as job:
        await wait_until(session.processes)
        calls = (session.interrupt, job.interrupt, job.close_stdin, job.detach)
        assert [call() for call in calls] == [None] * 4
        assert (await job.result()).code == 130
