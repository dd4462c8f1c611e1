# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options of a supervised run and the fields of its Result, for each function that runs one."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

import pytest
import spawnfd as sf
from patience import TIMEOUT_S, Gate, eventually, ignores_sigterm, in_time


def run_async(argv: Any, **options: Any) -> sf.Result:
    return asyncio.run(sf.run_async(argv, **options))


def run_job(argv: Any, **options: Any) -> sf.Result:
    with sf.start_sync(argv, **options) as job:
        return job.result()


each_run = pytest.mark.parametrize("run", [sf.run, run_async, run_job])
Run = Callable[..., sf.Result]


@each_run
def test_timeout_waits_for_the_grace_period(run: Run, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    start = time.monotonic()
    result = in_time(
        marker, 0.2, lambda timeout: run(ignores_sigterm(marker), timeout=timeout, grace=0.3)
    )
    assert (result.stop, result.signal, result.text) == ("timeout", 9, "ready\n")
    assert 0.5 <= time.monotonic() - start < 2 * TIMEOUT_S
    marker.unlink()
    line = sf.sh(f"trap 'echo bye; exit 7' TERM; : > '{marker}'; sleep 1000 & wait")
    polite = in_time(marker, 0.3, lambda timeout: run(line, timeout=timeout, grace=1000))
    assert (polite.stop, polite.code, polite.text) == ("timeout", 7, "bye\n")
    assert run(["sleep", "60"], timeout=0.1, grace=0).signal == 9


@each_run
@pytest.mark.parametrize("stdout", ["capture", "null", "file"])
def test_leftovers_have_the_drain_time_without_captured_streams(
    run: Run, stdout: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    line = sf.sh(f"(exec >&- 2>&-; sleep 0.05; echo late > '{log}') & exit 3")
    with (tmp_path / "out").open("wb") as file:
        target: Any = file if stdout == "file" else stdout
        result = run(line, stdout=target, stderr="null", drain=TIMEOUT_S)
    assert (result.code, result.leftovers, log.read_text()) == (3, [], "late\n")


@each_run
def test_output_limit(run: Run) -> None:
    result = run(["yes"], output_limit=1_000_000, keep=(10, 10))
    assert (result.stop, result.signal, result.ok) == ("output_limit", 15, False)
    assert result.seen_bytes > 1_000_000
    assert result.seen_bytes == result.omitted_bytes + 20
    with pytest.raises(
        sf.ExitError, match="exceeded its output limit of 1000000 bytes and was killed by SIGTERM"
    ):
        result.check()


@each_run
def test_spill(run: Run, tmp_path: Path) -> None:
    line = sf.sh("i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); done")
    expected = "".join(f"{i}\n" for i in range(100))
    spill = sf.Spill(1 << 20, dir=tmp_path)
    result = run(line, keep=(4, 4), spill=spill)
    assert result.text == "0\n1\n[… 283 bytes omitted …]\n99\n"
    assert result.spilled == (len(expected), "whole", None)
    assert result.spill_path is not None
    path = Path(result.spill_path)
    assert path.parent == tmp_path
    assert path.read_text() == expected
    assert stat.S_IMODE(path.stat().st_mode) & 0o777 == 0o600
    del result
    assert not path.exists()

    capped = run(line, keep=(4, 4), spill=sf.Spill(50, tmp_path, persist=True))
    assert capped.spilled == (50, "capped", None)
    path = Path(capped.spill_path or "")
    del capped
    assert path.read_text() == expected[:50]

    failed = run(line, keep=(4, 4), spill=sf.Spill(50, tmp_path / "none"))
    assert failed.spilled == (0, "failed", errno.ENOENT)
    assert (failed.ok, failed.spill_path) == (True, None)

    little = run(["echo", "x"], spill=spill)
    assert (little.spill_path, little.spilled, little.seen_bytes) == (None, None, 2)


def descriptor_of(path: Path) -> int:
    """Returns the descriptor at which this process has the file open."""
    return next(n for n in range(3, 1 << 16) if os.path.realpath(f"/proc/self/fd/{n}") == str(path))


def test_replaced_spill_descriptor_is_left_alone(tmp_path: Path) -> None:
    mine, spills = tmp_path / "mine", tmp_path / "spills"
    mine.touch()
    spills.mkdir()
    spill = sf.Spill(1 << 20, dir=spills)

    ended = sf.run(["seq", "1000"], keep=(4, 4), spill=spill)
    number = descriptor_of(Path(ended.spill_path or ""))
    with mine.open("rb+") as file:
        os.dup2(file.fileno(), number)
    del ended
    assert os.path.samestat(os.fstat(number), mine.stat())
    os.close(number)
    assert list(spills.iterdir()) == []

    line = "seq 1000; read x; seq 1000"
    with sf.start_sync(sf.sh(line), stdin="stream", keep=(4, 4), spill=spill) as job:
        assert eventually(lambda: any(path.stat().st_size for path in spills.iterdir()))
        number = descriptor_of(next(spills.iterdir()))
        with mine.open("rb+") as file:
            os.dup2(file.fileno(), number)
        job.write("go\n")
        result = job.result()
    assert result.spilled is not None
    assert result.spilled[1:] == ("failed", errno.EBADF)
    del job, result
    assert (mine.stat().st_size, list(spills.iterdir())) == (0, [])
    os.close(number)


def test_spill_is_a_value() -> None:
    assert sf.Spill(5) == sf.Spill(5, None, False)
    assert repr(sf.Spill(5)) == "Spill(max_bytes=5, dir=None, persist=False)"
    with pytest.raises(AttributeError):
        sf.Spill(5).max_bytes = 6  # type: ignore[misc]


@each_run
def test_drain_zero_reads_what_was_written(run: Run) -> None:
    # The output takes more than one read, and the program has ended before the last one.
    size = 1 << 20
    line = (
        f"import fcntl, os; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, {size}); os.write(1, bytes({size}))"
    )
    result = run([sys.executable, "-c", f"{line}; os._exit(0)"], drain=0.0, keep=(size, 0))
    assert (len(result.stdout), result.drain) == (size, "eof")
    # A leftover process goes on writing. run() does not wait for it.
    assert run(sf.sh("yes & exit 3"), drain=0.0).drain.startswith("cut: ")


@each_run
def test_drain_waits_for_leftover_writers(run: Run, tmp_path: Path) -> None:
    line = sf.sh("setsid sh -c 'sleep 0.4; echo late' & echo early")
    assert run(line, drain=TIMEOUT_S).text == "early\nlate\n"
    gate = Gate(tmp_path)
    line = sf.sh(f'setsid sh -c "{gate.wait}; echo late" & echo early')
    cut = run(line, drain=0.0, leftovers="detach")
    assert cut.text == "early\n"
    assert cut.drain.startswith("cut: ")
    # The detached process now ends by itself.
    gate.open()


@each_run
def test_input_refused(run: Run) -> None:
    large = bytes(1 << 20)
    assert run(["true"], input=large).input_refused
    assert not run(sf.sh("cat >/dev/null"), input=large).input_refused


@each_run
@pytest.mark.parametrize("leftovers", ["kill", "adopt", "detach"])
def test_run_without_leftovers(run: Run, leftovers: str) -> None:
    result = run(["echo", "x"], leftovers=leftovers)
    assert (result.text, result.leftovers) == ("x\n", [])


def test_text_drops_characters_cut_by_an_omission() -> None:
    result = sf.run(["printf", "aéz"], keep=(2, 1))
    assert (result.stdout_head, result.stdout_tail) == (b"a\xc3", b"z")
    assert result.text == "a\n[… 1 byte omitted …]\nz"
    result = sf.run(["printf", "aéz"], keep=(2, 1), marker=None)
    assert (result.stdout, result.text) == (b"a\xc3z", "az")
    result = sf.run(sf.sh(r"printf '\303'; sleep 0.1; printf '\251 \377'"))
    assert result.text == "é \ufffd"


@pytest.mark.parametrize(
    ("options", "expected", "message"),
    [
        ({"grace": -1}, ValueError, "grace must be >= 0, got -1"),
        ({"grace": "x"}, TypeError, "grace"),
        ({"drain": float("nan")}, ValueError, "drain"),
        ({"output_limit": -1}, ValueError, "output_limit"),
        ({"output_limit": 1.5}, TypeError, "output_limit"),
        ({"spill": 5}, TypeError, r"spill: expected spawnfd\.Spill"),
        ({"spill": sf.Spill("x")}, TypeError, r"spill\.max_bytes"),  # type: ignore[arg-type]
        ({"spill": sf.Spill(5, 5)}, TypeError, r"spill\.dir"),  # type: ignore[arg-type]
        (
            {"leftovers": "x"},
            ValueError,
            'leftovers must be one of "kill", "adopt", "detach", got "x"',
        ),
        ({"leftovers": 3}, TypeError, "leftovers"),
        ({"no": 1}, TypeError, 'unexpected keyword argument "no"$'),
        ({"shell": True}, TypeError, r'"shell"; for a shell .* pass spawnfd\.sh\(command\)'),
        ({"capture_output": True}, TypeError, "captured by default"),
        ({"check": True}, TypeError, r"call check\(\) of the Result"),
        ({"start_new_session": True}, TypeError, "always starts a new session"),
        ({"timeout": True}, TypeError, "timeout: expected seconds"),
        ({"timeout": -(10**400)}, ValueError, "timeout must be >= 0, got -inf"),
        ({"input": "\ud800"}, ValueError, "input: 'utf-8' codec can't encode"),
        (
            {"keep": [5, 5]},
            TypeError,
            r'keep: expected a tuple of two int \(bytes of head .*, or "all", not list',
        ),
        ({"keep": "some"}, ValueError, 'keep must be two numbers of bytes, or "all", got "some"'),
        ({"marker": b"x"}, TypeError, "marker: expected str or None, not bytes"),
        ({"marker": "\ud800"}, ValueError, "marker: 'utf-8' codec can't encode"),
        ({"marker": "a\nb"}, ValueError, "the marker must not contain a line break or a NUL"),
        ({"marker": "a\0b"}, ValueError, "the marker must not contain a line break or a NUL"),
        ({"combined": 1}, TypeError, "combined: expected bool, not int"),
        ({"tree": "\ud800"}, ValueError, "tree must be one of .*, got"),
        ({"stdout": "\ud800"}, ValueError, "stdout: expected one of .*, got"),
        ({"tree": 1}, TypeError, 'tree: expected one of "group"'),
        ({"cwd": 1.5}, TypeError, r"cwd: expected a path .* or a descriptor \(int\), not float"),
        ({"cwd": True}, TypeError, r"cwd: expected a path .*, not bool"),
        ({"stdin": "pipe"}, ValueError, r'stdin: expected one of .*, got "pipe"; .*"stream"'),
        ({"stdout": "pipe"}, ValueError, "the stream is captured by default"),
        ({"stderr": "stdout"}, ValueError, 'to send it to stdout use "merge"'),
        (
            {"stdout": io.StringIO()},
            ValueError,
            r"stdout: fileno\(\) raised .*; expected \"capture\"",
        ),
        (
            {"actions": [sf.actions.Descriptor(io.BytesIO())]},
            ValueError,
            r"Descriptor\.source: fileno\(\)",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], expected: type[Exception], message: str) -> None:
    for run in (sf.run, run_async, run_job):
        with pytest.raises(expected, match=message):
            run(["true"], **options)


@each_run
def test_constants_of_subprocess(run: Run) -> None:
    line = sf.sh("cat; echo out; echo err >&2")
    piped = {"stdin": DEVNULL, "stdout": PIPE}
    for constant, outputs in (
        (PIPE, (b"out\n", b"err\n")),
        (DEVNULL, (b"out\n", b"")),
        (STDOUT, (b"out\nerr\n", b"")),
    ):
        result = run(line, **piped, stderr=constant).check()
        assert (result.stdout, result.stderr) == outputs
    assert run(line, stdout=DEVNULL, stderr=STDOUT).seen_bytes == 0
    assert run(["cat"], stdin=DEVNULL, input=b"x").text == "x"
    assert run(["true"], stdin=DEVNULL, stdout=PIPE, stderr=PIPE, terminal=(24, 80)).ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stdin": STDOUT}, r"stdin: expected one of .*, got subprocess\.STDOUT$"),
        ({"stdout": STDOUT}, r'stdout: expected one of "capture", .*, got subprocess\.STDOUT$'),
        ({"stdout": -4}, "stdout: a descriptor must be >= 0, got -4; expected"),
        (
            {"stdin": DEVNULL, "terminal": (1, 1), "stdout": DEVNULL},
            "cannot be combined with stdout",
        ),
    ],
)
def test_constant_without_a_meaning(options: dict[str, Any], message: str) -> None:
    for run in (sf.run, run_async, run_job):
        with pytest.raises(ValueError, match=message):
            run(["true"], **options)


@pytest.mark.parametrize("run", [sf.run, run_async])
@pytest.mark.parametrize("terminal", [None, (24, 80)])
def test_run_refuses_a_pipe_to_the_program(run: Run, terminal: tuple[int, int] | None) -> None:
    with pytest.raises(ValueError, match=r"got subprocess\.PIPE; to pass data use input=, or"):
        run(["cat"], stdin=PIPE, terminal=terminal)


def test_pipe_to_a_job() -> None:
    with sf.start_sync(["cat"], stdin=PIPE, stdout=PIPE, stderr=STDOUT) as job:
        job.write("x")
        job.close_stdin()
        assert job.result().text == "x"
    with pytest.raises(ValueError, match="input: cannot be combined with stdin"):
        sf.start_sync(["cat"], stdin=PIPE, input=b"")


@pytest.mark.parametrize(
    ("options", "expected", "message"),
    [
        ({"window": -1}, ValueError, "window"),
        ({"stdin": "stream", "input": b""}, ValueError, "input: cannot be combined with stdin"),
        ({"stdin": "pipe"}, ValueError, 'stdin: .*"stream"'),
    ],
)
def test_wrong_options_of_jobs(
    options: dict[str, Any], expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected, match=message):
        run_job(["true"], **options)
    for name in {"window", "hold"} & {*options, "hold"}:
        with pytest.raises(TypeError, match=rf'argument "{name}"; start\(\) accepts it'):
            sf.run(["true"], **{name: options.get(name, True)})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "where"),
    [("timeout", "Child.wait"), ("input", "start"), ("hold", "start"), ("window", "start")],
)
def test_spawn_has_its_own_options(name: str, where: str) -> None:
    with pytest.raises(TypeError, match=rf'unexpected keyword argument "{name}"; .*{where}\(\)'):
        sf.spawn(["true"], **{name: 1})  # type: ignore[call-arg]


@each_run
def test_huge_timeouts_mean_forever(run: Run) -> None:
    assert run(["true"], timeout=10**400, grace=10**400, drain=10**400).ok
    with sf.start_sync(["true"]) as job, sf.spawn(["true"]) as child:
        assert (job.wait(10**400), child.wait(10**400)) == (job.result(), 0)


def test_action_index_in_each_run() -> None:
    fd = os.open("/", os.O_PATH)
    try:
        for run in (sf.run, run_async, run_job):
            with pytest.raises(sf.SpawnError) as caught:
                # The cwd is an action of the core, too, but the index does not count it.
                run(["true"], cwd=fd, actions=[sf.actions.Umask(0), sf.actions.Chdir("/no")])
            assert caught.value.action == 1
    finally:
        os.close(fd)


@each_run
@pytest.mark.parametrize("tree", ["group", "guard", "auto"])
def test_leftovers_are_named(run: Run, tree: str) -> None:
    named = "until grep -q sleep /proc/$!/comm; do :; done"
    line = ["sh", "-c", f"sleep 1000 >/dev/null 2>&1 & {named}; echo $!"]
    result = run(line, tree=tree)
    (left,) = result.leftovers
    assert (left.pid, left.name, left.fate) == (int(result.text), "sleep", "killed")
    assert result.tree in ({"group", "guard"} if tree != "auto" else {"group", "guard", "cgroup"})
    detached = run(line, tree=tree, leftovers="detach")
    assert [left.fate for left in detached.leftovers] == ["detached"]
    os.kill(int(detached.text), signal.SIGKILL)


@each_run
def test_guard_may_miss_processes_of_a_new_session(run: Run) -> None:
    daemon = "setsid -f sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1'"
    result = run(["sh", "-c", daemon], tree="guard", drain=20)
    os.kill(int(result.text), signal.SIGKILL)
    assert (result.leftovers, result.leftovers_unknown) == ([], False)
    assert (result.tree, result.tree_complete) == ("guard", False)


@each_run
@pytest.mark.parametrize("tree", ["group", "guard"])
def test_a_daemon_that_holds_the_output_is_a_leftover(run: Run, tree: str, tmp_path: Path) -> None:
    daemon = '(setsid sh -c \'echo $$; : >"$0"; exec sleep 1000\' "$0" &)'
    line = [
        "sh",
        "-c",
        daemon + '; until test -e "$0"; do sleep 0.01; done; rm "$0"',
        str(tmp_path / "done"),
    ]
    result = run(line, tree=tree)
    pid = int(result.text)
    assert [(left.pid, left.fate) for left in result.leftovers] == [(pid, "killed")]
    assert result.drain == f"cut: {pid}"
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    detached = run(line, tree=tree, leftovers="detach")
    pid = int(detached.text)
    assert [(left.pid, left.fate) for left in detached.leftovers] == [(pid, "detached")]
    os.kill(pid, signal.SIGKILL)


@each_run
def test_subreaper_finds_processes_of_a_new_session(run: Run) -> None:
    daemon = "setsid -f sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1'; exit 3"
    result = run(["sh", "-c", daemon], tree="subreaper", drain=2)
    assert (result.code, result.tree, result.tree_complete) == (3, "subreaper", True)
    assert [(left.pid, left.fate) for left in result.leftovers] == [(int(result.text), "killed")]


@each_run
def test_pid_namespace_kills_the_whole_tree(run: Run) -> None:
    line = "setsid -f sleep 1000 >/dev/null 2>&1; echo $$; exit 3"
    try:
        result = run(["sh", "-c", line], tree="pidns")
    except sf.SpawnError as refused:
        if refused.stage != "tree":
            raise
        pytest.skip(str(refused))
    assert (result.text.strip(), result.code, result.tree) == ("2", 3, "pidns")
    assert result.tree_complete
    assert [left.fate for left in result.leftovers] == ["killed"]
