# SPDX-License-Identifier: MIT OR Apache-2.0
"""On an unsupported platform, the build and a native part fail with one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import spawnfd as sf

PROJECT = Path(__file__).resolve().parents[1]
SUPPORTED = (
    "spawnfd supports CPython 3.10 or later with the GIL, on Linux x86_64 or aarch64; this is"
)
# Code that makes the interpreter look like one of another platform, and the name of that platform.
PLATFORMS = {
    "sys.platform = 'darwin'": "macOS",
    "sys.platform = 'win32'": "Windows",
    "sys.platform = 'freebsd14'": "freebsd14",
    "platform.machine = lambda: 'riscv64'": "Linux riscv64",
    "sys.maxsize = 2**31 - 1": "a 32-bit interpreter",
    "sys.implementation.name = 'pypy'; platform.python_implementation = lambda: 'PyPy'": "PyPy",
    "sys.abiflags = 't'": "a free-threaded CPython",
}


def errors_of(code: str, *path: Path) -> list[str]:
    """Runs code that must fail, and returns the lines that it prints to standard error."""
    start = f"import platform, sys; sys.path[:0] = {[str(one) for one in path]!r}\n"
    command = [sys.executable, "-I", "-B", "-c", start + code]
    # The portable engine would be chosen first.
    env = {name: value for name, value in os.environ.items() if name != "SPAWNFD_PORTABLE"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr.splitlines()


@pytest.fixture
def with_broken_native_part(tmp_path: Path) -> Path:
    package = Path(sf.__file__).parent
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(package, tmp_path / "spawnfd", ignore=ignored)
    (tmp_path / "spawnfd" / "_spawnfd.abi3.so").touch()
    return tmp_path


@pytest.mark.parametrize("change", PLATFORMS)
def test_import_on_an_unsupported_platform_names_what_is_supported(
    change: str, with_broken_native_part: Path
) -> None:
    lines = errors_of(f"{change}\nimport spawnfd", with_broken_native_part)
    assert lines[-1] == f"ImportError: {SUPPORTED} {PLATFORMS[change]}"


def test_broken_native_part_is_an_error_and_not_replaced(with_broken_native_part: Path) -> None:
    lines = errors_of("import spawnfd", with_broken_native_part)
    assert lines[-1].startswith("ImportError: ")
    assert "_spawnfd.abi3.so" in lines[-1]


@pytest.mark.parametrize("change", PLATFORMS)
def test_build_on_an_unsupported_platform_names_what_is_supported(change: str) -> None:
    """The backend prints only the sentence: no traceback, no compiler."""
    lines = errors_of(f"{change}\nimport spawnfd_build", PROJECT / "backend")
    assert lines == [f"{SUPPORTED} {PLATFORMS[change]}"]


def test_build_on_this_platform_is_maturins() -> None:
    maturin = pytest.importorskip("maturin", reason="maturin is not installed")
    code = (
        f"import sys; sys.path.insert(0, {str(PROJECT / 'backend')!r})\n"
        "import spawnfd_build\n"
        "print(spawnfd_build.build_wheel.__module__, spawnfd_build.build_sdist.__module__)"
    )
    command = [sys.executable, "-B", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert ended.stdout.split() == [maturin.__name__] * 2
