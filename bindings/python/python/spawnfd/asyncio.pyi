# SPDX-License-Identifier: MIT OR Apache-2.0
from asyncio.streams import StreamReader
from asyncio.subprocess import (
    DEVNULL,
    PIPE,
    STDOUT,
    Process,
    create_subprocess_exec,
    create_subprocess_shell,
)

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "Process",
    "StreamReader",
    "create_subprocess_exec",
    "create_subprocess_shell",
]
