# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs start under seccomp filters that refuse single calls, or whole profiles."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from call_numbers import NUMBERS
from subprocess_support import run_script

NAMES = (
    *("get_mempolicy", "keyctl", "unshare", "kcmp", "memfd_create", "execveat", "statx"),
    *("pidfd_send_signal", "pidfd_open", "close_range", "openat2", "pidfd_getfd", "faccessat2"),
)
CALLS = {name: NUMBERS[name] for name in NAMES}

# The script's first argument has the calls that kill the caller, and the number of threads that
# wait meanwhile.
STARTS = """
import asyncio, threading
calls, threads = eval(sys.argv[1])
if calls: answer(calls.values(), 0x80000000)
waiting = threading.Event()
for _ in range(threads): threading.Thread(target=waiting.wait, daemon=True).start()
sf.install()
# asyncio of CPython 3.12 and later calls pidfd_open itself.
has_loops = "pidfd_open" not in calls or sys.version_info < (3, 12)

async def from_a_loop():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await process.communicate(b"x"), process.returncode) == ((b"x", None), 0)
    assert (await sf.run_async(["cat"], input=b"x")).stdout == b"x"
    if "pidfd_send_signal" not in calls:
        stopped = await sf.run_async(["sleep", "1000"], timeout=0.1, grace=5)
        assert (stopped.stop, stopped.leftovers) == ("timeout", []), stopped

for _ in range(2):
    done = subprocess.run(["cat"], input="x", capture_output=True, text=True, cwd="/usr")
    assert (done.stdout, done.returncode) == ("x", 0)
    assert subprocess.run(["sh", "-c", "exit 3"], start_new_session=True).returncode == 3
    assert sf.run(["cat"], input=b"x").stdout == b"x"
    assert sf.run(["sh", "-c", "exit 3"]).code == 3
    if has_loops: asyncio.run(from_a_loop())
assert (sf.stats().made, sf.stats().failed) == (6 if has_loops else 4, 0), sf.stats()
waiting.set()
"""


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(
    "calls", [*([name] for name in CALLS), ["pidfd_getfd", "kcmp", "keyctl", "get_mempolicy"]]
)
def test_programs_start_without_the_calls(calls: list[str], threads: int) -> None:
    run_script(STARTS, repr(({name: CALLS[name] for name in calls}, threads)))


@pytest.fixture(scope="session")
def confine() -> str:
    """Builds the program spawnfd-confine from this checkout, and returns its path."""
    if not (cargo := shutil.which("cargo")):
        pytest.skip("needs cargo, which builds spawnfd-confine")
    root = Path(__file__).parents[3]
    build = [cargo, "build", "--quiet", "--package=spawnfd-tests", "--bin=spawnfd-confine"]
    messages = subprocess.run(
        [*build, "--message-format=json"], cwd=root, check=True, stdout=subprocess.PIPE
    ).stdout
    built = (json.loads(line) for line in messages.splitlines())
    return next(path for message in built if (path := message.get("executable")))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("answer", ["", "=kill"])
@pytest.mark.parametrize("profile", ["docker", "podman", "system-service", "flatpak"])
def test_programs_start_under_the_profile(
    confine: str, profile: str, answer: str, threads: int
) -> None:
    prefix = [confine, "--profile", profile + answer, "--"]
    run_script(STARTS, f"({{}}, {threads})", prefix=prefix)


def test_sigsys_in_an_action() -> None:
    """spawnfd.subprocess reports a killed program, as subprocess does. run() raises an error."""
    run_script(
        """
        import errno
        from spawnfd import actions
        answer([int(sys.argv[1])], 0x80000000)
        sf.install()
        assert subprocess.run(["true"], start_new_session=True).returncode == -31
        assert subprocess.run(["true"]).returncode == 0
        for _ in range(2):
            try: sf.run(["true"], actions=[actions.Umask(0o22), actions.Setsid()])
            except sf.SpawnError as error: caught = error
            found = caught.stage, caught.action, caught.errno
            assert found == ("action", 1, errno.ECANCELED), caught
            assert "killed by SIGSYS (a seccomp filter)" in str(caught)
        """,
        str(NUMBERS["setsid"]),
    )
