# SPDX-License-Identifier: MIT OR Apache-2.0
"""Truncated and combined output, Result.to_dict() and the repr of a Result."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from test_options import Run, each_run

ROOT = Path(__file__).resolve().parents[3]

# Writes lines to both streams in turn, each line after the library has read the previous one.
ALTERNATES = """
import array, fcntl, os, termios
def await_reader(fd):
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(fd, termios.FIONREAD, left)
for fd, text in (1, b"a\\n"), (2, b"b\\n"), (1, b"c\\n"), (1, b"d\\n"), (2, b"e\\n"), (1, b"f\\n"):
    os.write(fd, text)
    await_reader(fd)
"""


@each_run
def test_truncated_output_is_marked(run: Run) -> None:
    result = run(sf.sh("seq 1 13"), keep=(10, 5))
    assert result.text == "1\n2\n3\n4\n5\n[… 15 bytes omitted …]\n2\n13\n"
    assert result.stdout == result.text.encode()
    assert (result.stdout_head, result.stdout_tail) == (b"1\n2\n3\n4\n5\n", b"2\n13\n")
    assert result.omitted == {"stdout": (15, 10), "stderr": (0, 0)}
    assert (result.omitted["stdout"].bytes, result.omitted["stdout"].offset) == (15, 10)
    assert (result.omitted_bytes, result.seen_bytes) == (15, 30)


@each_run
def test_truncated_stderr_is_marked(run: Run) -> None:
    result = run(sf.sh("echo out; seq 1 30000 >&2"), keep=(10, 12))
    assert result.stderr_text == "1\n2\n3\n4\n5\n[… 168,872 bytes omitted …]\n29999\n30000\n"
    assert result.stderr == result.stderr_text.encode()
    assert (result.stderr_head, result.stderr_tail) == (b"1\n2\n3\n4\n5\n", b"29999\n30000\n")
    assert result.omitted == {"stdout": (0, 4), "stderr": (168_872, 10)}
    assert (result.stdout_head, result.stdout_tail) == (b"out\n", b"")


def test_keep_all_keeps_every_byte() -> None:
    expected = "".join(f"{n}\n" for n in range(1, 100_001))
    result = sf.run(sf.sh("seq 100000; seq 100000 >&2"), keep="all")
    assert (result.text, result.stderr_text, result.omitted_bytes) == (expected, expected, 0)
    with pytest.raises(ValueError, match='keep must be two numbers of bytes, or "all", got "some"'):
        sf.run(["true"], keep="some")  # type: ignore[arg-type]


def test_returncode_is_that_of_subprocess() -> None:
    for line in ("exit 0", "exit 7", "kill -9 $$", "kill -15 $$"):
        expected = subprocess.run(["/bin/sh", "-c", line], check=False).returncode
        assert sf.run(sf.sh(line)).returncode == expected


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        ((4, 4), "0123\n[… 2 bytes omitted …]\n6789"),
        ((4, 5), "0123\n[… 1 byte omitted …]\n56789"),
        ((4, 6), "0123456789"),
        ((0, 4), "[… 6 bytes omitted …]\n6789"),
        ((4, 0), "0123\n[… 6 bytes omitted …]\n"),
        ((0, 0), "[… 10 bytes omitted …]\n"),
    ],
)
def test_marker_is_a_line_of_its_own(keep: tuple[int, int], text: str) -> None:
    result = sf.run(["printf", "0123456789"], keep=keep)
    assert result.text == text
    head, tail = result.stdout_head, result.stdout_tail
    assert len(head) + result.omitted_bytes + len(tail) == 10
    assert b"0123456789".startswith(head)
    assert b"0123456789".endswith(tail)


@each_run
def test_marker_can_be_changed_or_left_out(run: Run) -> None:
    def text(marker: str | None) -> str:
        return run(["printf", "0123456789"], keep=(2, 2), marker=marker).text

    assert text("-- {omitted} cut --") == "01\n-- 6 bytes cut --\n89"
    assert text("é") == "01\né\n89"
    assert (text(None), text("")) == ("0189", "0189")


def test_cuts_fall_on_line_ends() -> None:
    lines = "".join(f"line {number:02}\n" for number in range(100))
    result = sf.run(["printf", lines], keep=(45, 45))
    assert result.stdout_head == lines[:40].encode()
    assert result.stdout_tail == lines[-40:].encode()
    result = sf.run(["printf", lines.replace("\n", "\r\n")], keep=(45, 44))
    assert result.stdout_head.endswith(b"04\r\n")
    assert result.stdout_tail.startswith(b"line 96\r\n")


@each_run
def test_combined_output_is_in_order_of_arrival(run: Run) -> None:
    command = [sys.executable, "-c", ALTERNATES]
    result = run(command, combined=True)
    assert result.output is not None
    assert [(piece.stream, piece.text, piece.bytes) for piece in result.output] == [
        ("stdout", "a\n", b"a\n"),
        ("stderr", "b\n", b"b\n"),
        ("stdout", "c\nd\n", b"c\nd\n"),
        ("stderr", "e\n", b"e\n"),
        ("stdout", "f\n", b"f\n"),
    ]
    assert (result.text, result.stderr) == ("a\nc\nd\nf\n", b"b\ne\n")
    marker = "[… 4 bytes omitted …]\n"
    for options, line in [({}, marker), ({"marker": None}, "")]:
        result = run(command, combined=True, keep=(2, 2), **options)
        assert result.output == [
            ("stdout", b"a\n", "a\n", 0),
            ("stderr", b"b\n", "b\n", 0),
            ("stdout", line.encode(), line, 4),
            ("stderr", b"e\n", "e\n", 0),
            ("stdout", b"f\n", "f\n", 0),
        ]
    assert pickle.loads(pickle.dumps(result)).output == result.output


@each_run
def test_combined_output_of_one_stream(run: Run) -> None:
    both = sf.sh("echo 1; echo 2 >&2")
    assert run(both, combined=True, stderr="merge").output == [("stdout", b"1\n2\n", "1\n2\n", 0)]
    text = "1\r\n2\r\n"
    result = run(both, combined=True, terminal=(24, 80))
    assert result.output == [("stdout", text.encode(), text, 0)]
    assert run(["true"], combined=True).output == []
    assert run(both).output is None
    assert run(both, combined=False).output is None


CASES: list[tuple[list[str], list[str], dict[str, Any]]] = [
    (["sh", "-c", "echo out; echo err >&2; exit 3"], [], {}),
    (["sh", "-c", "kill -9 $$"], [], {}),
    (["seq", "100"], ["--keep", "10:5", "--marker", "-"], {"keep": (10, 5), "marker": "-"}),
    (["seq", "100"], ["--keep", "5:5", "--marker", ""], {"keep": (5, 5), "marker": None}),
    (["seq", "100"], ["--keep", "5:5", "--combined"], {"keep": (5, 5), "combined": True}),
    (["printf", "a\\303\\n"], ["--terminal"], {"terminal": (24, 80)}),
    (["sleep", "60"], ["--timeout", "0.05"], {"timeout": 0.05}),
    (
        ["true"],
        ["--cpu-time", "5", "--tree", "guard"],
        {"limits": sf.Limits(cpu_time=5), "tree": "guard"},
    ),
]


@pytest.mark.parametrize(("argv", "flags", "options"), CASES)
def test_to_dict_equals_the_json_of_the_command(
    argv: list[str], flags: list[str], options: dict[str, Any]
) -> None:
    target = os.environ.get("CARGO_TARGET_DIR") or ROOT / "target"
    command = Path(target, "debug", "spawnfd")
    if not command.exists():
        pytest.skip("the command is not built: cargo build -p spawnfd-cli")
    printed = sf.run([command, "run", "--capture", "--json", *flags, *argv])
    expected = json.loads(printed.stdout)
    del expected["prepare_seconds"]
    found = sf.run(argv, **options).to_dict()
    assert list(found) == list(expected)
    measured = {"wall_seconds", "cpu_seconds", "max_rss_bytes"}
    for key in found:
        assert type(found[key]) is type(expected[key]), key
        if key not in measured:
            assert found[key] == expected[key], key


@each_run
def test_to_dict_can_be_written_as_json(run: Run, tmp_path: Path) -> None:
    spill = sf.Spill(10, dir=tmp_path, persist=True)
    result = run([b"printf", b"\\377%020d", b"\xff"], keep=(3, 3), spill=spill, combined=True)
    found = result.to_dict()
    assert json.loads(json.dumps(found, ensure_ascii=False).encode()) == found
    assert (found["program"], found["args"][2]) == ("printf", "\ufffd")
    assert found["stdout"] == result.text
    assert found["spilled"] == {"bytes": 10, "end": "capped"}
    assert found["spill_path"] == result.spill_path
    assert found["omitted"]["stdout"] == result.omitted["stdout"]._asdict()
    assert [piece["text"] for piece in found["output"]] == [
        piece.text for piece in result.output or []
    ]


def repr_of(argv: list[str | bytes], **options: Any) -> str:
    return re.sub(r"wall=\d+\.\d{4} s", "wall=T s", repr(sf.run(argv, **options)))


def test_repr_shows_command_end_and_sizes() -> None:
    assert repr_of(["true"]) == "<Result ['true'] code=0 stop=exited tree=guard wall=T s>"
    ended = "stop=exited tree=guard wall=T s"
    assert repr_of(sf.sh("kill -9 $$")).endswith(f" signal=9 {ended}>")
    text = repr_of(sf.sh("echo; echo err >&2; exit 4"))
    assert text.endswith(f" code=4 {ended} stdout=1 byte stderr=4 bytes>")
    text = repr_of(["seq", "100"], keep=(4, 4), marker=None, tree="guard")
    assert text == (
        "<Result ['seq', '100'] code=0 stop=exited tree=guard wall=T s omitted_bytes=284 "
        "stdout=8 bytes>"
    )


def test_repr_shortens_a_long_command() -> None:
    text = repr_of(["true", "x" * 1000])
    command = text.removeprefix("<Result ").removesuffix(" code=0 stop=exited tree=guard wall=T s>")
    assert (len(command), command[:12], command[-5:]) == (80, "['true', 'xx", "x...]")
