# SPDX-License-Identifier: MIT OR Apache-2.0
"""What Node.js does when it was parked, against what it does when it is started."""

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
    """The output, without what no two runs have in common."""
    known = output.decode(errors="replace")
    known = re.sub(r"\(node:\d+\)", "(node:PID)", known)
    return re.sub(r"duration_ms:? [\d.]+", "duration_ms N", known)


def has_races(case: Case) -> bool:
    """Whether threads of the program write at the same time: the order of lines may differ."""
    return case.name.endswith(("other modules", "workers", "a worker"))


def same(cold: Result, warm: Result, in_order: bool = True) -> None:
    order = list if in_order else sorted
    assert order(text(warm.stdout).split("\n")) == order(text(cold.stdout).split("\n"))
    assert text(warm.stderr) == text(cold.stderr)
    assert warm.code == cold.code


@pytest.fixture(scope="session")
def forked_from(node: str, shim: Path) -> Iterator[Callable[..., Parked]]:
    """A Node.js parked with such flags, environment and name: one for all tests, and ended with them."""
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
    """It has neither code nor a script."""
    is_code = case.flags and case.flags[-1] in ("-e", "--eval", "-p", "--print", "-pe")
    return not is_code and case.argv[len(case.flags) + 1 :][:1] in ([], ["-"])


def as_script(case: Case) -> Case:
    """The same, where what came by stdin is a script."""
    first = len(case.flags) + 1
    argv = [*case.argv[:first], "stdin.js", *case.argv[first + 1 :]]
    return replace(case, argv=argv, files={**case.files, "stdin.js": case.data.decode()})


def without_what_may_differ(ran: Result) -> list[str]:
    """See docs/warm.md: numbers of descriptors; the order of modules; threads."""
    out = re.sub(r"^files \[.*?^next \d+$", "", text(ran.stdout), flags=re.M | re.S)
    out = re.sub(r"'moduleLoadList',\s*\[.*?\]", "", out, flags=re.S)
    out = re.sub(r"^threads \[.*?\]$", "", out, flags=re.M | re.S)
    out = re.sub(r"FDSize:\\t\d+", "", out)
    return [*out.split("\n"), *text(ran.stderr).split("\n"), str(ran.code)]


def compared(case: Case, cold: Result, warm: Result) -> None:
    order = sorted if has_races(case) else list
    assert order(without_what_may_differ(warm)) == order(without_what_may_differ(cold))


LOADS_MODULES = ("-r", "--require", "--import", "--loader", "--experimental-loader")


def parks_early(case: Case) -> bool:
    return any(flag.startswith(LOADS_MODULES) for flag in case.flags)


def compare(
    park: Callable[..., Parked], case: Case, node: str, directory: Path
) -> tuple[Result, Result]:
    """What it comes to, cold and warm: where it is refused as it is, what is nearest to it."""
    env = {**ENVIRONMENT, **case.env}
    parked = park(case.flags)
    if set(case.env) & set(parked.variables):
        # The owner starts such a one cold.
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
        # It waits on.
        case = as_script(case)
    write(case, directory)
    cold = run_cold(node, case.argv, env, str(directory), case.data)
    return cold, run_from(parked, case.argv, env, str(directory), case.data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same(case: Case, node: str, shim: Path, tmp_path: Path) -> None:
    def park(
        flags: Sequence[str], env: Mapping[str, str] = ENVIRONMENT, name: str = "node"
    ) -> Parked:
        return Parked(node, shim, flags, env, name=name)

    cold, warm = compare(park, case, node, tmp_path)
    if parks_early(case):
        same(cold, warm, in_order=not has_races(case))
    else:
        compared(case, cold, warm)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forked(
    case: Case, node: str, forked_from: Callable[..., Parked], shim: Path, tmp_path: Path
) -> None:
    if parks_early(case):
        with pytest.raises(CannotPark, match="module"):
            Parked(node, shim, case.flags, {**ENVIRONMENT, **case.env}, "f")
        return
    cold, warm = compare(forked_from, case, node, tmp_path)
    compared(case, cold, warm)


def fork_once(node: str, shim: Path, code: str, env: Mapping[str, str] = ENVIRONMENT) -> Result:
    return run_warm(
        node, shim, ["-e"], ["node", "-e", code], env, "/", mode="f", parked_env=ENVIRONMENT
    )


def test_siblings_draw_their_own_numbers(
    forked_from: Callable[..., Parked],
) -> None:
    code = "[Math.random(), crypto.randomUUID(), process.pid].join()"
    runs = [
        run_from(forked_from(["-p"]), ["node", "-p", code], ENVIRONMENT, "/") for _ in range(20)
    ]
    drawn = [number for ran in runs for number in ran.stdout.split(b",")]
    assert len(drawn) == 60
    assert len(set(drawn)) == 60


def test_a_fork_has_its_own_pid(forked_from: Callable[..., Parked]) -> None:
    parked = forked_from(["-p"])
    code = "[process.pid, require('fs').readlinkSync('/proc/self'), process.ppid].join()"
    stdio, writer, readers = pipes()
    pid = parked.become(["node", "-p", code], ENVIRONMENT, "/", stdio)
    for fd in stdio:
        os.close(fd)
    assert finish(pid, writer, readers, b"").stdout == f"{pid},{pid},{os.getpid()}\n".encode()


# Minor and major collections by several threads, compiling by another, tasks of the thread pool.
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


def test_large_heaps(node: str, shim: Path) -> None:
    ran = fork_once(node, shim, BUSY)
    assert ran.stderr == b""
    assert sorted(ran.stdout.split(b"\n")) == [b"", b"done true 3000000", b"true"]
    assert ran.code == 0


@pytest.mark.parametrize("mode", ["r", "f"])
def test_threads_are_made_when_they_are_needed(node: str, shim: Path, mode: str) -> None:
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
    # V8 may have had something for them before.
    assert before in (b"1", after)


@pytest.mark.parametrize("mode", ["r", "f"])
def test_standard_streams_are_made_by_the_program(node: str, shim: Path, mode: str) -> None:
    """A rehearsal has written by console where others are open."""
    code = (
        "console.log([process.stdin, process.stdout, process.stderr]"
        ".map((stream) => [stream.constructor.name, stream._type, stream.fd]))"
    )
    cold = run_cold(node, ["node", "-e", code], ENVIRONMENT, "/")
    same(cold, run_warm(node, shim, ["-e"], ["node", "-e", code], ENVIRONMENT, "/", mode=mode))


@pytest.mark.parametrize("mode", ["r", "f"])
def test_a_signal_wakes_what_waits_for_it(node: str, shim: Path, mode: str) -> None:
    """Node's SIGUSR1 is handled by a thread that opens the inspector."""
    code = (
        "const { url } = require('inspector'); process.debugPort = 0;"
        "process.kill(process.pid, 'SIGUSR1');"
        "const timer = setInterval(() => { if (url()) { clearInterval(timer);"
        " console.log('open'); process.exit(); } }, 5)"
    )
    warm = run_warm(node, shim, ["-e"], ["node", "-e", code], ENVIRONMENT, "/", mode=mode)
    assert (warm.stdout, warm.code) == (b"open\n", 0)


@pytest.mark.parametrize("mode", ["r", "f"])
def test_the_end_of_what_has_used_threads(node: str, shim: Path, mode: str) -> None:
    """It does not end early then: what it has begun is done."""
    code = (
        "const { readFile } = require('fs');"
        "process.on('exit', (code) => console.log('exit', code));"
        "readFile('/proc/self/stat', () => { process.exitCode = 3; console.log('read'); })"
    )
    warm = run_warm(node, shim, ["-e"], ["node", "-e", code], ENVIRONMENT, "/", mode=mode)
    assert (warm.stdout, warm.stderr, warm.code) == (b"read\nexit 3\n", b"", 3)


def test_forks_at_once(node: str, shim: Path) -> None:
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
    # It ends before they do.
    parked.discard()
    for pid, writer, readers in running:
        ran = finish(pid, writer, readers, b"")
        assert ran.stdout.split()[0] == str(pid).encode()
        assert (ran.stderr, ran.code) == (b"", 0)


def test_signals_reach_one_fork_only(forked_from: Callable[..., Parked]) -> None:
    """What libuv signals itself by is each one's own."""
    parked = forked_from(["-e"])
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
    # Longer than Node took to prepare.
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
    # It seems to have been started as long ago as Node took to prepare.
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
    # Longer than Node took to prepare: by so much it seems to have been started before it is used.
    time.sleep(1 + began - begun)
    code = "[performance.now() / 1000, process.uptime(), performance.nodeTiming.nodeStart / 1000]"
    now = "Number(process.hrtime.bigint()) / 1e9"
    ran = become(parked, ["node", "-p", f"{code}.map((n) => {now} - n).join(' ')"])
    # Each start, by CLOCK_MONOTONIC.
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


def test_after_a_refusal_it_can_still_be_used(node: str, shim: Path) -> None:
    parked = Parked(node, shim, ["-p"], ENVIRONMENT)
    with pytest.raises(Refused):
        parked.become(["node", "x"], ENVIRONMENT, "/", [], refuses=True)
    assert become(parked, ["node", "-p", "1 + 1"]).stdout == b"2\n"


@pytest.mark.parametrize(
    "flag", ["--inspect", "--env-file=x", "--title=x", "s.js", "--", "--test", "--permission"]
)
def test_cannot_park_with(node: str, shim: Path, flag: str) -> None:
    with pytest.raises(CannotPark, match="flag"):
        Parked(node, shim, [flag], ENVIRONMENT)


def test_variables_read_before_parking_are_told(node: str, shim: Path) -> None:
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
def test_cannot_park_with_node_options(node: str, shim: Path, options: str) -> None:
    with pytest.raises(CannotPark, match="NODE_OPTIONS"):
        Parked(node, shim, [], {**ENVIRONMENT, "NODE_OPTIONS": options})


def test_node_options_are_as_cold(node: str, shim: Path, tmp_path: Path) -> None:
    env = {**ENVIRONMENT, "NODE_OPTIONS": "--no-deprecation --stack-trace-limit=3"}
    argv = ["node", "-p", "[process.execArgv, process.noDeprecation, Error.stackTraceLimit]"]
    cold = run_cold(node, argv, env, str(tmp_path))
    same(cold, run_warm(node, shim, ["-p"], argv, env, str(tmp_path)))


@pytest.mark.parametrize("mode", ["r", "f"])
def test_is_parked_by_its_object_only(node: str, shim_without_threads: Path, mode: str) -> None:
    with pytest.raises(CannotPark, match="object"):
        Parked(node, shim_without_threads, [], ENVIRONMENT, mode=mode)


def test_with_modules_loaded_ahead(node: str, shim: Path) -> None:
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


def test_no_module_of_the_programs_is_loaded_ahead(node: str, shim: Path) -> None:
    with pytest.raises(CannotPark):
        Parked(node, shim, ["-e"], {**ENVIRONMENT, PRELOAD_VARIABLE: "lodash"})


def test_a_program_that_is_no_node_is_not_parked(shim: Path) -> None:
    with pytest.raises(CannotPark, match="died"):
        Parked(os.path.realpath("/bin/cat"), shim, [], ENVIRONMENT)


def test_signals_and_limits_of_the_request(node: str, shim: Path, tmp_path: Path) -> None:
    """Node resets the dispositions below 32, whoever asks; and raises the number of open files."""
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
def test_pipes_are_left_as_they_were(node: str, shim: Path, how: str, end: str) -> None:
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
def test_terminals(node: str, shim: Path, how: str) -> None:
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
    """Node opens /dev/null where one is closed; a parked one has its own there."""
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


def test_state_is_a_comparison_that_can_fail(node: str, tmp_path: Path) -> None:
    one = run_cold(node, ["node", "-e", STATE], ENVIRONMENT, str(tmp_path))
    two = run_cold(node, ["node", "-e", STATE], {**ENVIRONMENT, "X": "other"}, str(tmp_path))
    assert one.code == 0, one.stderr
    assert one.stdout != two.stdout
    assert ABOUT
