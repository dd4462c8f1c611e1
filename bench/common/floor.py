# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds the C floors with the system's C compiler, and writes their list of calls."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from .errors import BenchError
from .reference import Reference

SOURCES = Path(__file__).resolve().parent
# floor.c makes calls by vfork and exec, session_floor.c in one shell, subreaper_floor.c each with a
# helper process. With the thread floor, a second thread of floor.c makes the calls.
FLOOR, SESSION_FLOOR, SUBREAPER_FLOOR = "floor", "session_floor", "subreaper_floor"
SESSION_PIPE_FLOOR, THREAD_FLOOR = "session_pipe_floor", "thread_floor"
NAMES = (FLOOR, SESSION_FLOOR, SESSION_PIPE_FLOOR, SUBREAPER_FLOOR, THREAD_FLOOR)
FLAGS = ("-std=c17", "-O2", "-Wall", "-Wextra")
# Floors with a source of another name, or with further flags.
VARIANTS = {
    SESSION_PIPE_FLOOR: (SESSION_FLOOR, "-DCONTROL_PIPE"),
    SUBREAPER_FLOOR: (SUBREAPER_FLOOR, "-static"),
    THREAD_FLOOR: (FLOOR, "-DSECOND_THREAD", "-pthread"),
}


def build(name: str, into: Path) -> Path:
    """Compiles a floor into a directory, and returns the program's path."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("no C compiler for the floor: install one, or use --without floor")
    program = into / name
    source, *flags = VARIANTS.get(name, (name,))
    sources = [SOURCES / f"{source}.c", SOURCES / "floor_worker.c"]
    done = subprocess.run(
        [*compiler.split(), *FLAGS, *flags, "-o", str(program), *map(str, sources)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise BenchError(f"{source}.c does not compile: {done.stderr.strip()}")
    return program


def call_list(references: Iterable[Reference], env: Mapping[str, str], cwd: Path) -> bytes:
    """Returns the call list for a floor: one string per line, after its length."""
    references = list(references)
    lines: list[bytes] = [b"spawnfd-floor 1"]

    def string(data: bytes) -> None:
        lines.append(b"%d %s" % (len(data), data))

    string(os.fsencode(cwd))
    lines.append(b"%d" % len(env))
    for name, value in env.items():
        string(os.fsencode(f"{name}={value}"))
    lines.append(b"%d" % len(references))
    for reference in references:
        string(reference.name.encode())
        lines.append(b"%d" % reference.code)
        string(reference.stdout)
        string(reference.stderr)
        lines.append(b"%d" % len(reference.argv))
        for word in reference.argv:
            string(os.fsencode(word))
    return b"\n".join(lines) + b"\n"
