# SPDX-License-Identifier: MIT OR Apache-2.0
"""tests/built.py prints the binaries that cargo reports, and fails if cargo fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def built(directory: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the script with a cargo that reports four executables."""
    reported = [
        ("tests", "/target/deps/spawn-0123abcd", True),
        ("crates/spawnfd", "/target/deps/spawnfd-0123abcd", True),
        ("tests", "/target/spawnfd-oracle", False),
        ("bench/native", "/target/deps/spawnfd_bench-0123abcd", True),
    ]
    lines = [
        json.dumps(
            {
                "manifest_path": str(ROOT / folder / "Cargo.toml"),
                "executable": executable,
                "profile": {"test": is_test},
            }
        )
        for folder, executable, is_test in reported
    ]
    lines.append(json.dumps({"reason": "build-finished"}))
    (directory / "messages").write_text("\n".join(lines))
    cargo = directory / "cargo"
    cargo.write_text(
        f'#!/bin/sh\necho "$@" >{directory}/given\ncat {directory}/messages\nexit {status}\n'
    )
    cargo.chmod(0o755)
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "built.py"), *arguments],
        env={**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_test_binaries_of_crates_and_suites_are_printed(tmp_path: Path) -> None:
    ended = built(tmp_path, "-p", "spawnfd-tests")
    assert ended.stdout.split() == ["/target/deps/spawn-0123abcd", "/target/deps/spawnfd-0123abcd"]
    given = (tmp_path / "given").read_text().split()
    assert given[:4] == ["test", "-q", "-p", "spawnfd-tests"]
    assert "--no-run" in given


def test_selections(tmp_path: Path) -> None:
    assert built(tmp_path, "--only", "spawn").stdout.split() == ["/target/deps/spawn-0123abcd"]
    assert "/target/spawnfd-oracle" in built(tmp_path, "--with-programs").stdout.split()


def test_failed_build_is_an_error_and_prints_no_binary(tmp_path: Path) -> None:
    ended = built(tmp_path, status=101)
    assert (ended.returncode, ended.stdout) == (101, "")


def test_name_without_a_binary_is_an_error(tmp_path: Path) -> None:
    ended = built(tmp_path, "--only", "nothing")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "nothing" in ended.stderr
