# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that run in a new terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from conftest import RunLoop, is_alive
from patience import eventually, in_time
from test_options import Run, each_run, run_async, run_job


@each_run
def test_all_streams_are_the_terminal(run: Run) -> None:
    script = """if True:
        import os, sys
        print([stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)], flush=True)
        print(os.get_terminal_size(), file=sys.stderr, flush=True)
        with open("/dev/tty", "w") as controlling:
            print("controlling", file=controlling)
        print(os.getsid(0) == os.getpid() == os.tcgetpgrp(0))
    """
    result = run([sys.executable, "-c", script], terminal=(33, 101), timeout=60)
    assert result.text.splitlines() == [
        "[True, True, True]",
        "os.terminal_size(columns=101, lines=33)",
        "controlling",
        "True",
    ]
    assert (result.ok, result.stderr, result.drain) == (True, b"", "eof")


@each_run
def test_terminal_size_object_is_accepted(run: Run) -> None:
    result = run(["stty", "size"], terminal=os.terminal_size((101, 33)), timeout=60)
    assert result.text == "33 101\r\n"


@each_run
def test_output_passes_the_line_discipline(run: Run) -> None:
    line = "printf 'a\\nb'; printf 'c\\0\\377' >&2; stty raw; printf 'd\\ne'"
    assert run(sf.sh(line), terminal=(24, 80)).stdout == b"a\r\nbc\0\xffd\ne"
    result = run(["seq", "20000"], terminal=(24, 80), keep=(3, 7))
    assert (result.stdout_head, result.stdout_tail) == (b"1\r\n", b"20000\r\n")
    assert result.text == "1\r\n[… 128,884 bytes omitted …]\n20000\r\n"
    written = sum(len(f"{number}\r\n") for number in range(1, 20001))
    assert result.seen_bytes == result.omitted_bytes + 10 == written


@each_run
def test_input_is_typed_and_ended(run: Run) -> None:
    line = sf.sh("stty -echo; cat; echo over")
    for given in ("one\ntwo\n", b"one\ntwo\n"):
        result = run(line, terminal=(24, 80), input=given, timeout=60)
        # The terminal echoes input that arrives before stty turns the echo off.
        assert result.text.endswith("one\r\ntwo\r\nover\r\n")
        assert (result.ok, result.input_refused) == (True, False)


@pytest.mark.parametrize("run", [sf.run, run_async])
def test_terminal_without_input_is_at_end_of_file(run: Run) -> None:
    result = run(sf.sh("cat; echo over"), terminal=(24, 80), timeout=60)
    assert (result.text, result.ok) == ("over\r\n", True)


@each_run
def test_timeout_keeps_the_output(run: Run, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    line = sf.sh(f"echo begun; : > '{marker}'; exec sleep 1000")
    result = in_time(marker, 0.5, lambda time: run(line, terminal=(24, 80), timeout=time))
    assert (result.stop, result.signal, result.text) == ("timeout", 15, "begun\r\n")


@each_run
def test_leftover_with_the_terminal_open_is_named_and_killed(run: Run) -> None:
    line = "trap '' HUP; sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo $!"
    result = run(sf.sh(line), terminal=(24, 80), timeout=60)
    left = int(result.text)
    assert result.drain == f"cut: {left}"
    assert [(of.pid, of.name, of.fate) for of in result.leftovers] == [(left, "sleep", "killed")]
    assert eventually(lambda: not is_alive(left))


async def test_terminal_in_each_start_function(run_loop: RunLoop) -> None:
    line = "tty >/dev/null && stty size"
    options: sf.RunOptions = {"terminal": (3, 4), "timeout": 60}

    template, cache = sf.Template("/bin/sh"), sf.TemplateCache()
    results = [
        await sf.run_async(sf.sh(line), **options),
        await template.run_async(["-c", line], **options),
        await cache.run_async(sf.sh(line), **options),
        template.run(["-c", line], **options),
        cache.run(sf.sh(line), **options),
    ]
    assert [result.text for result in results] == ["3 4\r\n"] * 5


def test_invalid_terminal_options() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"terminal": (24,)}, TypeError, "terminal: expected a tuple of two int"),
        ({"terminal": [24, 80]}, TypeError, "terminal: expected a tuple of two int"),
        ({"terminal": True}, TypeError, "terminal: expected a tuple of two int"),
        ({"terminal": (1 << 16, 1)}, ValueError, "terminal must be two numbers up to 65535"),
        ({"terminal": (1, -1)}, ValueError, r"terminal\[1\]"),
        (
            {"terminal": (24, 80), "stdin": "inherit"},
            ValueError,
            "terminal: cannot be combined with stdin",
        ),
        (
            {"terminal": (24, 80), "stdout": "null"},
            ValueError,
            "terminal: cannot be combined with stdout",
        ),
        (
            {"terminal": (24, 80), "stderr": "merge"},
            ValueError,
            "terminal: cannot be combined with stderr",
        ),
    ]
    for run in (sf.run, run_async, run_job):
        for options, expected, message in wrong:
            with pytest.raises(expected, match=message):
                run(["true"], **options)
        assert run(["test", "-t", "0"], terminal=None).code == 1
    with pytest.raises(ValueError, match=r'stdin: expected one of .*, got "stream"'):
        sf.run(["true"], terminal=(24, 80), stdin="stream")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'argument "terminal"; run\(\) and start\(\) accept it'):
        sf.spawn(["true"], terminal=(24, 80))  # type: ignore[call-arg]


@each_run
def test_session_leader_cannot_change_its_group(run: Run) -> None:
    with pytest.raises(PermissionError) as caught:
        run(["true"], terminal=(24, 80), actions=[sf.actions.ProcessGroup(0)])
    assert caught.value.action == 0  # type: ignore[attr-defined]
