# SPDX-License-Identifier: MIT OR Apache-2.0
"""The audit events. The drop-ins' events are tested in test_subprocess.py."""

from __future__ import annotations

import os
from pathlib import Path

from subprocess_support import run_script

# A hook stays until the interpreter ends.
HOOK = """
import asyncio
events = []
def hook(event, args):
    if event == "subprocess.Popen": events.append(args)
sys.addaudithook(hook)
def expect(*event):
    assert events == [event], events
    assert [type(each) for each in events[0]] == [type(each) for each in event], events
    events.clear()
"""


def test_each_way_to_start_raises_one_event() -> None:
    run_script(
        HOOK
        + """
async def start(start):
    async with start as job:
        await job.result()

def sync(job):
    with job:
        job.result()

with sf.Warm() as warm:
    warm.add("true")
    warm.fill()
    events.clear()
    path = sf.Template("true").path
    for owner, args, executable in (
        (sf, ["true"], "true"),
        (sf.TemplateCache(), ["true"], "true"),
        (sf.Template("true"), [], path),
        (sf.Template("true", warm=warm), [], path),
        (warm, ["true"], "true"),
    ):
        expected = executable, ["true", "x"], None, None
        args = [*args, "x"]
        owner.run(args)
        expect(*expected)
        asyncio.run(owner.run_async(args))
        expect(*expected)
        asyncio.run(start(owner.start(args)))
        expect(*expected)
        sync(owner.start_sync(args))
        expect(*expected)
        owner.spawn(args).wait()
        expect(*expected)
"""
    )


def test_event_has_the_types_of_subprocess() -> None:
    run_script(
        HOOK
        + """
from pathlib import Path
env, variables = sf.Env.only(["PATH"]), {"PATH": "/bin"}
for module, options in ((subprocess, {}), (sf, {"stdout": "capture"})):
    module.run(["true", "x"], cwd="/", env=variables, **options)
    expect("true", ["true", "x"], "/", variables)
    module.run(("true", "x"), cwd=Path("/"), **options)
    expect("true", ["true", "x"], Path("/"), None)
    module.run(["./true"], cwd="/bin", **options)
    expect("./true", ["./true"], "/bin", None)
sf.run([b"true", Path("x")], env=env, arg0="other")
expect("true", ["other", "x"], None, env)
root = os.open("/", os.O_PATH)
sf.run(["bin/true"], cwd=root)
expect("bin/true", ["bin/true"], root, None)
sf.run(["true"], sandbox=sf.Sandbox(["env", "A=b"]))
expect("env", ["env", "A=b", "true"], None, None)
template = sf.Template.from_fd(os.open("/bin/true", os.O_PATH))
template.run(["x"], arg0="true")
((executable, argv, cwd, env),) = events
assert argv == ["true", "x"]
assert os.path.samefile(executable, "/bin/true")
"""
    )


def test_raising_hook_prevents_the_start(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    run_script(
        HOOK
        + """
class Refused(BaseException): pass
def refuse(event, args):
    if event == "subprocess.Popen": raise refused
sys.addaudithook(refuse)
refused, limiter = Refused(), sf.Limiter(1)
argv = ["touch", sys.argv[1]]

async def start():
    async with sf.start(argv, limiter=limiter): pass

calls = [
    lambda: sf.run(argv, limiter=limiter),
    lambda: asyncio.run(sf.run_async(argv, limiter=limiter)),
    lambda: asyncio.run(start()),
    lambda: sf.start_sync(argv, limiter=limiter),
    lambda: sf.spawn(argv),
]
for call in calls:
    try: call()
    except Refused as error: assert error is refused
    else: raise SystemExit("not raised")
    assert (limiter.running, limiter.waiting) == (0, 0)
""",
        os.fspath(marker),
    )
    assert not marker.exists()


def test_repeated_start_raises_no_second_event() -> None:
    """A start is repeated if its parked process was killed before it began to start the program."""
    run_script(
        HOOK
        + """
import signal, time
from contextlib import suppress
from spawnfd import _spawnfd
begin = _spawnfd.begin

def find_parked():
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            stat = open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()
            is_child = int(stat[1]) == os.getpid()
            if is_child and os.path.samefile(f"/proc/{pid}/exe", "/bin/true"): yield int(pid)

def kill_after_begin(*arguments):
    begin(*arguments)
    for pid in parked:
        with suppress(ProcessLookupError): os.kill(pid, signal.SIGKILL)
_spawnfd.begin = kill_after_begin

# On one processor the parked process seldom runs before it is killed.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
ways = set()
with sf.Warm() as warm:
    warm.add("/bin/true", depth=1)
    end = time.monotonic() + 60
    while "cold: died" not in ways and time.monotonic() < end:
        warm.fill()
        parked = list(find_parked())
        events.clear()
        result = asyncio.run(warm.run_async(["/bin/true"]))
        assert result.ok or result.signal == signal.SIGKILL, result
        expect("/bin/true", ["/bin/true"], None, None)
        ways.add(result.started)
assert "cold: died" in ways, ways
"""
    )
