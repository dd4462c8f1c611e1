# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options of a supervised run and the fields of its Result, for each function that runs one."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

import pytest
import spawnfd as sf
from patience import Gate, eventually


def run_async(argv: Any, **options: Any) -> sf.Result:
    return asyncio.run(sf.run_async(argv, **options))


def run_job(argv: Any, **options: Any) -> sf.Result:
    with sf.start_sync(argv, **options) as job:
        return job.result()


each_run = pytest.mark.parametrize("run", [sf.run, run_async, run_job])
Run = Callable[..., sf.Result]


@each_run
def test_spill_file_lives_as_long_as_its_result(run: Run, tmp_path: Path) -> None:
    result = run(["seq", "100"], keep=(4, 4), spill=sf.Spill(1 << 20, dir=tmp_path))
    path = Path(result.spill_path or "")
    assert path.parent == tmp_path
    assert stat.S_IMODE(path.stat().st_mode) & 0o777 == 0o600
    del result
    assert not path.exists()
    result = run(["seq", "100"], keep=(4, 4), spill=sf.Spill(50, tmp_path, persist=True))
    path = Path(result.spill_path or "")
    del result
    assert path.stat().st_size == 50
    failed = run(["seq", "100"], keep=(4, 4), spill=sf.Spill(50, tmp_path / "none"))
    assert failed.spilled == (0, "failed", errno.ENOENT)


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
def test_no_drain_time_for_leftover_writers(run: Run, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    line = sf.sh(f'setsid sh -c "{gate.wait}; echo late" & echo early')
    cut = run(line, drain=0.0, leftovers="detach")
    assert cut.text == "early\n"
    assert cut.drain.startswith("cut: ")
    # The detached process now ends by itself.
    gate.open()


@pytest.mark.parametrize(
    ("options", "expected", "message"),
    [
        ({"capture_output": True}, TypeError, "captured by default"),
        ({"check": True}, TypeError, r"call check\(\) of the Result"),
        ({"start_new_session": True}, TypeError, "always starts a new session"),
        ({"timeout": -(10**400)}, ValueError, "timeout must be >= 0, got -inf"),
        ({"input": "\ud800"}, ValueError, "input: 'utf-8' codec can't encode"),
        (
            {"keep": [5, 5]},
            TypeError,
            r'keep: expected a tuple of two int \(bytes of head .*, or "all", not list',
        ),
        ({"marker": "\ud800"}, ValueError, "marker: 'utf-8' codec can't encode"),
        ({"tree": "\ud800"}, ValueError, "tree must be one of .*, got"),
        ({"stdout": "\ud800"}, ValueError, "stdout: expected one of .*, got"),
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
    if not sf.portable:
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
    with sf.start_sync(["true"]) as job:
        assert job.wait(10**400) == job.result()


def test_huge_timeout_of_a_child_means_forever() -> None:
    with sf.spawn(["true"]) as child:
        assert child.wait(10**400) == 0


@each_run
def test_guard_may_miss_processes_of_a_new_session(run: Run) -> None:
    daemon = "setsid -f sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1'"
    result = run(["sh", "-c", daemon], tree="guard", drain=20)
    os.kill(int(result.text), signal.SIGKILL)
    assert (result.leftovers, result.leftovers_unknown) == ([], False)
    assert (result.tree, result.tree_complete) == ("guard", False)


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
