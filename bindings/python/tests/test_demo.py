# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m spawnfd.demo` compares the ways to start the tools of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import make_script
from spawnfd import demo


def test_table_has_each_way_and_the_gain_over_the_better_platform_way() -> None:
    medians = {"cat": {"asyncio": 4.0, "threads": 3.0, "spawnfd": 2.0, "warm": 6.0}}
    head, row = demo.table(medians, {"cat": Counter({"fork": 16})}).splitlines()
    assert head.split()[-6:] == ["asyncio", "threads", "spawnfd", "gain", "warm", "gain"]
    assert row.split() == ["cat", "4.00", "3.00", "2.00", "+50", "%", "6.00", "-50", "%"]


def test_reason_of_cold_starts_takes_the_place_of_the_warm_figures() -> None:
    medians = {"cat": {"asyncio": 4.0, "threads": 3.0, "spawnfd": 2.0, "warm": 1.0}}
    starts = {"cat": Counter({"fork": 4, "cold: empty": 9, "cold: stale": 3})}
    _, row = demo.table(medians, starts).splitlines()
    assert row.split() == ["cat", "4.00", "3.00", "2.00", "+50", "%", "cold:", "empty"]
    assert "warm:" not in demo.legend(starts)


def test_few_cold_starts_are_counted_below_the_table() -> None:
    medians = {"cat": {"asyncio": 4.0, "threads": 3.0, "spawnfd": 2.0, "warm": 1.0}}
    starts = {"cat": Counter({"fork": 13, "cold: empty": 3})}
    _, row = demo.table(medians, starts).splitlines()
    assert row.split()[-3:] == ["1.00", "+200", "%"]
    *_, explanation, count = demo.legend(starts).splitlines()
    assert explanation.endswith("warm: the library starts the programs ahead, in mode fork.")
    assert count == "warm: cat: 3 of 16 starts were cold (cold: empty)"


def run_demo(*tools: str, **env: str) -> list[str]:
    """Runs one round with these tools, and returns the lines from the head of the table on."""
    words = [word for tool in tools for word in ("--tool", tool)]
    command = [sys.executable, "-m", "spawnfd.demo", "--seconds", "0", *words]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=110, env={**os.environ, **env}
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    return lines["machine is busy" in lines[0] :]


def test_module_prints_the_comparison() -> None:
    rows = [line.split("  ")[0] for line in run_demo("cat", "git status")]
    assert rows[:4] == ["milliseconds per call", "all tools", "cat", "git status"]


def test_module_claims_no_warm_start_if_all_starts_are_cold() -> None:
    lines = run_demo("cat", SPAWNFD_WARM="0")
    assert [line.rpartition("  ")[2] for line in lines[1:3]] == ["cold: off"] * 2
    assert not any("starts the programs ahead" in line for line in lines)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_repository_and_settings_of_the_caller_have_no_effect(tmp_path: Path) -> None:
    """GIT_DIR names a repository of the caller; its settings ask for signatures and hooks."""
    repository, hooks = tmp_path / "repository", tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "post-index-change"):
        make_script(hooks / name, "#!/bin/sh\nexit 1\n")
    settings = tmp_path / ".gitconfig"
    settings.write_text(
        f"[commit]\ngpgsign = true\n[gpg]\nprogram = false\n[core]\nhooksPath = {hooks}\n"
    )
    subprocess.run(["git", "init", "--quiet", repository], check=True, timeout=110)
    git_dir = repository / ".git"
    before = {path: path.stat().st_mtime_ns for path in git_dir.rglob("*")}
    rows = run_demo("git status", GIT_DIR=str(git_dir), HOME=str(tmp_path))
    assert rows[2].startswith("git status ")
    assert {path: path.stat().st_mtime_ns for path in git_dir.rglob("*")} == before


BUSY = "the machine is busy (load 1000000.0): the figures may favour spawnfd\n"


@pytest.mark.parametrize(("load", "warning"), [(0.0, ""), (1e6, BUSY)])
def test_missing_tool_and_load_are_reported(
    load: float,
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert demo.main(["--tool", "rg"]) == 1
    output = capsys.readouterr()
    assert output.out == warning + "skipped: rg: no program rg in PATH\n"
    assert output.err == "demo: none of the tools is in PATH\n"


def test_script_in_path_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_script(tmp_path / "cat", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    assert demo.find_program("cat") == "/bin/cat"


def test_other_output_ends_the_demo() -> None:
    async def wrong(_argv: Sequence[str]) -> demo.Answer:
        return 0, b"other", b""

    with pytest.raises(SystemExit, match="demo: cat x: another exit code or output"):
        asyncio.run(demo.measure(wrong, [["cat", "x"]], {"cat\0x": (0, b"text", b"")}))
