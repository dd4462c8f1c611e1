# SPDX-License-Identifier: MIT OR Apache-2.0
"""spawn() and Child."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import signal
import subprocess
import threading
import time
from functools import partial
from typing import Any

import pytest
import spawnfd as sf
from conftest import children, descriptors
from patience import eventually, in_background
from subprocess_support import run_script


def test_wait_and_returncode() -> None:
    child = sf.spawn(["sh", "-c", "exit 7"])
    assert child.returncode is None
    assert child.cpu is None
    assert child.wait() == 7
    assert (child.returncode, child.poll(), child.wait(0)) == (7, 7, 7)
    assert child.cpu is not None
    assert (child.max_rss or 0) > 0
    assert repr(child) == f"<spawnfd.Child {child.pid} ended: 7>"


def test_wait_timeout_leaves_the_child_running() -> None:
    child = sf.spawn(["sleep", "60"])
    start = time.monotonic()
    assert child.wait(0.1) is None
    assert child.wait(0) is None
    assert child.poll() is None
    assert 0.1 <= time.monotonic() - start < 30
    assert "running" in repr(child)
    child.terminate()
    assert child.wait() == -signal.SIGTERM


def test_wait_opens_no_descriptor() -> None:
    child = sf.spawn(["sleep", "60"])
    before = descriptors()
    assert child.wait(0.01) is None
    assert descriptors() == before
    child.kill()
    assert child.wait() == -signal.SIGKILL


STDIN_CLOSED = """
import asyncio

async def main():
    child = sf.spawn(["sleep", "60"])
    os.close(0)
    waiting = asyncio.ensure_future(child.wait_async())
    await asyncio.sleep(0.1)
    assert not os.path.lexists("/proc/self/fd/0")
    process = await sf.asyncio.create_subprocess_exec("sleep", "60", stdin=-3)
    assert not os.path.lexists("/proc/self/fd/0")
    process.kill()
    child.kill()
    print(await process.wait(), await waiting)

asyncio.run(main())
"""


def test_wait_does_not_use_a_closed_standard_stream() -> None:
    """The descriptor that the library waits on must not get the number of a closed stdin."""
    assert run_script(STDIN_CLOSED) == "-9 -9\n"


def test_replacing_the_pidfd_during_wait_is_ebadf() -> None:
    """The pipe that replaces the pidfd never becomes readable, so nothing wakes the waiter."""
    child = sf.spawn(["sleep", "60"])
    reader, writer = os.pipe()
    number = child.pidfd

    def take() -> None:
        os.dup2(reader, number, inheritable=False)
        os.kill(child.pid, signal.SIGKILL)

    taking = threading.Timer(0.3, take)
    taking.start()
    with pytest.raises(OSError, match="closed or replaced descriptor") as caught:
        child.wait(40)
    assert caught.value.errno == errno.EBADF
    taking.join()
    assert os.waitpid(child.pid, 0)[1] == signal.SIGKILL
    for fd in reader, writer, number:
        os.close(fd)


def test_signals() -> None:
    child = sf.spawn(["sleep", "60"])
    child.send_signal(signal.SIGKILL)
    assert child.wait(10) == -9
    child.kill()
    other = sf.spawn(["sleep", "60"])
    with pytest.raises(ValueError, match="signal"):
        other.send_signal(1 << 40)
    with pytest.raises(sf.SpawnError) as caught:
        other.send_signal(1000)
    assert (caught.value.errno, caught.value.stage) == (22, "validate")
    assert isinstance(caught.value, ValueError)
    other.kill()
    other.wait()


def test_pidfd_replaced_by_another_childs_is_ebadf() -> None:
    """A host may close all descriptors, and then start other programs."""
    lost, other = sf.spawn(["sleep", "60"]), sf.spawn(["sleep", "60"])
    number, pid = lost.fileno(), lost.pid
    if os.fstat(number).st_ino == os.fstat(other.fileno()).st_ino:
        for child in (lost, other):
            child.kill()
            child.wait()
        pytest.skip("all pidfds are one inode, before Linux 6.9")
    os.dup2(other.fileno(), number, inheritable=False)
    for use in (lost.kill, lost.poll, partial(lost.wait, 0)):
        with pytest.raises(sf.SpawnError) as caught:
            use()
        assert (caught.value.errno, caught.value.stage) == (errno.EBADF, "wait")
    assert other.wait(0) is None
    del lost, use, caught
    gc.collect()
    assert other.wait(0) is None
    # The library has left this number to the application.
    os.close(number)
    other.kill()
    assert other.wait(20) == -signal.SIGKILL
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("what", ["file", "pidfd"])
def test_descriptor_that_replaced_the_pidfd_is_left_alone(what: str, ended: bool) -> None:
    """The library neither waits for nor closes a file, or the pidfd of a reaped process."""
    with sf.spawn(["sh", "-c", "exit 3"]) as other:
        taken = os.open(os.devnull, os.O_RDONLY) if what == "file" else os.dup(other.fileno())
    lost = sf.spawn(["true"] if ended else ["sleep", "60"])
    number, pid = lost.fileno(), lost.pid
    is_distinguishable = os.fstat(number).st_ino != os.fstat(taken).st_ino
    if ended or not is_distinguishable:
        lost.kill()
        lost.wait(20)
    if not is_distinguishable:
        os.close(taken)
        pytest.skip("all pidfds are one inode, before Linux 6.9")
    os.dup2(taken, number, inheritable=False)
    if not ended:
        for use in (lost.kill, lost.poll, partial(lost.wait, 0)):
            with pytest.raises(sf.SpawnError) as caught:
                use()
            assert (caught.value.errno, caught.value.stage) == (errno.EBADF, "wait")
        del use, caught
    del lost
    gc.collect()
    assert os.path.samestat(os.fstat(number), os.fstat(taken))
    os.close(number)
    os.close(taken)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


CLOSED_ALL = """
import gc
# wait() uses a second descriptor.
child = sf.spawn(["sh", "-c", "sleep 0.1"])
assert child.wait(20) == 0
os.closerange(3, 64)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
del child
gc.collect()
for file in files:
    os.fstat(file)
"""


def test_files_opened_after_closing_all_descriptors_stay_open() -> None:
    run_script(CLOSED_ALL)


def test_pidfd() -> None:
    with sf.spawn(["cat"], stdin="pipe") as child:
        assert child.fileno() == child.pidfd
        assert not os.get_inheritable(child.pidfd)
        poll = select.poll()
        poll.register(child, select.POLLIN)
        assert poll.poll(0) == []
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        assert poll.poll(10_000) == [(child.pidfd, select.POLLIN)]
    assert child.returncode == -9


def test_pipes() -> None:
    with sf.spawn(["tr", "a-z", "A-Z"], stdin="pipe", stdout="pipe") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is None
        child.stdin.write(b"words")
        child.stdin.close()
        assert child.stdout.read() == b"WORDS"
    assert child.returncode == 0
    merged = sf.spawn(sf.sh("echo a; echo b >&2"), stdout="pipe", stderr="merge")
    with merged as child:
        assert child.stdout is not None
        assert child.stdout.readall() == b"a\nb\n"


def test_streams_by_descriptor() -> None:
    read, write = os.pipe()
    try:
        child = sf.spawn(["echo", "x"], stdin="null", stdout=write, stderr="inherit")
        assert child.wait() == 0
        assert os.read(read, 10) == b"x\n"
    finally:
        os.close(read)
        os.close(write)


def test_dropped_child_is_reaped_when_it_ends() -> None:
    reader, writer = os.pipe()
    child = sf.spawn(["cat"], stdin=reader)
    os.close(reader)
    pid = child.pid
    del child
    gc.collect()
    assert pid in children()
    os.close(writer)
    assert eventually(lambda: pid not in children())


def test_status_reaped_by_the_host() -> None:
    child = sf.spawn(["sh", "-c", "exit 7"])
    os.waitpid(child.pid, 0)
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15):
        # From Linux 6.15 on, the pidfd has the status of the reaped child.
        assert child.wait() == 7
        return
    with pytest.raises(ChildProcessError) as caught:
        child.wait()
    assert isinstance(caught.value, sf.SpawnError)
    assert caught.value.stage == "wait"


def test_child_has_no_constructor() -> None:
    with pytest.raises(TypeError, match="spawn"):
        sf.Child()


async def test_several_async_waiters() -> None:
    child = sf.spawn(["cat"], stdin="pipe")
    assert child.stdin is not None
    waits = [asyncio.create_task(child.wait_async()) for _ in range(3)]
    assert await child.wait_async(0.05) is None
    child.stdin.close()
    assert await asyncio.gather(*waits) == [0, 0, 0]
    assert await child.wait_async() == 0
    async with sf.spawn(["cat"], stdin="pipe") as other:
        assert await other.wait_async(timeout=0.05) is None
    assert other.returncode == 0


async def test_cancelled_wait_leaves_the_child_running() -> None:
    child = sf.spawn(["sleep", "60"])
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(child.wait_async(), 0.05)
    assert child.poll() is None
    child.kill()
    assert await child.wait_async() == -9


def test_several_threads_wait() -> None:
    child = sf.spawn(["sleep", "60"])
    codes: list[int | None] = []
    with in_background(*[lambda: codes.append(child.wait())] * 4):
        assert child.poll() is None
        child.kill()
    assert codes == [-9] * 4


def test_constants_of_subprocess() -> None:
    pipe, null, merged = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
    line = sf.sh("cat; echo out; echo err >&2")
    with sf.spawn(line, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(b"x")
        child.stdin.close()
        assert (child.stdout.read(), child.stderr.read()) == (b"xout\n", b"err\n")
    with sf.spawn(line, stdin=null, stdout=pipe, stderr=merged) as child:
        assert child.stdout is not None
        assert (child.stdout.read(), child.stderr) == (b"out\nerr\n", None)
    with sf.spawn(line, stdin=null, stdout=null, stderr=null) as child:
        assert (child.stdin, child.stdout, child.stderr) == (None, None, None)
        assert child.wait() == 0
    for name in ("stdin", "stdout"):
        with pytest.raises(ValueError, match=rf"{name}: .*, got subprocess\.STDOUT$"):
            sf.spawn(["true"], **{name: merged})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected", "message"),
    [
        ({"stdin": -4}, ValueError, "stdin: .* got -4; .*pipe"),
        ({"stdout": "separate"}, ValueError, "stdout"),
        ({"stdout": "merge"}, ValueError, "stdout"),
        ({"stdin": object()}, TypeError, "stdin: .*pipe"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], expected: type[Exception], message: str) -> None:
    with pytest.raises(expected, match=message):
        sf.spawn(["true"], **options)


def test_closed_descriptor_is_ebadf() -> None:
    with pytest.raises(sf.SpawnError) as caught:
        sf.spawn(["true"], stdout=900)
    assert (caught.value.errno, caught.value.stage) == (9, "stdout")
