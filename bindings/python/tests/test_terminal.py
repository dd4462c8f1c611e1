# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs that run to their end in a terminal of their own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from conftest import Go, is_alive
from patience import in_time
from test_options import Run, both, run_async, run_job


@both
def test_a_program_sees_a_terminal(run: Run) -> None:
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


@both
def test_a_terminal_size_is_taken_as_it_is(run: Run) -> None:
    result = run(["stty", "size"], terminal=os.terminal_size((101, 33)), timeout=60)
    assert result.text == "33 101\r\n"


@both
def test_output_is_as_a_terminal_has_it(run: Run) -> None:
    line = "printf 'a\\nb'; printf 'c\\0\\377' >&2; stty raw; printf 'd\\ne'"
    assert run(sf.sh(line), terminal=(24, 80)).stdout == b"a\r\nbc\0\xffd\ne"
    result = run(["seq", "20000"], terminal=(24, 80), keep=(3, 7))
    assert (result.stdout, result.text) == (b"1\r\n20000\r\n", "1\r\n20000\r\n")
    written = sum(len(f"{number}\r\n") for number in range(1, 20001))
    assert result.seen_bytes == result.omitted_bytes + 10 == written


@both
def test_what_is_typed(run: Run) -> None:
    line = sf.sh("stty -echo; cat; echo over")
    for given in ("one\ntwo\n", b"one\ntwo\n"):
        result = run(line, terminal=(24, 80), input=given, timeout=60)
        # What is typed before the echo is off is echoed.
        assert result.text.endswith("one\r\ntwo\r\nover\r\n")
        assert (result.ok, result.input_refused) == (True, False)


@pytest.mark.parametrize("run", [sf.run, run_async])
def test_nobody_types(run: Run) -> None:
    result = run(sf.sh("cat; echo over"), terminal=(24, 80), timeout=60)
    assert (result.text, result.ok) == ("over\r\n", True)


@both
def test_a_timeout_keeps_what_came(run: Run, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    line = sf.sh(f"echo begun; : > '{mark}'; exec sleep 1000")
    result = in_time(mark, 0.5, lambda time: run(line, terminal=(24, 80), timeout=time))
    assert (result.stop, result.signal, result.text) == ("timeout", 15, "begun\r\n")


@both
def test_who_keeps_it_is_named_and_ended(run: Run) -> None:
    line = "trap '' HUP; sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo $!"
    result = run(sf.sh(line), terminal=(24, 80), timeout=60)
    left = int(result.text)
    assert result.drain == f"cut: {left}"
    assert [(of.pid, of.name, of.fate) for of in result.leftovers] == [(left, "sleep", "killed")]
    deadline = time.monotonic() + 20
    while is_alive(left) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(left)


def test_by_any_front(go: Go) -> None:
    line = "tty >/dev/null && stty size"
    options: sf.RunOptions = {"terminal": (3, 4), "timeout": 60}

    async def main() -> list[sf.Result]:
        template, cache = sf.Template("/bin/sh"), sf.TemplateCache()
        return [
            await sf.run_async(sf.sh(line), **options),
            await template.run_async(["-c", line], **options),
            await cache.run_async(sf.sh(line), **options),
            template.run(["-c", line], **options),
            cache.run(sf.sh(line), **options),
        ]

    results = go(main)
    assert [result.text for result in results] == ["3 4\r\n"] * 5


def test_its_size_and_the_other_streams() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"terminal": (24,)}, TypeError, "terminal: expected a tuple of two int"),
        ({"terminal": [24, 80]}, TypeError, "terminal: expected a tuple of two int"),
        ({"terminal": True}, TypeError, "terminal: expected a tuple of two int"),
        ({"terminal": (1 << 16, 1)}, ValueError, r"terminal\[0\]"),
        ({"terminal": (1, -1)}, ValueError, r"terminal\[1\]"),
        ({"terminal": (24, 80), "stdin": "null"}, ValueError, "terminal: .*stdin is given"),
        ({"terminal": (24, 80), "stdout": "null"}, ValueError, "terminal: .*stdout is given"),
        ({"terminal": (24, 80), "stderr": "merge"}, ValueError, "terminal: .*stderr is given"),
    ]
    for run in (sf.run, run_async, run_job):
        for options, expected, message in wrong:
            with pytest.raises(expected, match=message):
                run(["true"], **options)
        assert run(["test", "-t", "0"], terminal=None).code == 1
    with pytest.raises(ValueError, match='stdin: "stream" is not one of'):
        sf.run(["true"], terminal=(24, 80), stdin="stream")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'argument "terminal": run\(\) and start\(\) have it'):
        sf.spawn(["true"], terminal=(24, 80))  # type: ignore[call-arg]


@both
def test_a_group_that_cannot_be(run: Run) -> None:
    with pytest.raises(PermissionError) as caught:
        run(["true"], terminal=(24, 80), actions=[sf.actions.ProcessGroup(0)])
    assert caught.value.action == 0  # type: ignore[attr-defined]
