# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that SIGKILL does not end. The run ends nevertheless, and its result names them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from subprocess_support import run_script

# A set-uid interpreter runs this script, which sets all user ids to root, prints its pid, and exits
# at end of input.
BECOME_ROOT = """
import os, sys
os.setresuid(0, 0, 0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""

# The test's interpreter becomes an unprivileged user. It imports all modules first: the user may
# not be able to read them.
BECOME_USER = f"""
import asyncio, ctypes, pickle, time
asyncio.run(sf.run_async(["true"]))
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
# While the process is undumpable, /proc/self belongs to root.
PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
COMMAND = [sys.argv[1], "-I", "-S", "-c", {BECOME_ROOT!r}]
FATE = "not_permitted"
"""

# This filter makes each pidfd_send_signal() succeed without effect.
IGNORE_SIGNALS = """
import asyncio, pickle, time
PIDFD_SEND_SIGNAL, SECCOMP_RET_ERRNO = 424, 0x00050000
answer([PIDFD_SEND_SIGNAL], SECCOMP_RET_ERRNO)
COMMAND = ["/bin/sh", "-c", "echo $$; exec cat"]
FATE = "uninterruptible"
"""

CHECKS = """
class InputPipe:
    # The program reads from the pipe, and exits once the pipe is closed.
    def __enter__(self):
        self.theirs, self.ours = os.pipe()
        return self.theirs
    def __exit__(self, *_):
        os.close(self.theirs)
        os.close(self.ours)

def check(result, stop, pid=None):
    pid = pid or int(result.text)
    assert (result.stop, result.code, result.signal) == (stop, None, None), result
    assert not result.ok and not result.status_lost, result
    assert [(left.pid, left.fate) for left in result.leftovers] == [(pid, FATE)], result
    assert f" {FATE} stop={stop} " in repr(result), result
    assert os.path.exists(f"/proc/{pid}"), result
    return pid

def await_end(pid):
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
"""

BLOCKING = """
for grace in (0, 0.05):
    seconds, result = 0.3, None
    # A slow machine needs more time to print the pid.
    while result is None or not result.stdout:
        with InputPipe() as stdin:
            result = sf.run(COMMAND, stdin=stdin, timeout=seconds, grace=grace)
            if result.stdout:
                pid = check(result, "timeout")
        seconds *= 2
    await_end(pid)
    again = pickle.loads(pickle.dumps(result))
    assert (again.leftovers, again.status_lost) == (result.leftovers, False)
    assert result.drain == ("cut: ?" if FATE == "not_permitted" else f"cut: {pid}"), result
    try:
        result.check()
    except sf.ExitError as error:
        why = {"not_permitted": "not permitted", "uninterruptible": "SIGKILL had no effect"}[FATE]
        still = f"could not be killed ({why}) and still runs as process {pid}"
        assert str(error).startswith(f"{COMMAND} timed out after "), error
        assert f" s, {still}" in str(error), error
with InputPipe() as stdin:
    job = sf.start_sync(COMMAND, stdin=stdin)
    while not job.read().text:
        time.sleep(0.01)
    pid = check(job.stop(grace=0), "cancelled")
await_end(pid)
"""

AWAITING = """
async def leave_the_block():
    with InputPipe() as stdin:
        async with sf.start(COMMAND, stdin=stdin, grace=0) as job:
            while not job.read().text:
                await asyncio.sleep(0.01)
        pid = check(await job.result(), "cancelled")
    await_end(pid)

async def cancel():
    out = os.memfd_create("output")
    with InputPipe() as stdin:
        running = asyncio.ensure_future(sf.run_async(COMMAND, stdin=stdin, stdout=out, grace=0.05))
        while not (text := os.pread(out, 100, 0)):
            await asyncio.sleep(0.01)
        running.cancel()
        try:
            await running
        except asyncio.CancelledError as error:
            pid = check(error.result, "cancelled", int(text))
    await_end(pid)

asyncio.run(leave_the_block())
asyncio.run(cancel())
"""


@pytest.fixture
def set_uid() -> Iterator[str]:
    """Creates a set-uid interpreter in a directory that any user may enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory() as directory:
        if os.statvfs(directory).f_flag & os.ST_NOSUID:
            pytest.skip("the temporary directory is mounted nosuid")
        os.chmod(directory, 0o755)
        copy = Path(directory, "become-root")
        shutil.copyfile("/usr/bin/python3", copy)
        copy.chmod(0o4755)
        yield str(copy)


@pytest.mark.parametrize("code", [BLOCKING, AWAITING], ids=["blocking", "awaiting"])
def test_run_ends_if_killing_is_not_permitted(set_uid: str, code: str) -> None:
    run_script(BECOME_USER + CHECKS + code, set_uid)


@pytest.mark.parametrize("code", [BLOCKING, AWAITING], ids=["blocking", "awaiting"])
def test_run_ends_if_sigkill_has_no_effect(code: str) -> None:
    run_script(IGNORE_SIGNALS + CHECKS + code)
