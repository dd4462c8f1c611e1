# SPDX-License-Identifier: MIT OR Apache-2.0
"""SyncJob in threads, and signals while its methods block."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import spawnfd as sf
from conftest import is_alive
from patience import (
    TIMEOUT_S,
    assert_releases_the_gil,
    eventually,
    in_threads,
    signal_after,
)
from spawnfd import _job
from subprocess_support import run_script

IGNORES_SIGTERM = sf.sh("trap '' TERM; echo ready; while :; do sleep 0.01; done")


def wait_for_output(job: sf.SyncJob, text: str, since: int = 0) -> sf.Chunk:
    """Waits until a job has printed the text."""
    assert eventually(lambda: text in job.read(since).text)
    return job.read(since)


def test_write_blocks_while_the_pipe_is_full() -> None:
    large = bytes(range(256)) * 8000
    with sf.start_sync(sf.sh("sleep 0.2; cat | wc -c"), stdin="stream") as job:
        job.write(bytearray(large))
        job.close_stdin()
        assert job.result().text == f"{len(large)}\n"


def test_ctrl_c_during_wait_leaves_the_program_running() -> None:
    job = sf.start_sync(["sleep", "1000"])
    with pytest.raises(KeyboardInterrupt), signal_after(0.1, signal.SIGINT):
        job.wait()
    assert job.wait(0) is None
    assert job.stop().signal == 15


BLOCKING: dict[str, Callable[[sf.SyncJob], object]] = {
    "result": lambda job: job.result(),
    "events": lambda job: list(job.events()),
    "write": lambda job: job.write(bytes(1 << 20)),
    "stop": lambda job: job.stop(grace=1000),
}


@pytest.mark.parametrize("block", BLOCKING.values(), ids=BLOCKING)
def test_ctrl_c_in_the_block_ends_the_program(block: Callable[[sf.SyncJob], object]) -> None:
    begun = time.monotonic()
    jobs: list[sf.SyncJob] = []

    def interrupted() -> None:
        with sf.start_sync(IGNORES_SIGTERM, stdin="stream", grace=0.1) as job:
            jobs.append(job)
            wait_for_output(job, "ready")
            with signal_after(0.3, signal.SIGINT):
                block(job)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (job,) = jobs
    assert job.result().signal == 9
    assert time.monotonic() - begun < 2 * TIMEOUT_S


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces")
def test_interrupted_iterator_lets_the_program_go_on() -> None:
    """Ctrl-C arrives while the iterator is created or destroyed."""
    source = _job.__file__

    for place in itertools.count(1):
        left = place

        def trace(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != source:
                return None
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return trace

        with sf.start_sync(["head", "-c", "3000000", "/dev/zero"], window=1) as job:
            sys.settrace(trace)
            try:
                for _ in range(2):
                    events = job.events()
                    del events
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            assert job.wait(20) is not None, f"interrupted at {place}"
        if left > 0:
            break


def test_several_threads_wait_for_one_job() -> None:
    results: list[sf.Result] = []
    job = sf.start_sync(["sleep", "0.3"])
    in_threads(*[lambda: results.append(job.result())] * 4)
    assert results == [job.result()] * 4


def test_many_threads_run_jobs() -> None:
    texts: list[str] = []

    def work(name: int) -> None:
        for turn in range(10):
            with sf.start_sync(["echo", f"{name} {turn}"]) as job:
                texts.extend(event.text for event in job.events(lines=True))

    in_threads(*(partial(work, name) for name in range(8)))
    assert sorted(texts) == sorted(f"{name} {turn}\n" for name in range(8) for turn in range(10))


def test_spill_file_lives_as_long_as_job_or_result(tmp_path: Path) -> None:
    job = sf.start_sync(["seq", "1000"], keep=(4, 4), spill=sf.Spill(1 << 20, tmp_path))
    result = job.result()
    assert len(os.listdir(tmp_path)) == 1
    del job
    assert Path(result.spill_path or "").read_text().endswith("\n1000\n")
    del result
    assert os.listdir(tmp_path) == []


def test_jobs_have_no_constructor() -> None:
    for cls in (sf.Job, sf.SyncJob):
        with pytest.raises(TypeError, match=r"spawnfd\.start"):
            cls()


def test_sync_and_async_share_docstrings() -> None:
    for name in ("wait", "result", "stop", "write", "events"):
        assert getattr(sf.SyncJob, name).__doc__ == getattr(sf.Job, name).__doc__
    assert sf.start_sync.__doc__ == sf.start.__doc__
    assert sf.Template.start_sync.__doc__ == sf.Template.start.__doc__


def test_signalled_before_exec(tmp_path: Path) -> None:
    """start() does not wait for exec, so a signal can reach a job before exec."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    sf.start_sync(["true"]).result()
    blocks = [sf.actions.Open(gate, 9)]
    for tree in (False, True):
        job = sf.start_sync(["true"], actions=blocks)
        job.signal(signal.SIGKILL, tree=tree)
        assert (job.result().stop, job.result().signal) == ("exited", signal.SIGKILL)
    job = sf.start_sync(["true"], actions=blocks)
    assert (job.stop(0).stop, job.result().signal) == ("cancelled", signal.SIGKILL)
    # If a signal that the job did not send ends the child before exec, the start has failed.
    job = sf.start_sync(["true"], actions=blocks)
    os.kill(job.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(sf.SpawnError) as caught:
            job.result()
        assert (caught.value.stage, caught.value.errno) == ("killed", errno.ECANCELED)
        assert caught.value.call.endswith(", signal: 9 (SIGKILL)")


def test_queue_does_not_use_a_closed_standard_stream() -> None:
    """A host that opens a stream at this number must not get the queue's data."""
    script = """
        os.close(0)
        with sf.start_sync(["sleep", "1000"], timeout=600) as job:
            assert job.wait(0.1) is None
            queue = sf._spawnfd.Queue(False)
            assert queue.fileno() > 2, queue.fileno()
            job.stop()
    """
    run_script(script)


TAKEN = """
import threading, time
def take():
    os.closerange(3, 256)
    for _ in range(100):
        file = open(sys.argv[1], "r+b", buffering=0)
        file.seek(3)
        files.append(file)
files = []
jobs = [sf.start_sync(["sleep", "1000"], stdin="stream") for _ in range(3)]
def use(job, what):
    try:
        what(job)
    except OSError as error:
        failed.append(error.errno)
failed = []
uses = [sf.SyncJob.result, sf.SyncJob.stop, lambda job: job.write(b"x" * 100_000_000)]
threads = [threading.Thread(target=use, args=pair) for pair in zip(jobs, uses)]
if sys.argv[2] == "before":
    take()
for thread in threads:
    thread.start()
if sys.argv[2] == "meanwhile":
    # The writing thread has filled the pipe, and waits.
    import fcntl, struct, termios
    pipe = os.open(f"/proc/{jobs[2].pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    while struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0] < size:
        time.sleep(0.001)
    # Here stop() has finished without an error, so the script adds the expected errno.
    failed.append(errno.EBADF)
    take()
for thread in threads:
    thread.join(40)
    assert not thread.is_alive()
pids = [job.pid for job in jobs]
del jobs, threads
import gc; gc.collect()
assert [file.tell() for file in files] == [3] * 100
for pid in pids:
    try: os.kill(pid, 9)
    except ProcessLookupError: pass
print(*sorted(set(failed)))
"""


# A write that begins later finds a closed stream.
@pytest.mark.parametrize(
    ("when", "errors"), [("before", [errno.EBADF, errno.EPIPE]), ("meanwhile", [errno.EBADF])]
)
def test_queue_descriptors_closed_and_replaced(
    when: str, errors: list[int], tmp_path: Path
) -> None:
    """Daemons close all descriptors. Files opened at these numbers stay untouched."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    output = run_script("import errno\n" + TAKEN, str(theirs), when)
    assert output.split() == [str(error) for error in errors]
    assert theirs.read_text() == "theirs"


def test_failed_search_for_leftovers_is_reported() -> None:
    line = sf.sh("sleep 1000 >/dev/null 2>&1 & echo $!; read x")
    job = sf.start_sync(line, stdin="stream", tree="group")
    left = int(wait_for_output(job, "\n").text)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        job.write("\n")
        # job.wait() needs a free descriptor, so the test polls the core.
        eventually(lambda: job._core.result() is not None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    result = job.result()
    # Without /proc, the library kills the process group of the program.
    assert eventually(lambda: not is_alive(left))
    assert (result.leftovers_unknown, result.leftovers) == (True, [])
    assert not sf.run(["true"]).leftovers_unknown


def test_read_releases_the_gil() -> None:
    """Reading a spill file from a slow disk must not block all threads."""
    with sf.start_sync(["sleep", "1000"], window=100, grace=0) as job:
        assert_releases_the_gil(job.read)


def test_run_on_a_small_stack() -> None:
    """run() uses the calling thread's stack, which may be small."""
    script = """
        import threading
        threading.stack_size(64 << 10)
        thread = threading.Thread(target=sf.run, args=(["true"],))
        thread.start()
        thread.join()
    """
    run_script(script)
