# SPDX-License-Identifier: MIT OR Apache-2.0
"""Truncated and combined output, Result.to_dict() and the repr of a Result."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from test_options import Run, each_run

ROOT = Path(__file__).resolve().parents[3]


def test_returncode_is_that_of_subprocess() -> None:
    for line in ("exit 0", "exit 7", "kill -9 $$", "kill -15 $$"):
        expected = subprocess.run(["/bin/sh", "-c", line], check=False).returncode
        assert sf.run(sf.sh(line)).returncode == expected


def test_pieces_of_combined_output_and_omitted_bytes_are_named_tuples() -> None:
    result = sf.run(["seq", "13"], combined=True, keep=(10, 5), marker="-")
    head, marker, tail = result.output or []
    assert (head, marker) == (
        ("stdout", b"1\n2\n3\n4\n5\n", head.text, 0),
        ("stdout", b"-\n", "-\n", 15),
    )
    assert (tail.stream, tail.bytes, tail.text, tail.omitted) == (
        "stdout",
        b"2\n13\n",
        "2\n13\n",
        0,
    )
    assert result.omitted == {"stdout": (15, 10), "stderr": (0, 0)}
    assert (result.omitted["stdout"].bytes, result.omitted["stdout"].offset) == (15, 10)
    assert pickle.loads(pickle.dumps(result)).output == result.output


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
    command: Path, argv: list[str], flags: list[str], options: dict[str, Any]
) -> None:
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


# The tier of a run by default.
TREE = "group" if sf.portable else "guard"


def repr_of(argv: list[str | bytes], **options: Any) -> str:
    return re.sub(r"wall=\d+\.\d{4} s", "wall=T s", repr(sf.run(argv, **options)))


def test_repr_shows_command_end_and_sizes() -> None:
    assert repr_of(["true"]) == f"<Result ['true'] code=0 stop=exited tree={TREE} wall=T s>"
    ended = f"stop=exited tree={TREE} wall=T s"
    assert repr_of(sf.sh("kill -9 $$")).endswith(f" signal=9 {ended}>")
    text = repr_of(sf.sh("echo; echo err >&2; exit 4"))
    assert text.endswith(f" code=4 {ended} stdout=1 byte stderr=4 bytes>")
    text = repr_of(["seq", "100"], keep=(4, 4), marker=None, tree=TREE)
    assert text == (
        f"<Result ['seq', '100'] code=0 stop=exited tree={TREE} wall=T s omitted_bytes=284 "
        "stdout=8 bytes>"
    )


def test_repr_shortens_a_long_command() -> None:
    text = repr_of(["true", "x" * 1000])
    ended = f" code=0 stop=exited tree={TREE} wall=T s>"
    command = text.removeprefix("<Result ").removesuffix(ended)
    assert (len(command), command[:12], command[-5:]) == (80, "['true', 'xx", "x...]")
