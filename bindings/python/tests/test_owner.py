# SPDX-License-Identifier: MIT OR Apache-2.0
"""By default no program outlives its owner, whichever call started it and however the owner ends.

The owner and all processes of its tree have the write end of one pipe as standard error. So the
test reads end of file once all of them have ended.
"""

from __future__ import annotations

import pytest
from conftest import FULL
from subprocess_support import run_script

# The script forks owners. Its arguments: the call, the ways in which owners end, the number of
# rounds, and optionally a tier that finds daemons. With a tier, the program starts a daemon. `go`
# delivers a byte once the program has started.
OWNERS = """
import asyncio, signal, threading

STUBBORN = "trap '' HUP INT TERM; setsid sleep 1000 & sleep 1000 & echo started >&2; wait"
# This one has a descendant that has left the session and lost its parent.
DAEMONISES = "(setsid sleep 1000 >/dev/null &); " + STUBBORN
# SIGTERM ends this one. Its child in another session then has no parent.
ENDS_AT_SIGTERM = "setsid sleep 1000 & echo started >&2; while :; do sleep 1; done"
call, ends, rounds, tier = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), sys.argv[4:]
argv = ["sh", "-c", DAEMONISES if tier else STUBBORN]
program = {"stderr": 2, "grace": 0.001}
if tier:
    program["tree"] = tier[0]
# In these calls, the owner sends the signal to itself, so the signal follows the call.
signals_itself = call in ("run_async_cancelled", "run_async_timed_out", "start")

class Crash(Exception):
    pass

def end(how):
    "Ends the process, or waits for the signal."
    if how == "exception":
        raise Crash
    if how == "abort":
        os.abort()
    if how == "_exit":
        os._exit(0)
    while how.startswith("SIG"):
        signal.pause()
    # The owner returns from its main function.

def status_after(how):
    if how.startswith("SIG"):
        return -getattr(signal, how)
    return {"abort": -signal.SIGABRT, "exception": 1}.get(how, 0)

def wait_for_start():
    assert os.read(go, 1)

def run(how):
    "The first thread is in the call."
    def end_later():
        wait_for_start()
        end(how)
    if not how.startswith("SIG"):
        threading.Thread(target=end_later, daemon=True).start()
    sf.run(argv, **program)

def run_in_a_thread(how):
    threading.Thread(target=sf.run, args=(argv,), kwargs=program, daemon=True).start()
    wait_for_start()
    end(how)

def start_sync(how):
    job = sf.start_sync(argv, **program)
    wait_for_start()
    end(how)

def awaits(main):
    def call(how):
        asyncio.run(main(how))
    return call

async def until_started():
    await asyncio.to_thread(wait_for_start)

async def end_in_loop(how):
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        await asyncio.sleep(1000)  # SIGINT cancels this task
    end(how)

@awaits
async def run_async(how):
    task = asyncio.create_task(sf.run_async(argv, **program))
    if how.startswith("SIG"):
        await task
    await until_started()
    end(how)

@awaits
async def run_async_cancelled(how):
    task = asyncio.create_task(sf.run_async(argv, **program))
    await until_started()
    task.cancel()
    await asyncio.sleep(0)
    await end_in_loop(how)

@awaits
async def run_async_timed_out(how):
    try:
        await asyncio.wait_for(sf.run_async(argv, **program), 0.02)
    except (TimeoutError, asyncio.TimeoutError):  # Python 3.10 has two classes
        pass
    os.write(2, b"started")  # on a busy machine, the program may have ended before it printed this
    await until_started()
    await end_in_loop(how)

@awaits
async def start(how):
    job = await sf.start(argv, **program)
    await until_started()
    await end_in_loop(how)

for how in ends:
    for round in range(rounds):
        if not tier:
            argv[2] = [STUBBORN, ENDS_AT_SIGTERM][round % 2]
        output, stderr = os.pipe()
        go, started = os.pipe()
        owner = os.fork()
        if owner == 0:
            os.dup2(stderr, 2)
            os.close(stderr), os.close(output), os.close(started)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            import resource
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            globals()[call](how)
            sys.exit()
        os.close(stderr), os.close(go)
        text = b""
        while b"started" not in text:
            text += os.read(output, 100) or sys.exit(f"{how}: the owner ended early: {text}")
        if how.startswith("SIG") and not signals_itself:
            os.kill(owner, getattr(signal, how))
        else:
            os.write(started, b"x")
        while read := os.read(output, 1 << 16):
            text += read
        status = os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1])
        if status != status_after(how):
            sys.exit(f"{how}: the owner ended with {status}: {text}")
        os.close(output), os.close(started)
"""

SIGNALS = ["SIGINT", "SIGTERM", "SIGKILL"]
ALL = [*SIGNALS, "return", "exception", "abort", "_exit"]
ENDS = {
    # Only another thread, or a signal, can end a process whose first thread is in run().
    "run": [*SIGNALS, "abort", "_exit"],
    "run_in_a_thread": ALL,
    "start_sync": ALL,
    "run_async": ALL,
    "run_async_cancelled": ALL,
    "run_async_timed_out": ALL,
    "start": ALL,
}


# 200 rounds of each end take minutes on a busy machine.
TIMEOUT = 1200 if FULL else 120
pytestmark = pytest.mark.timeout(TIMEOUT)


def assert_nothing_is_left(call: str, *tier: str) -> None:
    rounds = "200" if FULL else "10"
    run_script(OWNERS, call, ",".join(ENDS[call]), rounds, *tier, timeout=TIMEOUT)


@pytest.mark.parametrize("call", ENDS)
def test_nothing_outlives_its_owner(call: str) -> None:
    assert_nothing_is_left(call)


@pytest.mark.parametrize("call", ["run", "start_sync", "run_async_cancelled"])
def test_a_daemon_ends_with_its_owner(call: str) -> None:
    assert_nothing_is_left(call, "subreaper")


# A supervisor, such as that of a Ray worker, kills the children of the owner, and then the owner.
SUPERVISED = """
import signal

tiers = sys.argv[1:]
output, stderr = os.pipe()
owner = os.fork()
if owner == 0:
    os.dup2(stderr, 2)
    os.close(stderr), os.close(output)
    argv = ["sh", "-c", "sleep 1000 & sleep 1000 & echo started >&2; wait"]
    jobs = [sf.start_sync(argv, stderr=2, tree=tier) for tier in tiers]
    os.write(2, b"started")
    while True:
        signal.pause()
os.close(stderr)
text = b""
while text.count(b"started") < len(tiers) + 1:
    text += os.read(output, 100) or sys.exit(f"the owner ended early: {text}")
for task in os.listdir(f"/proc/{owner}/task"):
    with open(f"/proc/{owner}/task/{task}/children") as children:
        for child in children.read().split():
            os.kill(int(child), signal.SIGKILL)
os.kill(owner, signal.SIGKILL)
while os.read(output, 1 << 16):
    pass
os.waitpid(owner, 0)
os.close(output)
"""


@pytest.mark.parametrize("tiers", [["guard"], ["subreaper"], ["guard", "subreaper"]])
def test_nothing_outlives_an_owner_whose_children_are_killed(tiers: list[str]) -> None:
    for _ in range(20 if FULL else 3):
        run_script(SUPERVISED, *tiers, timeout=TIMEOUT)
