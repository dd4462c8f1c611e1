# SPDX-License-Identifier: MIT OR Apache-2.0
"""tests/run.py kills suites that hang, with all their descendants, and locks its checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# A command line that no other test run uses.
SLEEP = f"sleep {1_000_000 + os.getpid()}"
# Loads tests/run.py, and replaces its suites and its lock.
HEAD = """
import sys
from pathlib import Path
import run
run.LOCK, run.SKIPS = Path(sys.argv[1], "lock"), Path(sys.argv[1], "skips.txt")
run.BUILD = run.Suite("Build", "true", 60)
run.GRACE_S = 1.0
suite = lambda command, limit=60: run.Suite("A suite", command, limit)
"""


def run_suites(tmp_path: Path, body: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", HEAD + body, str(tmp_path)]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60)


def is_running(arguments: str) -> bool:
    def line(process: Path) -> str:
        try:
            return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            return ""

    return any(line(process) == arguments for process in Path("/proc").glob("[0-9]*"))


def test_time_limit_kills_all_descendants(tmp_path: Path) -> None:
    body = f"""
run.SUITES = {{"hangs": suite("setsid {SLEEP}", 1), "passes": suite("true")}}
sys.exit(run.main(["hangs", "passes"]))
"""
    ended = run_suites(tmp_path, body)
    assert ended.returncode == 1
    assert "A suite: FAILED, still running after 1 s; killed: " in ended.stdout
    assert SLEEP in ended.stdout
    assert ended.stdout.count("s  A suite") == 2
    assert not is_running(SLEEP)


def test_leftover_process_is_killed_and_named(tmp_path: Path) -> None:
    body = f"""
run.SUITES = {{"leaves": suite("setsid --fork {SLEEP}")}}
sys.exit(run.main(["leaves"]))
"""
    ended = run_suites(tmp_path, body)
    assert ended.returncode == 1
    assert "FAILED, left processes behind; killed: " in ended.stdout
    assert not is_running(SLEEP)


def test_second_run_in_a_checkout_is_refused(tmp_path: Path) -> None:
    body = """
import os, subprocess
command = [sys.executable, "-c", sys.argv[2] + "sys.exit(run.main(['test']))", sys.argv[1]]
assert run.locked()
second = subprocess.run(command, capture_output=True, text=True)
assert second.returncode == 2, second
assert f"another test run (pid {os.getpid()}) uses this checkout" in second.stderr, second
"""
    command = [sys.executable, "-c", HEAD + body, str(tmp_path), HEAD]
    subprocess.run(command, cwd=HERE, check=True, timeout=60)


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT"])
def test_ignored_signals_are_not_inherited(tmp_path: Path, name: str) -> None:
    body = f"""
run.SUITES = {{"dies": suite("sh -c 'kill -{name} $$; exit 7'")}}
sys.exit(run.main(["dies"]))
"""
    ended = run_suites(tmp_path, body, "env", f"--ignore-signal={name}")
    assert "FAILED, signal " in ended.stdout


def test_output_of_suites_that_run_at_once_is_separate(tmp_path: Path) -> None:
    script = tmp_path / "meet"
    script.write_text(
        f"cd {tmp_path}; touch $1; printf first-; until [ -e $2 ]; do sleep 0.01; done; printf last"
    )
    body = f"""
run.SUITES = {{"a": suite("sh {script} a b"), "b": suite("sh {script} b a")}}
sys.exit(run.main(["a", "b"]))
"""
    ended = run_suites(tmp_path, body)
    assert (ended.returncode, ended.stdout.count("first-last")) == (0, 2), ended


@pytest.mark.parametrize(("quiet", "code"), [(1.0, 1), (-1.0, 0)])
def test_late_end_is_a_failure_on_a_quiet_machine(tmp_path: Path, quiet: float, code: int) -> None:
    body = f"""
run.BUDGET_S, run.QUIET = 0.0, {quiet}
run.SUITES, run.TEST = {{"passes": suite("true")}}, ["passes"]
sys.exit(run.main(["test"]))
"""
    ended = run_suites(tmp_path, body)
    assert (ended.returncode, "FAILED: these suites" in ended.stdout) == (code, code == 1), ended
