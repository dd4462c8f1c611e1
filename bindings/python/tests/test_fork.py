# SPDX-License-Identifier: MIT OR Apache-2.0
"""The host forks (os.fork, multiprocessing) while jobs run and the engine is busy."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from interpreters import interpreter
from patience import TIMEOUT_S, in_background
from subprocess_support import run_script

ECHO = sf.sh("while read x; do echo got $x; done")
# In seconds. A step that takes longer is treated as a hang.
PATIENCE = TIMEOUT_S
ROUNDS = 100

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def in_fork(body: Callable[[], object]) -> None:
    """Forks. The child runs the body, and must end within PATIENCE seconds."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    ended(pid)


def ended(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([pidfd], [], [], PATIENCE)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    finally:
        os.close(pidfd)
    assert (bool(ready), os.waitstatus_to_exitcode(status)) == (True, 0)


def refuses(call: Callable[[], object], expected: type[BaseException]) -> None:
    with pytest.raises(expected) as caught:
        call()
    assert str(caught.value)


# The first lines of scripts whose forked processes finalize their interpreters.
FORKS = """
import asyncio, faulthandler, gc, os, signal, warnings
faulthandler.enable()
import spawnfd as sf
warnings.simplefilter("ignore", DeprecationWarning)
ECHO = sf.sh("while read x; do echo got $x; done")
def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@pytest.mark.parametrize("version", [None, "3.12", "3.13"])
def test_idle_engine_thread_ends_before_a_fork(version: str | None) -> None:
    """CPython 3.12 and newer warn about a fork with several threads."""
    python = interpreter(version) if version else sys.executable
    text = run_script(
        f"""
        ROUNDS, TRUE = {ROUNDS // 5}, ["true"]
        def threads():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pid = os.fork()
                found = len(os.listdir("/proc/self/task"))
            if pid == 0:
                assert found == 1 and sf.run(["echo", "x"]).ok and asyncio.run(awaited()).ok
                os._exit(0)
            ended(pid)
            assert len(caught) == (found > 1 and sys.version_info >= (3, 12)), (found, caught)
            return found

        async def awaited():
            return await sf.run_async(TRUE)

        async def refused():
            try:
                await sf.run_async(["/no/program"])
            except FileNotFoundError:
                return threads()

        async def cancelled():
            task = asyncio.create_task(sf.run_async(["sleep", "1000"]))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            return threads()

        assert threads() == 1, "nothing has been started"
        for _ in range(ROUNDS):
            asyncio.run(awaited())
            assert threads() == 1
            assert sf.start_sync(TRUE).result().ok
            assert threads() == threads() == 1
            assert sf.run(TRUE, tree="guard").ok
            assert threads() == 1
            assert asyncio.run(refused()) == 1
        assert asyncio.run(cancelled()) == 1

        with sf.start_sync(ECHO, stdin="stream") as job:
            asyncio.run(awaited())
            # The idle engine of the closed loop may still be ending.
            assert threads() in (2, 3), "a running job needs the engine"
            job.write("it\\n")
            assert next(job.events(lines=True)).text == "got it\\n"
        assert threads() == 1
        print("over")
        """,
        start=FORKS,
        python=python,
    )
    assert text == "over\n"


class Noise:
    """Keeps the engine busy: a thread writes to jobs that echo."""

    def __init__(self, count: int = 4) -> None:
        self.jobs = [sf.start_sync(ECHO, stdin="stream", keep=(0, 0)) for _ in range(count)]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.make)

    def make(self) -> None:
        while not self.over.is_set():
            for job in self.jobs:
                job.write("noise\n")

    def __enter__(self) -> Noise:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()
        for job in self.jobs:
            assert job.wait(0) is None, "the fork ended the job"
            job.close_stdin()
            assert job.wait(PATIENCE) is not None
            assert job.result().code == 0


def misuse(job: sf.SyncJob, child: sf.Child) -> None:
    """Uses the parent's job and child in a fork, and then a job and child of the fork itself."""
    refuses(job.wait, ChildProcessError)
    refuses(job.result, ChildProcessError)
    refuses(partial(job.write, "copy\n"), BrokenPipeError)
    refuses(job.stop, ChildProcessError)
    refuses(child.wait, ChildProcessError)
    assert (job.read().bytes, list(job.events())) == (b"", [])
    job.signal(9, tree=True)
    job.close_stdin()
    job.detach()
    assert "failed" in repr(job)
    assert sf.run(["echo", "x"], input="y").text == "x\n"
    with sf.start_sync(ECHO, stdin="stream") as own:
        own.write("mine\n")
        assert next(own.events(lines=True)).text == "got mine\n"


def test_fork_cannot_use_the_parents_jobs() -> None:
    with Noise() as noise:
        for round in range(ROUNDS):
            job = noise.jobs[round % 4]
            result = sf.start_sync(["echo", "here"])
            child = sf.spawn(["cat"], stdin="pipe")

            in_fork(partial(misuse, job, child))
            child.close()
            assert child.wait(PATIENCE) == 0
            assert result.result().text == "here\n"


async def test_fork_runs_its_own_event_loop() -> None:
    async def busy(job: sf.Job) -> None:
        async for event in job.events(lines=True):
            assert event.text == "got it\n"
            # stop() at the end of the test may interrupt the write.
            with suppress(BrokenPipeError):
                await job.write("it\n")

    jobs = [await sf.start(ECHO, stdin="stream", hold=True) for _ in range(4)]
    tasks = [asyncio.create_task(busy(job)) for job in jobs]
    for job in jobs:
        await job.write("it\n")

    async def inner() -> None:
        results = await asyncio.gather(*(sf.run_async(["echo", str(n)]) for n in range(4)))
        assert [result.text for result in results] == ["0\n", "1\n", "2\n", "3\n"]
        async with sf.start(ECHO, stdin="stream") as own:
            await own.write("mine\n")
            async for event in own.events(lines=True):
                assert event.text == "got mine\n"
                break
        for job in jobs:
            try:
                await job.wait(1)
            except ChildProcessError:
                continue
            raise AssertionError("waited for another process's job")

    def copy() -> None:
        asyncio.run(inner())

    for _ in range(ROUNDS // 2):
        # In a forked process, asyncio reports no running loop.
        in_fork(copy)
        assert (await sf.run_async(["echo", "x"])).text == "x\n"
    for job, task in zip(jobs, tasks, strict=True):
        assert await job.wait(0) is None
        result = await job.stop(PATIENCE)
        await task
        assert result.stop == "cancelled"
        assert b"copy" not in result.stdout


def worker(pipe: Any, jobs: list[Any]) -> None:
    refuses(jobs[0].wait, ChildProcessError)
    result = asyncio.run(sf.run_async(["echo", "there"]))
    pipe.send((result, sf.run(["true"]).ok))
    # The worker exits while it still references the jobs.


def test_multiprocessing_by_fork() -> None:
    context = multiprocessing.get_context("fork")
    with Noise() as noise:
        for _ in range(ROUNDS // 4):
            ours, theirs = context.Pipe()
            process = context.Process(target=worker, args=(theirs, noise.jobs))
            process.start()
            assert ours.poll(PATIENCE), "the worker hangs"
            result, ok = ours.recv()
            assert (result.text, ok) == ("there\n", True)
            process.join(PATIENCE)
            assert process.exitcode == 0
            process.close()
            ours.close()
            theirs.close()


def test_fork_finalizes_its_interpreter() -> None:
    text = run_script(
        """
        jobs = [sf.start_sync(ECHO, stdin="stream") for _ in range(4)]
        child, template = sf.spawn(["cat"], stdin="pipe"), sf.Template("true")
        for round in range(60):
            for job in jobs:
                job.write("noise\\n" * 20)
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                if round % 3 == 1:
                    del jobs, job, child, template
                    gc.collect()
                if round % 3 == 2:
                    jobs.append(sf.start_sync(["sleep", "1000"]))
                sys.exit(0)
            ended(pid)
        for job in jobs:
            assert job.wait(0) is None
            job.close_stdin()
            assert job.result().code == 0
            assert job.result().seen_bytes == 60 * 20 * len("got noise\\n")
        child.close()
        assert child.wait(20) == 0
        print("over")
        """,
        start=FORKS,
    )
    assert text == "over\n"


def test_fork_within_a_loop_finalizes_its_interpreter() -> None:
    text = run_script(
        """
        async def main():
            jobs = [await sf.start(ECHO, stdin="stream") for _ in range(4)]
            runs = [asyncio.create_task(sf.run_async(["cat"], stdin=pipe)) for _ in range(4)]
            for round in range(60):
                for job in jobs:
                    await job.write("noise\\n")
                pid = os.fork()
                if pid == 0:
                    signal.alarm(60)
                    # Finalizing the interpreter cancels the tasks of the inherited loop.
                    os._exit(0) if round % 2 else copies()
                ended(pid)
            for job in jobs:
                assert await job.wait(0) is None
                job.close_stdin()
                assert (await job.result()).seen_bytes == 60 * len("got noise\\n")
            os.close(end)
            for run in runs:
                assert (await run).ok
            print("over")

        def copies():
            async def run():
                return (await sf.run_async(["echo", "x"])).text
            loop = asyncio.new_event_loop()
            assert loop.run_until_complete(run()) == "x\\n"
            loop.close()
            gc.collect()
            os._exit(0)

        pipe, end = os.pipe()
        os.set_inheritable(end, False)
        asyncio.run(main())
        """,
        start=FORKS,
    )
    assert text == "over\n"


def test_fork_while_other_threads_start_programs() -> None:
    """A lock that another thread holds at the fork would stay locked in the child."""
    over = threading.Event()

    def start(index: int) -> None:
        while not over.is_set():
            if index % 2:
                sf.run(["true"])
            else:
                sf.subprocess.run(["true"], check=True)

    with in_background(*(partial(start, index) for index in range(4))):
        try:
            for _ in range(ROUNDS):
                in_fork(lambda: sf.run(["true"]).check())
                in_fork(lambda: sf.subprocess.check_call(["true"]))
        finally:
            over.set()


def test_install_works_in_a_fork() -> None:
    """Another thread calls install() and uninstall() at the time of the fork."""
    # The first call imports modules. After a fork during an import by another thread, the child
    # waits forever for CPython's lock of that module.
    sf.install()
    over = threading.Event()

    def switch() -> None:
        while not over.is_set():
            sf.install()
            sf.uninstall()

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        for _ in range(ROUNDS):
            in_fork(lambda: (sf.install(), sf.subprocess.check_call(["true"]), sf.uninstall()))
    finally:
        over.set()
        thread.join()
        sf.uninstall()


def open_files(directory: Path) -> set[int]:
    """Returns the descriptors of this process that refer to files of a directory."""
    fds = Path("/proc/self/fd")
    links = {
        int(each): os.readlink(fds / each) for each in os.listdir(fds) if (fds / each).exists()
    }
    return {fd for fd, link in links.items() if os.path.dirname(link) == str(directory)}


def test_fork_closes_cached_templates(tmp_path: Path) -> None:
    tools = [tmp_path / str(number) for number in range(4)]
    for tool in tools:
        shutil.copy("/bin/true", tool)
    kept, own = sf.TemplateCache.shared(), sf.TemplateCache(2)

    def use() -> None:
        for tool in tools:
            sf.subprocess.check_call([tool])
            assert own.get(tool).run().code == 0

    def generation(left: int) -> None:
        use()
        assert len(open_files(tmp_path)) == 6, "holds only its own templates"
        if left:
            in_fork(partial(generation, left - 1))

    def clear() -> None:
        with open(tmp_path / "other", "w") as other:
            taken = min(before)
            os.dup2(other.fileno(), taken)
            kept.clear()
            own.clear()
            assert open_files(tmp_path) == {taken, other.fileno()}, "closed the application's file"

    kept.clear()
    use()
    before = open_files(tmp_path)
    assert len(before) == 6
    in_fork(clear)
    in_fork(partial(generation, 3))
    assert open_files(tmp_path) == before
    kept.clear()
