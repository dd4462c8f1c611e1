# SPDX-License-Identifier: MIT OR Apache-2.0
"""A program in a parked Node.js has the same outcome as in a Node.js that is started cold."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import resource
import shutil
import signal
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import spawnfd as sf
from calls import Call, CannotPark, Parked, Result, Running, cold, refusal
from cases import ABOUT, CASES, STATE, Case
from spawnfd.actions import Descriptor, Limit, SignalMask
from versions import major_version

ENVIRONMENT = {"PATH": os.defpath, "HOME": "/nonexistent", "LANG": "C.UTF-8", "X": "value"}
each_mode = pytest.mark.parametrize("fork", [False, True], ids=["reserve", "fork"])


# Versions before this one park only before their first line of JavaScript, and only in mode reserve.
PARKS_LATE = 20
NO_JAVASCRIPT = "no access to Node's JavaScript"


def parks_late(node: str) -> bool:
    return major_version(node) >= PARKS_LATE


def park(
    node: str, flags: Sequence[str], env: Mapping[str, str] = ENVIRONMENT, fork: bool = False
) -> Parked:
    if not fork or parks_late(node):
        return Parked([node, *flags], env, fork=fork)
    with pytest.raises(CannotPark, match=NO_JAVASCRIPT):
        Parked([node, *flags], env, fork=True)
    pytest.skip(f"no mode fork before Node.js {PARKS_LATE}")


def run_once(node: str, call: Call, fork: bool = False, flag: str = "-e") -> Result:
    """Runs a program from a process that is parked for it."""
    with park(node, [flag], call.env, fork) as parked:
        return parked.run(call)


def of_code(node: str, code: str, flag: str = "-e", **options: object) -> Call:
    return Call([node, flag, code], ENVIRONMENT, **options)  # type: ignore[arg-type]


def write(case: Case, directory: Path) -> None:
    for name, text in case.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def text(output: bytes) -> str:
    """Returns the output, without values that differ in each run."""
    known = output.decode(errors="replace")
    known = re.sub(r"\(node:\d+\)", "(node:PID)", known)
    return re.sub(r"duration_ms:? [\d.]+", "duration_ms N", known)


def has_races(case: Case) -> bool:
    """Whether threads of the program write concurrently, so that the order of lines may differ."""
    return case.name.endswith(("other modules", "workers", "a worker"))


def assert_same(cold: Result, warm: Result, in_order: bool = True) -> None:
    order = list if in_order else sorted
    assert order(text(warm.stdout).split("\n")) == order(text(cold.stdout).split("\n"))
    assert text(warm.stderr) == text(cold.stderr)
    assert warm.code == cold.code


@pytest.fixture(scope="session")
def forking(node: str) -> Iterator[Callable[..., Parked]]:
    """Returns a parked Node.js that forks, for these flags and environment. All tests share them."""
    kept: dict[tuple[object, ...], Parked] = {}

    def get(flags: Sequence[str], env: Mapping[str, str] = ENVIRONMENT) -> Parked:
        key = (*flags, *env.items())
        if key not in kept:
            kept[key] = park(node, flags, env, fork=True)
        return kept[key]

    yield get
    for parked in kept.values():
        parked.close()


def without_known_differences(ran: Result) -> list[str]:
    """Returns the output without the differences that docs/warm-differences.md lists.

    These are descriptor numbers, the order of modules, and threads.
    """
    out = re.sub(r"^files \[.*?^next \d+$", "", text(ran.stdout), flags=re.M | re.S)
    out = re.sub(r"'moduleLoadList',\s*\[.*?\]", "", out, flags=re.S)
    out = re.sub(r"^threads \[.*?\]$", "", out, flags=re.M | re.S)
    out = re.sub(r"FDSize:\\t\d+", "", out)
    return [*out.split("\n"), *text(ran.stderr).split("\n"), str(ran.code)]


def assert_same_but_known(case: Case, cold: Result, warm: Result) -> None:
    order = sorted if has_races(case) else list
    assert order(without_known_differences(warm)) == order(without_known_differences(cold))


LOADS_MODULES = ("-r", "--require", "--import", "--loader", "--experimental-loader")


def parks_early(node: str, case: Case) -> bool:
    return not parks_late(node) or any(flag.startswith(LOADS_MODULES) for flag in case.flags)


def compare(
    parking: Callable[..., Parked], case: Case, node: str, directory: Path
) -> tuple[Result, Result]:
    """Returns the results of a case, cold and warm."""
    write(case, directory)
    env = {**ENVIRONMENT, **case.env}
    call = Call([node, *case.argv[1:]], env, cwd=str(directory), stdin=case.data)
    parked = parking(case.flags)
    if parked.explain(call) == "cold: variable":
        parked = parking(case.flags, env)
    return cold(call), parked.run(call)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_has_the_same_outcome_warm(case: Case, node: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:

        def parking(flags: Sequence[str], env: Mapping[str, str] = ENVIRONMENT) -> Parked:
            return stack.enter_context(park(node, flags, env))

        cold, warm = compare(parking, case, node, tmp_path)
    if parks_early(node, case):
        assert_same(cold, warm, in_order=not has_races(case))
    else:
        assert_same_but_known(case, cold, warm)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_has_the_same_outcome_forked(
    case: Case, node: str, forking: Callable[..., Parked], tmp_path: Path
) -> None:
    if parks_late(node) and parks_early(node, case):
        with pytest.raises(CannotPark, match="module"):
            park(node, case.flags, {**ENVIRONMENT, **case.env}, fork=True)
        return
    assert_same_but_known(case, *compare(forking, case, node, tmp_path))


def test_forks_have_different_random_numbers(node: str, forking: Callable[..., Parked]) -> None:
    call = of_code(node, "[Math.random(), crypto.randomUUID(), process.pid].join()", "-p")
    drawn = [number for _ in range(20) for number in forking(["-p"]).run(call).stdout.split(b",")]
    assert len(drawn) == 60
    assert len(set(drawn)) == 60


def test_fork_has_its_own_pid(node: str, forking: Callable[..., Parked]) -> None:
    code = "[process.pid, require('fs').readlinkSync('/proc/self'), process.ppid].join()"
    running = forking(["-p"]).start(of_code(node, code, "-p"))
    pid = running.child.pid
    assert running.finish().stdout == f"{pid},{pid},{os.getpid()}\n".encode()


# This program uses V8's threads for garbage collection and compilation, and libuv's thread pool.
BUSY = """
const all = []; let sum = 0;
for (let i = 0; i < 3e6; i++) {
  all.push({ i, s: 'x' + i });
  if (i % 7) all[i - 1 - i % 5] = null;
  sum += Math.sqrt(i);
}
const { pbkdf2 } = require('crypto');
let left = 8;
for (let i = 0; i < 8; i++) pbkdf2('a', 'b' + i, 20000, 32, 'sha256', () => {
  if (!--left) console.log('done', sum > 0, all.length);
});
WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))
  .then((module) => console.log(module instanceof WebAssembly.Module));
"""


def test_fork_with_a_large_heap(node: str) -> None:
    ran = run_once(node, of_code(node, BUSY), fork=True)
    assert ran.stderr == b""
    assert sorted(ran.stdout.split(b"\n")) == [b"", b"done true 3000000", b"true"]
    assert ran.code == 0


@each_mode
def test_threads_are_created_on_demand(node: str, fork: bool) -> None:
    code = (
        "const count = () => require('fs').readdirSync('/proc/self/task').length;"
        "const before = count(); WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))"
        ".then((module) => console.log(before, module instanceof WebAssembly.Module, count()))"
    )
    call = of_code(node, code)
    warm = run_once(node, call, fork)
    assert warm.stderr == b""
    before, compiled, after = warm.stdout.split()
    assert compiled == b"true"
    assert after == cold(call).stdout.split()[2]
    # V8 may have needed its threads already.
    assert before in (b"1", after)


@each_mode
def test_standard_streams_are_created_by_the_program(node: str, fork: bool) -> None:
    """While Node.js prepares to park, it writes to the console with other descriptors open."""
    code = (
        "console.log([process.stdin, process.stdout, process.stderr]"
        ".map((stream) => [stream.constructor.name, stream._type, stream.fd]))"
    )
    call = of_code(node, code)
    assert_same(cold(call), run_once(node, call, fork))


@each_mode
def test_sigusr1_opens_the_inspector(node: str, fork: bool) -> None:
    """A thread of Node.js handles SIGUSR1, and opens the inspector."""
    code = (
        "const { url } = require('inspector'); process.debugPort = 0;"
        "process.kill(process.pid, 'SIGUSR1');"
        "const timer = setInterval(() => { if (url()) { clearInterval(timer);"
        " console.log('open'); process.exit(); } }, 5)"
    )
    warm = run_once(node, of_code(node, code), fork)
    assert (warm.stdout, warm.code) == (b"open\n", 0)


@each_mode
def test_exit_waits_for_pending_work(node: str, fork: bool) -> None:
    """A process that has used the thread pool still runs its pending callbacks at exit."""
    code = (
        "const { readFile } = require('fs');"
        "process.on('exit', (code) => console.log('exit', code));"
        "readFile('/proc/self/stat', () => { process.exitCode = 3; console.log('read'); })"
    )
    warm = run_once(node, of_code(node, code), fork)
    assert (warm.stdout, warm.stderr, warm.code) == (b"read\nexit 3\n", b"", 3)


def test_concurrent_forks(node: str) -> None:
    code = (
        "const { readFile } = require('fs');"
        "setTimeout(() => readFile('/proc/self/stat', (e, d) => console.log(d + '')), 20)"
    )
    with park(node, ["-e"], fork=True) as parked:
        running = [parked.start(of_code(node, code)) for _ in range(24)]
        # The process that forked the programs ends first.
    for each in running:
        pid = each.child.pid
        ran = each.finish()
        assert ran.stdout.split()[0] == str(pid).encode()
        assert (ran.stderr, ran.code) == (b"", 0)


def test_signals_reach_one_fork_only(node: str, forking: Callable[..., Parked]) -> None:
    """Each fork has its own pipe for libuv's signal handling."""
    code = (
        "process.on('SIGUSR2', () => { console.log('got'); setTimeout(process.exit, 30); });"
        "console.log('ready'); setInterval(() => {}, 1000)"
    )
    running = [forking(["-e"]).start(of_code(node, code)) for _ in range(2)]
    for each in running:
        assert os.read(each.ends[1], 100) == b"ready\n"
    for each in running:
        each.child.send_signal(signal.SIGUSR2)
        assert each.finish().stdout == b"got\n"


def test_time_before_a_fork_does_not_count(node: str) -> None:
    begun = time.monotonic()
    code = "performance.timeOrigin / 1000 + ' ' + performance.now() + ' ' + process.uptime()"
    with park(node, ["-p"], fork=True) as parked:
        # This wait is longer than the preparation of Node.js took.
        waited = 1 + time.monotonic() - begun
        time.sleep(waited)
        before = time.time()
        ran = parked.run(of_code(node, code, "-p"))
    origin, now, uptime = map(float, ran.stdout.split())
    # For the program, Node.js seems to have started at the time of the fork, minus the time of
    # preparation.
    assert origin > before - waited + 0.1
    assert now < (waited - 0.1 + time.time() - before) * 1000
    assert uptime < waited - 0.1 + time.time() - before


def test_time_spent_parked_does_not_count(node: str) -> None:
    before = time.time()
    with park(node, ["-p"]) as parked:
        time.sleep(0.5)
        ran = parked.run(of_code(node, "performance.timeOrigin / 1000", "-p"))
    assert float(ran.stdout) >= before + 0.5
    begun = time.monotonic()
    with park(node, ["-p"]) as parked:
        began = time.monotonic()
        # This wait is longer than the preparation took. The apparent start of Node.js is the first
        # use, minus the time of preparation.
        time.sleep(1 + began - begun)
        code = "[performance.now() / 1000, process.uptime(), performance.nodeTiming.nodeStart / 1000]"
        now = "Number(process.hrtime.bigint()) / 1e9"
        ran = parked.run(of_code(node, f"{code}.map((n) => {now} - n).join(' ')", "-p"))
    # Each number is the apparent start of Node.js by one clock, converted to CLOCK_MONOTONIC.
    for start in ran.stdout.split():
        assert float(start) >= began + 0.9


def test_timers_do_not_fire_early(node: str) -> None:
    code = (
        "const now = process.hrtime.bigint, b = now();"
        "setTimeout(() => console.log(now() - b >= 499000000n), 500)"
    )
    with park(node, ["-e"]) as parked:
        time.sleep(1)
        assert parked.run(of_code(node, code)).stdout == b"true\n"


def test_other_name_starts_cold(node: str) -> None:
    call = of_code(node, "1 + 1", "-p")
    with park(node, ["-p"]) as parked:
        other = Call(["other", *call.argv[1:]], call.env, executable=node)
        assert parked.run_cold(other, "arguments").stdout == b"2\n"


def test_descriptor_beyond_the_standard_streams_starts_cold(node: str) -> None:
    """Node's event loops use these numbers. The parked process refuses the request."""
    with park(node, ["-e"]) as parked, open("/dev/null") as null:
        code = "console.log(require('fs').readlinkSync('/proc/self/fd/3'))"
        call = of_code(node, code, actions=[Descriptor(null.fileno(), 3)])
        result = Running(call, parked.warm).finish()
        assert result.stdout == b"/dev/null\n"
        # If the process refuses only after it was told to go, the reason is "context".
        assert result.started in ("cold: refused", "cold: context")
        assert parked.run(of_code(node, "console.log(1)")).stdout == b"1\n"


@pytest.mark.parametrize(
    ("why", "flags", "env"),
    [
        *(
            ("unsupported Node.js flag", [flag], {})
            for flag in ("--inspect", "--env-file=x", "--title=x", "s.js", "--", "--test", "--permission")
        ),
        ("too many flags", ["--no-warnings"] * 70, {}),
        ("NODE_OPTIONS", [], {"NODE_OPTIONS": "--inspect=0"}),
        ("NODE_OPTIONS", [], {"NODE_OPTIONS": "--no-warnings --title=x"}),
        ("a relative path", [], {"NODE_COMPILE_CACHE": "spawnfd-nowhere"}),
    ],
    ids=lambda one: str(one)[:40],
)
def test_node_reports_why_it_does_not_park(
    node: str, why: str, flags: list[str], env: dict[str, str]
) -> None:
    assert refusal([node, *flags], {**ENVIRONMENT, **env}) == why
    assert not Path("/spawnfd-nowhere").exists()


def test_node_that_cannot_load_a_module_ahead_does_not_park(node: str) -> None:
    env = {**ENVIRONMENT, "NODE_V8_COVERAGE": "/dev/null/nowhere"}
    coverage, flag = "NODE_V8_COVERAGE", "no module can be loaded before parking"
    if not parks_late(node):
        coverage = flag = NO_JAVASCRIPT
    assert refusal([node], env, preimport=["fs"]) == coverage
    assert refusal([node, "-r", "fs"], ENVIRONMENT, preimport=["fs"]) == flag


def test_variables_read_before_parking_must_be_equal(node: str) -> None:
    read = ["NODE_OPTIONS", "NODE_EXTRA_CA_CERTS", "LANG", "OPENSSL_CONF"]
    if parks_late(node):
        read += ["NODE_V8_COVERAGE", "NODE_PATH", "NODE_CHANNEL_FD", "HOME"]
    call = of_code(node, "")
    with park(node, ["-e"]) as parked:
        for name in read:
            assert parked.explain(call, **{name: "/other"}) == "cold: variable", name
        for name in ("TZ", "PATH", "TERM", "X"):
            assert parked.explain(call, **{name: "/other"}) == "reserve", name


def test_changed_file_makes_the_next_start_cold(node: str, tmp_path: Path) -> None:
    file = tmp_path / "openssl.cnf"
    file.touch()
    call = Call([node, "-e", ""], {**ENVIRONMENT, "OPENSSL_CONF": str(file)})
    with Parked([node, "-e"], call.env, delay=600) as parked:
        file.touch()
        parked.run_cold(call, "stale")


def test_node_options_are_applied(node: str) -> None:
    env = {**ENVIRONMENT, "NODE_OPTIONS": "--no-deprecation --stack-trace-limit=3"}
    code = "[process.execArgv, process.noDeprecation, Error.stackTraceLimit]"
    call = Call([node, "-p", code], env)
    assert_same(cold(call), run_once(node, call, flag="-p"))


def test_preloaded_modules(node: str) -> None:
    if not parks_late(node):
        pytest.skip(f"no preimport before Node.js {PARKS_LATE}")
    code = (
        "console.log(process.moduleLoadList.includes('NativeModule zlib'), Math.max(...[1, 2]),"
        "process.env.SPAWNFD_PRELOAD, require('zlib').gzipSync('a').length,"
        "process.argv, process.cwd())"
    )
    with Parked([node, "-e"], ENVIRONMENT, preimport=["http", "node:zlib"]) as parked:
        ran = parked.run(Call([node, "-e", code, "x"], ENVIRONMENT))
    assert ran.stderr == b""
    assert ran.stdout.startswith(b"true 2 undefined 21 ")
    assert ran.stdout.endswith(b"'x' ] /\n")


def test_only_builtin_modules_can_be_preloaded(node: str) -> None:
    with pytest.raises(CannotPark):
        Parked([node, "-e"], ENVIRONMENT, preimport=["lodash"])


def test_other_program_is_not_parked_as_node(tmp_path: Path) -> None:
    with pytest.raises(CannotPark, match="not parked"):
        park(shutil.copy("/bin/cat", tmp_path / "node"), [])


def test_signals_and_limits_of_the_start(node: str) -> None:
    """Node.js resets the dispositions of signals below 32, and raises RLIMIT_NOFILE.

    A parked one must do both for the program.
    """
    code = (
        "const read = (name) => require('fs').readFileSync('/proc/self/' + name, 'utf8');"
        "console.log(read('status').match(/^Sig[^Q].*/mg), read('limits'))"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    call = of_code(
        node,
        code,
        ignored=[signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, 40],
        actions=[SignalMask([signal.SIGUSR2, 41]), Limit(resource.RLIMIT_NOFILE, 512, hard)],
    )
    assert_same(cold(call), run_once(node, call))


@contextlib.contextmanager
def spawned(node: str, how: str, code: str, **streams: object) -> Iterator[sf.Child]:
    """Starts Node.js with these streams, cold or warm."""
    with park(node, ["-e"]) as parked:
        warm = parked.warm if how == "warm" else None
        argv = [node, "-e", code]
        with sf.spawn(argv, env=ENVIRONMENT, warm=warm, **streams) as child:  # type: ignore[call-overload]
            assert warm is None or child.started == "reserve"
            yield child


@pytest.mark.parametrize("how", ["cold", "warm"])
@pytest.mark.parametrize(
    "end", ["", "process.exit(0)", "process.kill(process.pid, 'SIGTERM'); for (;;);"]
)
def test_pipes_are_restored_to_blocking_mode(node: str, how: str, end: str) -> None:
    reading, writing = os.pipe()
    code = f"process.stdin.on('data', () => {{ process.stdin.unref(); {end} }})"
    with spawned(node, how, code, stdin=reading) as child:
        os.write(writing, b"x")
        child.wait()
    flags = fcntl.fcntl(reading, fcntl.F_GETFL)
    os.close(reading)
    os.close(writing)
    assert not flags & os.O_NONBLOCK


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_terminal_modes_are_restored(node: str, how: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    code = (
        "const { stdin, stdout, stderr } = process;"
        "console.log([stdin, stdout, stderr].map((s) => [s.isTTY, s.constructor.name]),"
        "stdout.columns); stdin.setRawMode(true); stdin.once('data', (d) => {"
        "console.log(d); process.exit(3); })"
    )
    with spawned(node, how, code, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        got = b""
        while b"[" not in got or got.count(b"\n") < 1 or b"0" not in got:
            got += os.read(ours, 4096)
        while termios.tcgetattr(theirs)[3] & termios.ICANON:
            time.sleep(0.01)
        os.write(ours, b"\x03")
        assert child.wait() == 3
    got += os.read(ours, 4096)
    after = termios.tcgetattr(theirs)
    os.close(ours)
    os.close(theirs)
    assert got.count(b"true") == 3
    assert b"<Buffer 03>" in got
    assert after == before


@pytest.mark.parametrize("number", [0, 1, 2])
def test_closed_standard_descriptors(node: str, number: int, tmp_path: Path) -> None:
    """Node.js opens /dev/null in place of a closed stream. A parked Node.js already has it open."""
    code = (
        f"require('fs').writeFileSync('out', require('fs').readlinkSync('/proc/self/fd/{number}'))"
    )
    stream = {("stdin", "stdout", "stderr")[number]: None}
    assert run_once(node, of_code(node, code, cwd=str(tmp_path), **stream)).code == 0
    assert (tmp_path / "out").read_text() == "/dev/null"


def test_state_detects_a_difference(node: str) -> None:
    one = cold(of_code(node, STATE))
    two = cold(Call([node, "-e", STATE], {**ENVIRONMENT, "X": "other"}))
    assert one.code == 0, one.stderr
    assert one.stdout != two.stdout
    assert ABOUT
