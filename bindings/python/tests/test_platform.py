# SPDX-License-Identifier: MIT OR Apache-2.0
"""On an unsupported platform, the build and `import spawnfd` fail with one sentence."""

from __future__ import annotations

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
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr.splitlines()


@pytest.fixture
def without_native_part(tmp_path: Path) -> Path:
    package = Path(sf.__file__).parent
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(package, tmp_path / "spawnfd", ignore=ignored)
    return tmp_path


@pytest.mark.parametrize("change", PLATFORMS)
def test_import_on_an_unsupported_platform_names_what_is_supported(
    change: str, without_native_part: Path
) -> None:
    lines = errors_of(f"{change}\nimport spawnfd", without_native_part)
    assert lines[-1] == f"ImportError: {SUPPORTED} {PLATFORMS[change]}"


def test_import_without_the_native_part_says_how_to_install(without_native_part: Path) -> None:
    lines = errors_of("import spawnfd", without_native_part)
    assert lines[-1].startswith("ImportError: spawnfd's native part is missing: install")


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
