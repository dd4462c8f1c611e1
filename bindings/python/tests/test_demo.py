# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m spawnfd.demo` compares the ways to start the tools of this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from spawnfd import demo


def test_table_has_each_way_and_the_gain_over_the_better_platform_way() -> None:
    medians = {"cat": {"asyncio": 4.0, "threads": 3.0, "spawnfd": 2.0, "warm": 6.0}}
    head, row = demo.table(medians).splitlines()
    assert head.split()[-6:] == ["asyncio", "threads", "spawnfd", "gain", "warm", "gain"]
    assert row.split() == ["cat", "4.00", "3.00", "2.00", "+50", "%", "6.00", "-50", "%"]


def test_module_prints_the_comparison() -> None:
    """Two tools, one round."""
    words = ["--seconds", "0", "--tool", "cat", "--tool", "git status"]
    command = [sys.executable, "-m", "spawnfd.demo", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr
    rows = [line.split("  ")[0] for line in ended.stdout.splitlines()]
    rows = rows["machine is busy" in rows[0] :]
    assert rows[:4] == ["milliseconds per call", "all tools", "cat", "git status"]


def test_missing_tool_is_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert demo.main(["--tool", "rg"]) == 1
    output = capsys.readouterr()
    assert output.out == "skipped: rg: no program rg in PATH\n"
    assert output.err == "demo: none of the tools is in PATH\n"


def test_busy_machine_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (1e6, 0.0, 0.0))
    assert demo.main(["--tool", "rg"]) == 1
    assert "the machine is busy" in capsys.readouterr().out


def test_script_in_path_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = tmp_path / "cat"
    shim.write_text("#!/bin/sh\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    assert demo.find_program("cat") == "/bin/cat"


def test_other_output_ends_the_demo() -> None:
    async def wrong(_argv: Sequence[str]) -> demo.Answer:
        return 0, b"other", b""

    with pytest.raises(SystemExit, match="demo: cat x: another exit code or output"):
        asyncio.run(demo.measure(wrong, [["cat", "x"]], {"cat\0x": (0, b"text", b"")}))
