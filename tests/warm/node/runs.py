# SPDX-License-Identifier: MIT OR Apache-2.0
"""Starts Node.js cold (`run_cold`), or from a parked process (`run_warm`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import owner
from owner import Result, collect
from protocol import Kind, Mode


class Parked(owner.Parked):
    """A parked Node.js. `name` is its argv[0]."""

    def __init__(
        self,
        program: str,
        shim: Path,
        flags: Sequence[str],
        env: Mapping[str, str],
        mode: str = "r",
        name: str = "node",
    ) -> None:
        self.name = name
        super().__init__(Kind.NODE, shim, program, [name, *flags], env, mode=Mode(ord(mode)))


def pipes() -> tuple[list[int], int, list[int]]:
    """Creates three pipes.

    Returns the child's descriptors 0, 1 and 2, the end to write to, and the ends to read.
    """
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = (
        os.pipe() for _ in range(3)
    )
    return [in_read, out_write, err_write], in_write, [out_read, err_read]


def finish(pid: int, writer: int | None, readers: Sequence[int], data: bytes) -> Result:
    """Writes a program's input, reads its output, closes the pipes, and reaps the program."""
    try:
        return collect(pid, dict(zip((1, 2), readers, strict=True)), writer=writer, data=data)
    finally:
        for fd in readers:
            os.close(fd)


def run_cold(
    program: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, data: bytes = b""
) -> Result:
    stdio, writer, readers = pipes()
    started = subprocess.Popen(
        list(argv),
        executable=program,
        env=dict(env),
        cwd=cwd,
        stdin=stdio[0],
        stdout=stdio[1],
        stderr=stdio[2],
        umask=0o22,
    )
    # `finish` reaps the process, so Popen must not.
    started.returncode = 0
    for fd in stdio:
        os.close(fd)
    return finish(started.pid, writer, readers, data)


def run_warm(
    program: str,
    shim: Path,
    flags: Sequence[str],
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    data: bytes = b"",
    parked_env: Mapping[str, str] | None = None,
    mode: str = "r",
) -> Result:
    with Parked(program, shim, flags, env if parked_env is None else parked_env, mode) as parked:
        return run_from(parked, argv, env, cwd, data)


def run_from(
    parked: Parked, argv: Sequence[str], env: Mapping[str, str], cwd: str, data: bytes = b""
) -> Result:
    stdio, writer, readers = pipes()
    try:
        pid = parked.become(argv, env, cwd, stdio)
    finally:
        for fd in stdio:
            os.close(fd)
        if not parked.forks:
            parked.close()
    return finish(pid, writer, readers, data)
