# SPDX-License-Identifier: MIT OR Apache-2.0
"""A program in a parked Node.js has the same outcome as in a Node.js that is started cold."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import resource
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cases import ABOUT, CASES, STATE, Case
from owner import CannotPark, Refused, Result
from protocol import PRELOAD_VARIABLE
from runs import Parked, finish, pipes, run_cold, run_from, run_warm

ENVIRONMENT = {"PATH": os.defpath, "HOME": "/nonexistent", "LANG": "C.UTF-8", "X": "value"}


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
def forking(node: str, shim: Path) -> Iterator[Callable[..., Parked]]:
    """Returns a parked Node.js that forks, for these flags, environment and name.

    All tests share them.
    """
    kept: dict[tuple[object, ...], Parked] = {}

    def get(
        flags: Sequence[str], env: Mapping[str, str] = ENVIRONMENT, name: str = "node"
    ) -> Parked:
        key = (*flags, *env.items(), name)
        if key not in kept:
            kept[key] = Parked(node, shim, flags, env, "f", name)
        return kept[key]

    yield get
    for parked in kept.values():
        parked.discard()


def reads_stdin(case: Case) -> bool:
    """Returns whether the case reads its program from stdin: it has neither code nor a script."""
    is_code = case.flags and case.flags[-1] in ("-e", "--eval", "-p", "--print", "-pe")
    return not is_code and case.argv[len(case.flags) + 1 :][:1] in ([], ["-"])


def as_script(case: Case) -> Case:
    """Returns the case with the code from stdin put in a script."""
    first = len(case.flags) + 1
    argv = [*case.argv[:first], "stdin.js", *case.argv[first + 1 :]]
    return replace(case, argv=argv, files={**case.files, "stdin.js": case.data.decode()})


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


def parks_early(case: Case) -> bool:
    return any(flag.startswith(LOADS_MODULES) for flag in case.flags)


def compare(
    park: Callable[..., Parked], case: Case, node: str, directory: Path
) -> tuple[Result, Result]:
    """Returns the results of a case, cold and warm.

    If the parked process refuses the case, the function uses the most similar case that the process
    accepts.
    """
    env = {**ENVIRONMENT, **case.env}
    parked = park(case.flags)
    if set(case.env) & set(parked.variables):
        # The library starts a program with such variables cold.
        if not parked.forks:
            parked.discard()
        parked = park(case.flags, env)
    if not parks_early(case) and case.argv[0] != parked.name:
        with pytest.raises(Refused):
            parked.become(case.argv, env, str(directory), [], refuses=True)
        if not parked.forks:
            parked.discard()
        parked = park(case.flags, name=case.argv[0])
    if not parks_early(case) and reads_stdin(case):
        with pytest.raises(Refused):
            parked.become(case.argv, env, str(directory), [], refuses=True)
        # The parked process has refused, and waits for another request.
        case = as_script(case)
    write(case, directory)
    cold = run_cold(node, case.argv, env, str(directory), case.data)
    return cold, run_from(parked, case.argv, env, str(directory), case.data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_has_the_same_outcome_warm(case: Case, node: str, shim: Path, tmp_path: Path) -> None:
    def park(
        flags: Sequence[str], env: Mapping[str, str] = ENVIRONMENT, name: str = "node"
    ) -> Parked:
        return Parked(node, shim, flags, env, name=name)

    cold, warm = compare(park, case, node, tmp_path)
    if parks_early(case):
        assert_same(cold, warm, in_order=not has_races(case))
    else:
        assert_same_but_known(case, cold, warm)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_has_the_same_outcome_forked(
    case: Case, node: str, forking: Callable[..., Parked], shim: Path, tmp_path: Path
) -> None:
    if parks_early(case):
        with pytest.raises(CannotPark, match="module"):
            Parked(node, shim, case.flags, {**ENVIRONMENT, **case.env}, "f")
        return
    cold, warm = compare(forking, case, node, tmp_path)
    assert_same_but_known(case, cold, warm)


def fork_once(node: str, shim: Path, code: str, env: Mapping[str, str] = ENVIRONMENT) -> Result:
    return run_warm(
        node, shim, ["-e"], ["node", "-e", code], env, "/", mode="f", parked_env=ENVIRONMENT
    )


def test_forks_have_different_random_numbers(
    forking: Callable[..., Parked],
) -> None:
    code = "[Math.random(), crypto.randomUUID(), process.pid].join()"
    runs = [
        run_from(forking(["-p"]), ["node", "-p", code], ENVIRONMENT, "/") for _ in range(20)
    ]
    drawn = [number for ran in runs for number in ran.stdout.split(b",")]
    assert len(drawn) == 60
    assert len(set(drawn)) == 60


def test_fork_has_its_own_pid(forking: Callable[..., Parked]) -> None:
    parked = forking(["-p"])
    code = "[process.pid, require('fs').readlinkSync('/proc/self'), process.ppid].join()"
    stdio, writer, readers = pipes()
    pid = parked.become(["node", "-p", code], ENVIRONMENT, "/", stdio)
    for fd in stdio:
        os.close(fd)
    assert finish(pid, writer, readers, b"").stdout == f"{pid},{pid},{os.getpid()}\n".encode()


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


def test_fork_with_a_large_heap(node: str, shim: Path) -> None:
    ran = fork_once(node, shim, BUSY)
    assert ran.stderr == b""
    assert sorted(ran.stdout.split(b"\n")) == [b"", b"done true 3000000", b"true"]
    assert ran.code == 0


@pytest.mark.parametrize("mode", ["r", "f"])
def test_threads_are_created_on_demand(node: str, shim: Path, mode: str) -> None:
    code = (
        "const count = () => require('fs').readdirSync('/proc/self/task').length;"
        "const before = count(); WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))"
        ".then((module) => console.log(before, module instanceof WebAssembly.Module, count()))"
    )
    cold = run_cold(node, ["node", "-e", code], ENVIRONMENT, "/")
    warm = run_warm(node, shim, ["-e"], ["node", "-e", code], ENVIRONMENT, "/", mode=mode)
    assert warm.stderr == b""
    before, compiled, after = warm.stdout.split()
    assert compiled == b"true"
    assert after == cold.stdout.split()[2]
    # V8 may have needed its threads already.
    assert before in (b"1", after)


@pytest.mark.parametrize("mode", ["r", "f"])
def test_standard_streams_are_created_by_the_program(node: str, shim: Path, mode: str) -> None:
    """While Node.js prepares to park, it writes to the console with other descriptors open."""
    code = (
        "console.log([process.stdin, process.stdout, process.stderr]"
        ".map((stream) => [stream.constructor.name, stream._type, stream.fd]))"
    )
    cold = run_cold(node, ["node", "-e", code], ENVIRONMENT, "/")
    assert_same(cold, run_warm(node, shim, ["-e"], ["node", "-e", code], ENVIRONMENT, "/", mode=mode))


@pytest.mark.parametrize("mode", ["r", "f"])
def test_sigusr1_opens_the_inspector(node: str, shim: Path, mode: str) -> None:
    """A thread of Node.js handles SIGUSR1, and opens the inspector."""
    code = (
        "const { url } = require('inspector'); process.debugPort = 0;"
        "process.kill(process.pid, 'SIGUSR1');"
        "const timer = setInterval(() => { if (url()) { clearInterval(timer);"
        " console.log('open'); process.exit(); } }, 5)"
    )
    warm = run_warm(node, shim, ["-e"], ["node", "-e", code], ENVIRONMENT, "/", mode=mode)
    assert (warm.stdout, warm.code) == (b"open\n", 0)


@pytest.mark.parametrize("mode", ["r", "f"])
def test_exit_waits_for_pending_work(node: str, shim: Path, mode: str) -> None:
    """A process that has used the thread pool still runs its pending callbacks at exit."""
    code = (
        "const { readFile } = require('fs');"
        "process.on('exit', (code) => console.log('exit', code));"
        "readFile('/proc/self/stat', () => { process.exitCode = 3; console.log('read'); })"
    )
    warm = run_warm(node, shim, ["-e"], ["node", "-e", code], ENVIRONMENT, "/", mode=mode)
    assert (warm.stdout, warm.stderr, warm.code) == (b"read\nexit 3\n", b"", 3)


def test_concurrent_forks(node: str, shim: Path) -> None:
    parked = Parked(node, shim, ["-e"], ENVIRONMENT, "f")
    code = (
        "const { readFile } = require('fs');"
        "setTimeout(() => readFile('/proc/self/stat', (e, d) => console.log(d + '')), 20)"
    )
    running = []
    for _ in range(24):
        stdio, writer, readers = pipes()
        running.append(
            (parked.become(["node", "-e", code], ENVIRONMENT, "/", stdio), writer, readers)
        )
        for fd in stdio:
            os.close(fd)
    # The process that forked the programs ends first.
    parked.discard()
    for pid, writer, readers in running:
        ran = finish(pid, writer, readers, b"")
        assert ran.stdout.split()[0] == str(pid).encode()
        assert (ran.stderr, ran.code) == (b"", 0)


def test_signals_reach_one_fork_only(forking: Callable[..., Parked]) -> None:
    """Each fork has its own pipe for libuv's signal handling."""
    parked = forking(["-e"])
    code = (
        "process.on('SIGUSR2', () => { console.log('got'); setTimeout(process.exit, 30); });"
        "console.log('ready'); setInterval(() => {}, 1000)"
    )
    running = []
    for _ in range(2):
        stdio, writer, readers = pipes()
        running.append(
            (parked.become(["node", "-e", code], ENVIRONMENT, "/", stdio), writer, readers)
        )
        for fd in stdio:
            os.close(fd)
    for _, _, readers in running:
        assert os.read(readers[0], 100) == b"ready\n"
    for pid, writer, readers in running:
        os.kill(pid, signal.SIGUSR2)
        assert finish(pid, writer, readers, b"").stdout == b"got\n"


def test_time_before_a_fork_does_not_count(node: str, shim: Path) -> None:
    begun = time.monotonic()
    parked = Parked(node, shim, ["-p"], ENVIRONMENT, "f")
    # This wait is longer than the preparation of Node.js took.
    waited = 1 + time.monotonic() - begun
    time.sleep(waited)
    before = time.time()
    ran = run_from(
        parked,
        [
            "node",
            "-p",
            "performance.timeOrigin / 1000 + ' ' + performance.now() + ' ' + process.uptime()",
        ],
        ENVIRONMENT,
        "/",
    )
    parked.discard()
    origin, now, uptime = map(float, ran.stdout.split())
    # For the program, Node.js seems to have started at the time of the fork, minus the time of
    # preparation.
    assert origin > before - waited + 0.1
    assert now < (waited - 0.1 + time.time() - before) * 1000
    assert uptime < waited - 0.1 + time.time() - before


def become(parked: Parked, argv: list[str], **options: object) -> Result:
    stdio, writer, readers = pipes()
    try:
        pid = parked.become(argv, ENVIRONMENT, "/", stdio, **options)  # type: ignore[arg-type]
    finally:
        for fd in stdio:
            os.close(fd)
        parked.close()
    return finish(pid, writer, readers, b"")


def test_time_spent_parked_does_not_count(node: str, shim: Path) -> None:
    before = time.time()
    parked = Parked(node, shim, ["-p"], ENVIRONMENT)
    time.sleep(0.5)
    ran = become(parked, ["node", "-p", "performance.timeOrigin / 1000"])
    assert float(ran.stdout) >= before + 0.5
    begun = time.monotonic()
    parked = Parked(node, shim, ["-p"], ENVIRONMENT)
    began = time.monotonic()
    # This wait is longer than the preparation took. The apparent start of Node.js is the first use,
    # minus the time of preparation.
    time.sleep(1 + began - begun)
    code = "[performance.now() / 1000, process.uptime(), performance.nodeTiming.nodeStart / 1000]"
    now = "Number(process.hrtime.bigint()) / 1e9"
    ran = become(parked, ["node", "-p", f"{code}.map((n) => {now} - n).join(' ')"])
    # Each number is the apparent start of Node.js by one clock, converted to CLOCK_MONOTONIC.
    for start in ran.stdout.split():
        assert float(start) >= began + 0.9


def test_timers_do_not_fire_early(node: str, shim: Path) -> None:
    parked = Parked(node, shim, ["-e"], ENVIRONMENT)
    time.sleep(1)
    code = (
        "const now = process.hrtime.bigint, b = now();"
        "setTimeout(() => console.log(now() - b >= 499000000n), 500)"
    )
    assert become(parked, ["node", "-e", code]).stdout == b"true\n"


@pytest.mark.parametrize(
    ("flags", "argv"),
    [
        ([], ["node", "-e", "0"]),
        ([], ["node", "--no-warnings", "s.js"]),
        ([], ["node", "--", "s.js"]),
        (["-e"], ["node", "s.js"]),
        (["-e"], ["node", "-e"]),
        (["-e"], ["node", "-p", "0"]),
        (["-e"], ["node", "-e", "-x"]),
        (["-e"], ["node", "-e", "0", "--no-warnings"]),
        (["--no-warnings"], ["node", "s.js"]),
    ],
)
def test_refuses_other_flags(node: str, shim: Path, flags: list[str], argv: list[str]) -> None:
    parked = Parked(node, shim, flags, ENVIRONMENT)
    with pytest.raises(Refused):
        become(parked, argv, refuses=True)
    os.waitpid(parked.pid, 0)


def test_refuses_descriptors_beyond_stdio(node: str, shim: Path) -> None:
    parked = Parked(node, shim, ["-e"], ENVIRONMENT)
    with pytest.raises(Refused):
        become(parked, ["node", "-e", "0"], keep=[3], refuses=True)
    os.waitpid(parked.pid, 0)


def test_process_accepts_a_request_after_a_refusal(node: str, shim: Path) -> None:
    parked = Parked(node, shim, ["-p"], ENVIRONMENT)
    with pytest.raises(Refused):
        parked.become(["node", "x"], ENVIRONMENT, "/", [], refuses=True)
    assert become(parked, ["node", "-p", "1 + 1"]).stdout == b"2\n"


@pytest.mark.parametrize(
    "flag", ["--inspect", "--env-file=x", "--title=x", "s.js", "--", "--test", "--permission"]
)
def test_unsupported_flags_prevent_parking(node: str, shim: Path, flag: str) -> None:
    with pytest.raises(CannotPark, match="flag"):
        Parked(node, shim, [flag], ENVIRONMENT)


def test_variables_read_before_parking_are_reported(node: str, shim: Path) -> None:
    parked = Parked(node, shim, ["-e"], ENVIRONMENT)
    assert {"NODE_OPTIONS", "NODE_EXTRA_CA_CERTS", "LANG", "OPENSSL_CONF"} <= set(parked.variables)
    assert {"NODE_PATH", "NODE_V8_COVERAGE", "NODE_CHANNEL_FD", "HOME"} <= set(parked.variables)
    assert not {"TZ", "PATH", "TERM", "X"} & set(parked.variables)
    assert (
        node in [os.path.realpath(f) for f in parked.files]
        or os.path.realpath(node) in parked.files
    )
    assert any(f.endswith("/openssl.cnf") for f in parked.files)
    parked.discard()


@pytest.mark.parametrize("options", ["--inspect=0", "--no-warnings --title=x"])
def test_unsupported_node_options_prevent_parking(node: str, shim: Path, options: str) -> None:
    with pytest.raises(CannotPark, match="NODE_OPTIONS"):
        Parked(node, shim, [], {**ENVIRONMENT, "NODE_OPTIONS": options})


def test_node_options_are_applied(node: str, shim: Path, tmp_path: Path) -> None:
    env = {**ENVIRONMENT, "NODE_OPTIONS": "--no-deprecation --stack-trace-limit=3"}
    argv = ["node", "-p", "[process.execArgv, process.noDeprecation, Error.stackTraceLimit]"]
    cold = run_cold(node, argv, env, str(tmp_path))
    assert_same(cold, run_warm(node, shim, ["-p"], argv, env, str(tmp_path)))


@pytest.mark.parametrize("mode", ["r", "f"])
def test_object_without_thread_support_cannot_park_node(node: str, shim_without_threads: Path, mode: str) -> None:
    with pytest.raises(CannotPark, match="not recognised as Node.js"):
        Parked(node, shim_without_threads, [], ENVIRONMENT, mode=mode)


def test_preloaded_modules(node: str, shim: Path) -> None:
    env = {**ENVIRONMENT, PRELOAD_VARIABLE: "http,node:zlib"}
    parked = Parked(node, shim, ["-e"], env)
    code = (
        "console.log(process.moduleLoadList.includes('NativeModule zlib'), Math.max(...[1, 2]),"
        "process.env.SPAWNFD_PRELOAD, require('zlib').gzipSync('a').length,"
        "process.argv, process.cwd())"
    )
    ran = become(parked, ["node", "-e", code, "x"])
    assert ran.stderr == b""
    assert ran.stdout.startswith(b"true 2 undefined 21 ")
    assert ran.stdout.endswith(b"'x' ] /\n")
    assert PRELOAD_VARIABLE not in parked.variables
    with pytest.raises(Refused):
        become(Parked(node, shim, ["-e"], env), ["other", "-e", code], refuses=True)


def test_only_builtin_modules_can_be_preloaded(node: str, shim: Path) -> None:
    with pytest.raises(CannotPark):
        Parked(node, shim, ["-e"], {**ENVIRONMENT, PRELOAD_VARIABLE: "lodash"})


def test_other_program_is_not_parked_as_node(shim: Path) -> None:
    with pytest.raises(CannotPark, match="died"):
        Parked(os.path.realpath("/bin/cat"), shim, [], ENVIRONMENT)


def test_signals_and_limits_of_the_request(node: str, shim: Path, tmp_path: Path) -> None:
    """Node.js resets the dispositions of signals below 32, and raises RLIMIT_NOFILE.

    A parked one must do both for the program.
    """
    code = (
        "const read = (name) => require('fs').readFileSync('/proc/self/' + name, 'utf8');"
        "console.log(read('status').match(/^Sig[^Q].*/mg), read('limits'))"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ignored = [signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, 40]
    bits = sum(1 << (int(n) - 1) for n in ignored)

    def prepare() -> None:
        for n in ignored:
            signal.signal(n, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, 41])
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))

    cold = subprocess.run(
        ["node", "-e", code],
        executable=node,
        env=ENVIRONMENT,
        cwd="/",
        stdin=subprocess.PIPE,
        capture_output=True,
        preexec_fn=prepare,
        restore_signals=False,
    )
    parked = Parked(node, shim, ["-e"], ENVIRONMENT)
    warm = become(
        parked,
        ["node", "-e", code],
        make_ignored=bits,
        mask=1 << 40 | 1 << 11,
        limits={resource.RLIMIT_NOFILE: (512, hard)},
    )
    assert (warm.stdout, warm.stderr, warm.code) == (cold.stdout, cold.stderr, cold.returncode)


@pytest.mark.parametrize("how", ["cold", "warm"])
@pytest.mark.parametrize(
    "end", ["", "process.exit(0)", "process.kill(process.pid, 'SIGTERM'); for (;;);"]
)
def test_pipes_are_restored_to_blocking_mode(node: str, shim: Path, how: str, end: str) -> None:
    stdio, writer, readers = pipes()
    code = f"process.stdin.on('data', () => {{ process.stdin.unref(); {end} }})"
    argv = ["node", "-e", code]
    if how == "warm":
        parked = Parked(node, shim, ["-e"], ENVIRONMENT)
        pid = parked.become(argv, ENVIRONMENT, "/", stdio)
        parked.close()
    else:
        pid = subprocess.Popen(
            argv, executable=node, env=ENVIRONMENT, stdin=stdio[0], stdout=stdio[1], stderr=stdio[2]
        ).pid
    for fd in stdio[1:]:
        os.close(fd)
    finish(pid, writer, readers, b"x")
    flags = fcntl.fcntl(stdio[0], fcntl.F_GETFL)
    os.close(stdio[0])
    assert not flags & os.O_NONBLOCK


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_terminal_modes_are_restored(node: str, shim: Path, how: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    code = (
        "const { stdin, stdout, stderr } = process;"
        "console.log([stdin, stdout, stderr].map((s) => [s.isTTY, s.constructor.name]),"
        "stdout.columns); stdin.setRawMode(true); stdin.once('data', (d) => {"
        "console.log(d); process.exit(3); })"
    )
    argv = ["node", "-e", code]
    if how == "warm":
        parked = Parked(node, shim, ["-e"], ENVIRONMENT)
        pid = parked.become(argv, ENVIRONMENT, "/", [theirs] * 3)
        parked.close()
    else:
        pid = subprocess.Popen(
            argv, executable=node, env=ENVIRONMENT, stdin=theirs, stdout=theirs, stderr=theirs
        ).pid
    got = b""
    while b"[" not in got or got.count(b"\n") < 1 or b"0" not in got:
        got += os.read(ours, 4096)
    while termios.tcgetattr(theirs)[3] & termios.ICANON:
        time.sleep(0.01)
    os.write(ours, b"\x03")
    _, status = os.waitpid(pid, 0)
    got += os.read(ours, 4096)
    after = termios.tcgetattr(theirs)
    os.close(ours)
    os.close(theirs)
    assert os.waitstatus_to_exitcode(status) == 3
    assert got.count(b"true") == 3
    assert b"<Buffer 03>" in got
    assert after == before


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_standard_descriptors(node: str, shim: Path, closed: int, tmp_path: Path) -> None:
    """Node.js opens /dev/null in place of a closed stream. A parked Node.js already has it open."""
    code = (
        f"require('fs').writeFileSync('out', require('fs').readlinkSync('/proc/self/fd/{closed}'))"
    )
    parked = Parked(node, shim, ["-e"], ENVIRONMENT)
    with open("/dev/null", "r+b") as null:
        stdio = [null.fileno()] * closed
        pid = parked.become(["node", "-e", code], ENVIRONMENT, str(tmp_path), stdio)
    parked.close()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert (tmp_path / "out").read_text() == "/dev/null"


def test_state_detects_a_difference(node: str, tmp_path: Path) -> None:
    one = run_cold(node, ["node", "-e", STATE], ENVIRONMENT, str(tmp_path))
    two = run_cold(node, ["node", "-e", STATE], {**ENVIRONMENT, "X": "other"}, str(tmp_path))
    assert one.code == 0, one.stderr
    assert one.stdout != two.stdout
    assert ABOUT
