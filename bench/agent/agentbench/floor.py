# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds floor.c with the system's C compiler."""

import os
import shutil
import subprocess
from pathlib import Path

from .errors import BenchError

SOURCE = Path(__file__).resolve().parent.parent / "floor.c"
FLAGS = ("-std=c17", "-O2", "-Wall", "-Wextra")


def build(into: Path) -> Path:
    """Compiles the floor into a directory and returns the program."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("no C compiler for the floor; install one or say --without floor")
    program = into / "floor"
    done = subprocess.run(
        [*compiler.split(), *FLAGS, "-o", str(program), str(SOURCE)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise BenchError(f"{SOURCE.name} does not compile: {done.stderr.strip()}")
    return program
